"""glidemq_flow_assets: a flow as one multi-asset, whose assets appear as their nodes complete."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

import dagster as dg

from dagster_glidemq.asset_flow import (
    AssetPlan,
    Builder,
    BuiltFlow,
    FlowBuilder,
    Key,
    NodePartition,
    PartitionBuilder,
    identifier,
)
from dagster_glidemq.checks import GlideMQCheck, Metadata, by_node, check_checks, node_metadata
from dagster_glidemq.reexecution import flow_id_for, is_retry
from dagster_glidemq.resource import GlideMQResource
from glidemq_orchestrate import FlowSpec
from glidemq_orchestrate.errors import ConfigurationError, GlideMQError
from glidemq_orchestrate.flows import FlowStatus, NodeStatus
from glidemq_orchestrate.runs import Changes, Duration, Json

FlowIdFunction = Callable[[dg.AssetExecutionContext], str | None]
AssetResult = dg.MaterializeResult[Any] | dg.AssetCheckResult


@dataclass(slots=True)
class SelectedAssets:
    """The assets and checks of which a run emits events."""

    assets: set[dg.AssetKey]
    checks: set[dg.AssetCheckKey]

    @classmethod
    def of(cls, context: dg.AssetExecutionContext) -> Self:
        """The selection of a run."""
        return cls(set(context.selected_asset_keys), set(context.selected_asset_check_keys))

    def nodes(self, plan: AssetPlan, checks: Sequence[GlideMQCheck]) -> set[str]:
        """The nodes that the selection needs."""
        found = {node for node, key in plan.keys.items() if key in self.assets}
        return found | {check.node for check in checks if self.has(plan, check)}

    def has(self, plan: AssetPlan, check: GlideMQCheck) -> bool:
        """Whether a check is selected."""
        return dg.AssetCheckKey(plan.keys[check.asset_node], check.name) in self.checks


@dataclass(slots=True)
class Emitter:
    """The events of one run.

    Attributes:
        context: The step.
        plan: The assets of the flow.
        selection: The assets and checks to emit.
        checks: All checks of the flow.
        places: The declared node and partition of each node of the run's flow.
        emitted: Assets and partitions that an earlier try of the step has emitted.
        link: The link to a flow, or "".
    """

    context: dg.AssetExecutionContext
    plan: AssetPlan
    selection: SelectedAssets
    checks: Sequence[GlideMQCheck]
    places: Mapping[str, NodePartition]
    emitted: set[tuple[dg.AssetKey, str | None]]
    link: Callable[[str], str]
    _names: dict[NodePartition, str] = field(init=False)
    _ended: dict[str, NodeStatus] = field(init=False, default_factory=dict)
    _open: dict[str, set[str]] = field(init=False)
    _followers: dict[str, list[str]] = field(init=False, default_factory=dict)
    _parts: dict[GlideMQCheck, list[dg.AssetCheckResult | None]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Determine which nodes must be emitted before which others."""
        self._names = {place: name for name, place in self.places.items()}
        wanted = self.selection.nodes(self.plan, self.checks)
        before = {node: self._before(node, wanted) for node in wanted}
        self._open = {}
        for name, place in self.places.items():
            if place.node in wanted:
                waits = {self._names[NodePartition(node, place.partition)] for node in before[place.node]}
                self._open[name] = waits
                for one in waits:
                    self._followers.setdefault(one, []).append(name)

    def events(self, change: Changes) -> Iterator[AssetResult]:
        """The events that are due now."""
        again = [node for node in change.ended if node.name in self._ended and node.name not in self._open]
        self._ended |= {node.name: node for node in change.ended}
        due = self._due(change)
        shown = [node for node in (*due, *again) if self._is_emitted(node)]
        results = change.results([node.name for node in shown if node.state == "completed"]) if shown else {}
        for node in due:
            yield from self._outcome(node, results.get(node.name), change.status)
        for node in again:
            if node.state == "completed" and self.places[node.name].node in self.plan.keys:
                self._log(node, self._metadata(node, results.get(node.name), change.status))

    def _before(self, node: str, wanted: set[str]) -> set[str]:
        """The wanted nodes to emit before a node."""
        mine = by_node(self.checks).get(node, ())
        assets = {check.asset_node for check in mine} & wanted - {node}
        return {*self.plan.nearest(node, wanted), *assets}

    def _due(self, change: Changes) -> list[NodeStatus]:
        """The ended nodes that wait for no other; at the end of the flow, all ended nodes."""
        due: list[NodeStatus] = []
        todo = [node.name for node in change.ended if node.name in self._open]
        while todo:
            name = todo.pop(0)
            if name in self._ended and name in self._open and not self._open[name]:
                del self._open[name]
                due.append(self._ended[name])
                for follower in self._followers.get(name, ()):
                    self._open.get(follower, set()).discard(name)
                    todo.append(follower)
        if change.status.state.is_terminal:
            rest = [name for name in self._open if name in self._ended]
            due += [self._ended[name] for name in rest]
            for name in rest:
                del self._open[name]
        return due

    def _is_emitted(self, node: NodeStatus) -> bool:
        place = self.places[node.name]
        return place.node in self.plan.keys or any(check.node == place.node for check in self.checks)

    def _outcome(self, node: NodeStatus, result: Json, status: FlowStatus) -> Iterator[AssetResult]:
        place = self.places[node.name]
        checks = by_node(self.checks).get(place.node, ())
        found = {check: check.result(self.plan.keys[check.asset_node], node, result) for check in checks}
        # A blocking check fails its node, although the handler has completed.
        did_run = node.state == "completed" or any(
            one is not None and "reason" not in (one.metadata or {}) for one in found.values()
        )
        key = self.plan.keys.get(place.node)
        if did_run and key in self.selection.assets and (key, place.partition) not in self.emitted:
            value = result if node.state == "completed" else node.progress
            metadata = self._metadata(node, value, status)
            if place.partition is None:
                yield dg.MaterializeResult(asset_key=key, metadata=metadata)
            else:
                self._log(node, metadata)
        for check, one in found.items():
            if self.selection.has(self.plan, check):
                yield from self._check(check, one, place)

    def _check(
        self, check: GlideMQCheck, one: dg.AssetCheckResult | None, place: NodePartition
    ) -> Iterator[dg.AssetCheckResult]:
        """The result of a check; in a run of several partitions, one for all of them, with the last one."""
        if place.partition is None:
            if one is not None:
                yield one
            return
        parts = self._parts.setdefault(check, [])
        if one is None:
            parts.append(None)
        else:
            marked = {**(one.metadata or {}), "glidemq/partition": dg.MetadataValue.text(place.partition)}
            parts.append(one._replace(metadata=marked))
        is_last = len(parts) == sum(other.node == place.node for other in self.places.values())
        results = [result for result in parts if result is not None]
        if is_last and results:
            failed = [result for result in results if not result.passed]
            names = [result.metadata["glidemq/partition"].value for result in failed]
            worst = (
                [one for one in failed if one.severity is dg.AssetCheckSeverity.ERROR] or failed or results
            )
            metadata = {**worst[0].metadata, "glidemq/failed_partitions": dg.MetadataValue.json(names)}
            yield worst[0]._replace(metadata=metadata)

    def _log(self, node: NodeStatus, metadata: Metadata) -> None:
        """Log an asset apart from the outputs of the step: one of several partitions, or a repeat."""
        place = self.places[node.name]
        key, partition = self.plan.keys[place.node], place.partition
        if partition is None and self.context.has_partition_key:
            partition = self.context.partition_key
        if key in self.selection.assets:
            self.context.log_event(dg.AssetMaterialization(key, partition=partition, metadata=metadata))

    def _metadata(self, node: NodeStatus, result: Json, status: FlowStatus) -> Metadata:
        return node_metadata(
            node,
            result,
            flow_id=status.id,
            link=self.link(status.id),
            ready_at=self._ready_at(node, status),
        )

    def _ready_at(self, node: NodeStatus, status: FlowStatus) -> datetime | None:
        """When a node could start; unknown if it was run again."""
        if node.reruns:
            return None
        ends = [self._ended[name].finished_at for name in node.after if name in self._ended]
        if len(ends) < len(node.after) or None in ends:
            return None
        return max((end for end in ends if end is not None), default=status.created_at)


