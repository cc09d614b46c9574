"""GlideMQFlowComponent: a flow of steps in YAML. ``dg`` imports this module on every command.

The names of this module and its classes are in the YAML files of users.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import dagster as dg

from dagster_glidemq.assets import glidemq_flow_assets
from dagster_glidemq.checks import GlideMQCheck, build_glidemq_workers_check
from glidemq_orchestrate import FlowSpec
from glidemq_orchestrate.errors import ConfigurationError

EXAMPLE: Final[Mapping[str, Any]] = {
    "name": "my_flow",
    "queue": "default",
    "steps": [
        {"name": "extract", "job": "extract", "assets": [{"key": "raw"}]},
        {
            "name": "report",
            "job": "report",
            "needs": ["extract"],
            "options": {"attempts": 3},
            "assets": [{"key": "report", "description": "The purpose of the flow."}],
        },
    ],
}


class GlideMQFlowScaffolder(dg.Scaffolder[Any]):
    """Writes a ``defs.yaml`` with a flow of two steps."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """See ``dg scaffold defs``."""
        dg.scaffold_component(request, EXAMPLE)


@dataclass
class GlideMQFlowStepCheck(dg.Resolvable):
    """An asset check that the result of a step determines; see ``GlideMQCheck``.

    Attributes:
        name: Name of the check.
        step: The step whose asset is checked; by default the step that has the check.
        blocking: Whether the steps and assets downstream do not run if the check does not pass.
        severity: Severity of a failure: ``ERROR`` or ``WARN``.
        description: Description in the UI.
    """

    name: str = "quality"
    step: str | None = None
    blocking: bool = False
    severity: Literal["ERROR", "WARN"] = "ERROR"
    description: str | None = None


@dataclass
class GlideMQFlowStep(dg.Resolvable):
    """One node of the flow; it becomes one job.

    Attributes:
        name: Name of the step, unique in the flow.
        job: The name of the handler; by default the name of the step.
        queue: The queue of the job; by default the queue of the flow.
        needs: The steps that must end first.
        data: The data for the handler, ``ctx.data``: JSON, at most 1 MiB encoded.
        options: Job options as in a flow file: ``attempts``, ``timeout``, ``backoff``, ``priority`` and
            others.
        on_failure: The effect of its failure on the steps after it: ``fail``, ``ignore`` or ``skip``.
        assets: The asset that the step materializes, at most one.
        checks: The asset checks that its result determines.
    """

    name: str
    job: str | None = None
    queue: str | None = None
    needs: Sequence[str] = ()
    data: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)
    on_failure: str | None = None
    assets: Sequence[dg.ResolvedAssetSpec] = ()
    checks: Sequence[GlideMQFlowStepCheck] = ()


@dg.scaffold_with(GlideMQFlowScaffolder)
@dataclass
class GlideMQFlowComponent(dg.Component, dg.Resolvable):
    """One flow of jobs behind one Dagster step; each of its steps may materialize an asset.

    Loading the component opens no connection. Steps without dependents, and steps with checks, always become
    assets, named after the step. All assets have the same partitions.

    Attributes:
        name: Name of the flow and of the Dagster step.
        steps: The steps, in any order, without cycles.
        queue: The queue of steps without one.
        partition_field: Adds the partition key to the data of each step under this name. The data must then
            be mappings, or omitted.
        partitions_per_run: The max number of partitions in one run of a backfill, which form one flow. None:
            all. More than one requires ``partition_field``.
        check_workers: Add an asset check that live workers serve all steps, see
            ``build_glidemq_workers_check``; it belongs to the asset of the last step that has one.
        resource_key: Key of the ``GlideMQResource``.
    """

    name: str
    steps: Sequence[GlideMQFlowStep]
    queue: str = "default"
    partition_field: str | None = None
    partitions_per_run: int | None = 1
    check_workers: bool = False
    resource_key: str = "glidemq"

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002  Dagster's signature
        """The assets of the flow.

        Raises:
            InvalidFlow (CycleError, DuplicateNode, UnknownDependency): The flow cannot run as written.
            ConfigurationError: The assets or partitions are inconsistent.
        """
        assets = self.build_assets()
        checks = [self._workers_check(assets)] if self.check_workers else []
        return dg.Definitions(assets=[assets], asset_checks=checks)

    def build_flow(self, partition_key: str | None = None) -> FlowSpec:
        """The flow of a run. Override this method to change payloads or add labels.

        Raises:
            InvalidFlow: A field has the wrong type; the message lists at most ten places.
            ConfigurationError: The data of a step has no place for the partition key.
        """
        nodes = [
            {
                "name": step.name,
                "queue": step.queue or self.queue,
                "job": step.job or step.name,
                "data": self._data(step, partition_key),
                "after": list(step.needs),
                "options": dict(step.options),
                **({"on_failure": step.on_failure} if step.on_failure else {}),
            }
            for step in self.steps
        ]
        return FlowSpec.from_dict({"name": self.name, "nodes": nodes})

    def build_assets(self) -> dg.AssetsDefinition:
        """The assets and checks of the flow.

        Raises:
            InvalidFlow, ConfigurationError: See ``build_defs``.
        """
        specs = {step.name: self._spec(step) for step in self.steps if step.assets}
        partitions = self._partitions(list(specs.values()))
        has_field = partitions is not None and self.partition_field is not None
        return glidemq_flow_assets(
            flow=self.build_flow("" if has_field else None),
            build_partition=(lambda _context, key: self.build_flow(key)) if has_field else None,
            asset_specs={name: spec.replace_attributes(partitions_def=None) for name, spec in specs.items()},
            checks=[
                GlideMQCheck(
                    step.name,
                    check.name,
                    asset=check.step,
                    blocking=check.blocking,
                    severity=dg.AssetCheckSeverity(check.severity),
                    description=check.description,
                )
                for step in self.steps
                for check in step.checks
            ],
            name=self.name,
            partitions_def=partitions,
            backfill_policy=None if partitions is None else _policy(self.partitions_per_run),
            resource_key=self.resource_key,
        )

    def _workers_check(self, assets: dg.AssetsDefinition) -> dg.AssetChecksDefinition:
        """The check that live workers serve all steps, on the asset of the last step that has one."""
        keys = {spec.metadata["glidemq/node"]: spec.key for spec in assets.specs}
        last = [keys[step.name] for step in self.steps if step.name in keys][-1]
        return build_glidemq_workers_check(
            asset=last, flows=[self.build_flow()], resource_key=self.resource_key
        )

    def _data(self, step: GlideMQFlowStep, partition_key: str | None) -> Any:
        if self.partition_field is None or partition_key is None:
            return step.data
        if not isinstance(step.data, Mapping | None):
            raise ConfigurationError(
                f"flow {self.name} has a partition_field, so the data of step {step.name} must be a mapping"
            )
        return {**(step.data or {}), self.partition_field: partition_key}

    def _spec(self, step: GlideMQFlowStep) -> dg.AssetSpec:
        if len(step.assets) > 1:
            raise ConfigurationError(
                f"step {step.name} of flow {self.name} has {len(step.assets)} assets, and can have one"
            )
        return step.assets[0]

    def _partitions(self, specs: Sequence[dg.AssetSpec]) -> Any:
        found = [spec.partitions_def for spec in specs if spec.partitions_def is not None]
        if any(one != found[0] for one in found):
            raise ConfigurationError(f"the assets of flow {self.name} must have the same partitions")
        if self.partition_field is not None and not found:
            raise ConfigurationError(
                f"flow {self.name} has a partition_field, but none of its assets has a partitions_def"
            )
        return found[0] if found else None


def _policy(partitions: int | None) -> dg.BackfillPolicy:
    return dg.BackfillPolicy.single_run() if partitions is None else dg.BackfillPolicy.multi_run(partitions)