def glidemq_flow_assets(  # noqa: PLR0913  keyword-only, all but the flow have defaults
    *,
    flow: FlowSpec,
    build: Builder | None = None,
    build_partition: PartitionBuilder | None = None,
    flow_id: FlowIdFunction | None = None,
    nodes: Iterable[str] = (),
    asset_keys: Mapping[str, Key] | None = None,
    asset_specs: Mapping[str, dg.AssetSpec] | None = None,
    key_prefix: Sequence[str] = (),
    deps: Sequence[dg.AssetKey | str] = (),
    quality: str | None = None,
    checks: Sequence[GlideMQCheck] = (),
    name: str | None = None,
    description: str | None = None,
    group_name: str | None = None,
    partitions_def: dg.PartitionsDefinition[str] | None = None,
    backfill_policy: dg.BackfillPolicy | None = None,
    timeout: Duration | None = None,
    retry_policy: dg.RetryPolicy | None = None,
    allow_retries: bool | None = None,
    config_schema: Mapping[str, Any] | None = None,
    op_tags: Mapping[str, Any] | None = None,
    pool: str | None = None,
    resource_key: str = "glidemq",
) -> dg.AssetsDefinition:
    """Build assets from a flow: one step runs it, and each chosen node materializes its asset on completion.

    Nodes without dependents are always chosen. A selection of assets and checks runs their nodes and the
    dependencies of these. A re-execution from failure keeps completed nodes, even if the flow was fixed in
    between; a re-execution of everything runs all selected nodes again. An asset whose node is skipped or
    cancelled is not materialized. Each asset costs Dagster about 24 ms of CPU time: if nobody looks at a
    thousand nodes one by one, choose a few that represent the rest, or run the flow in an op
    (``GlideMQResource.run_flow``).

    Args:
        flow: The flow; its nodes determine the assets.
        build: Builds the flow of one run, with the nodes and dependencies of ``flow`` and other payloads. It
            must build an equal flow in every re-execution from failure: nodes whose payload depends on the
            time or on the run id run again. Use ``root_run_id(context)`` instead.
        build_partition: Builds the flow of one partition from its key; instead of ``build``. A run of several
            partitions (see ``backfill_policy``) combines their nodes, named ``node[key]``, in one flow. Each
            partition of an asset is materialized with its own metadata as soon as its node completes.
        flow_id: Returns the id of the flow; None for the default, derived from run, step and name.
        nodes: Additional nodes that become assets.
        asset_keys: Asset keys by node name; nodes named here are chosen too. Other keys are the node's name
            with ``_`` for characters that Dagster does not allow.
        asset_specs: Other fields of the assets by node name: description, owners, tags, automation condition.
            Their keys are used, and nodes named here are chosen too.
        key_prefix: The prefix of keys that are not given.
        deps: Assets that the flow reads; every asset without another dependency in the flow gets them.
        quality: A node whose result is a blocking check ``quality`` of its own asset; short for
            ``checks=[GlideMQCheck(quality, blocking=True)]``.
        checks: Asset checks that nodes evaluate. Their assets are chosen too.
        name: Name of the step; by default the name of the flow.
        description: Description of the step.
        group_name: Group of the assets.
        partitions_def: Partitions; ``build`` gets the key from its context.
        backfill_policy: How many partitions one run of a backfill has; more than one requires
            ``build_partition``, unless the flow is the same for all partitions.
        timeout: Time after which the flow is cancelled and the step fails; None: no limit.
        retry_policy: Retry policy of the step. A retry runs the failed nodes again, and emits only events
            that were not emitted before.
        allow_retries: Whether the retry policy applies to a flow that has failed; by default it does. With
            False it only applies if the server or workers are unavailable.
        config_schema: Config of the step, for ``build``: ``context.op_execution_context.op_config``.
        op_tags: Tags of the step, such as those of an executor.
        pool: Pool of the step.
        resource_key: Key of the ``GlideMQResource``.

    Raises:
        ConfigurationError: A node is unknown, two nodes have the same key, or arguments contradict each
            other.
        InvalidFlow: The flow cannot run as written.

    Example:
        .. code-block:: python

            assets = glidemq_flow_assets(flow=spec, nodes=["clean"], quality="check")
            defs = dg.Definitions(
                assets=[assets], resources={"glidemq": GlideMQResource(url=dg.EnvVar("GLIDEMQ_URL"))}
            )
    """
    checks = [*checks, *([GlideMQCheck(quality, blocking=True)] if quality else [])]
    check_checks(flow, checks)
    specs, keys = dict(asset_specs or {}), dict(asset_keys or {})
    _check_keys(specs, keys)
    builder = FlowBuilder(flow, build, build_partition)
    builder.check(partitions_def, backfill_policy)
    plan = AssetPlan.of(
        flow,
        nodes if isinstance(nodes, str) else {*nodes, *(check.asset_node for check in checks)},
        {**{node: spec.key for node, spec in specs.items()}, **keys},
        key_prefix,
    )
    retries = allow_retries if allow_retries is not None or retry_policy is None else True

    @dg.multi_asset(
        name=name or identifier(flow.name),
        description=description,
        specs=plan.specs(specs, deps, group_name),
        check_specs=[check.spec(plan.keys[check.asset_node]) for check in checks],
        can_subset=True,
        partitions_def=partitions_def,
        backfill_policy=backfill_policy,
        retry_policy=retry_policy,
        config_schema=config_schema,
        op_tags=op_tags,
        pool=pool,
        required_resource_keys={resource_key},
    )
    def run(context: dg.AssetExecutionContext) -> Iterator[AssetResult]:
        glidemq: GlideMQResource = getattr(context.resources, resource_key)
        selection = SelectedAssets.of(context)
        made = builder.make(context, plan, checks)
        own_id = (flow_id(context) if flow_id is not None else None) or flow_id_for(context, flow.name)
        former = _former(context, glidemq, flow.name, own_id, made) if is_retry(context) else set()
        emitter = Emitter(
            context=context,
            plan=plan,
            selection=selection,
            checks=checks,
            places=made.places,
            emitted=_emitted(context),
            link=lambda of: glidemq.link(flow_id=of),
        )
        for change in glidemq.stream_flow(
            context,
            made.part(plan.needed(selection.nodes(plan, checks) | former)),
            flow_id=own_id,
            timeout=timeout,
            allow_retries=retries,
            checks=made.names({check.node for check in checks}),
        ):
            yield from emitter.events(change)

    return run


def _former(
    context: dg.AssetExecutionContext,
    glidemq: GlideMQResource,
    flow_name: str,
    flow_id: str,
    made: BuiltFlow,
) -> set[str]:
    """The declared nodes of a flow that this run continues: a repair keeps those that completed."""
    try:
        existing = glidemq.continued_nodes(context, flow_name, flow_id=flow_id)
    except GlideMQError as exc:
        context.log.warning("the flow of the earlier run could not be read: %s", exc)
        return set()
    return {made.places[name].node for name in existing if name in made.places}


def _emitted(context: dg.AssetExecutionContext) -> set[tuple[dg.AssetKey, str | None]]:
    """The assets (with partitions, in a run of several) that an earlier try of the step has emitted."""
    if not context.op_execution_context.retry_number:
        return set()
    step = context.op_execution_context.get_step_execution_context().step.key
    is_of_several = context.has_partition_key is False and bool(context.assets_def.partitions_def)
    found: set[tuple[dg.AssetKey, str | None]] = set()
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION
    for entry in context.instance.all_logs(context.run.run_id, of_type=kind):
        event = entry.dagster_event
        if event is not None and event.step_key == step and event.asset_key is not None:
            found.add((event.asset_key, event.partition if is_of_several else None))
    return found


def _check_keys(specs: Mapping[str, dg.AssetSpec], keys: Mapping[str, Key]) -> None:
    """Refuse two keys for one node.

    Raises:
        ConfigurationError: A node has two keys.
    """
    for node in sorted(specs.keys() & keys.keys()):
        if dg.AssetKey.from_coercible(keys[node]) != specs[node].key:
            raise ConfigurationError(
                f"node {node} has one key in asset_keys and another in asset_specs: give one"
            )
