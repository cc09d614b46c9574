"""glidemq_flow_assets: a flow as one multi-asset whose assets appear as their nodes complete."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import dagster as dg

from dagster_glidemq.identity import flow_id_for, is_retry
from dagster_glidemq.resource import GlideMQResource
from dagster_glidemq.watch import Changes
from glidemq_orchestrate import FlowSpec, NodeStatus, check_flow
from glidemq_orchestrate.codec import Json
from glidemq_orchestrate.errors import ConfigurationError, GlideMQError, InvalidFlow

Builder = Callable[[dg.AssetExecutionContext], FlowSpec]
Event = dg.MaterializeResult[Any] | dg.AssetCheckResult

MAX_RESULT_BYTES: Final = 10_000


def glidemq_flow_assets(  # noqa: PLR0913  keyword-only, all but the flow have defaults
    *,
    flow: FlowSpec,
    build: Builder | None = None,
    flow_id: Callable[[dg.AssetExecutionContext], str | None] | None = None,
    nodes: Iterable[str] = (),
    asset_keys: Mapping[str, dg.AssetKey | str | Sequence[str]] | None = None,
    key_prefix: Sequence[str] = (),
    deps: Sequence[dg.AssetKey | str] = (),
    quality: str | None = None,
    name: str | None = None,
    group_name: str | None = None,
    partitions_def: dg.PartitionsDefinition[str] | None = None,
    retry_policy: dg.RetryPolicy | None = None,
    config_schema: Mapping[str, Any] | None = None,
    resource_key: str = "glidemq",
) -> dg.AssetsDefinition:
    """Make assets from a flow: one step runs it, and each chosen node materializes its asset as it completes.

    Nodes that nothing waits for are always chosen. A selection of assets runs their nodes and what these
    depend on. A re-execution from failure keeps completed nodes, also when the flow was mended; one of
    everything runs the selected ones anew. A retry policy of the step repeats the events of completed
    assets, so give nodes ``attempts`` instead.

    Args:
        flow: The flow; its nodes determine the assets.
        build: Makes the flow of one run, with the nodes and dependencies of ``flow`` and other payloads. It
            must make an equal flow in every re-execution from failure: what depends on the time or the
            run's own id runs again. Build on ``root_run_id(context)``.
        flow_id: Returns the id of the flow; None for the default, derived from run, step and name.
        nodes: Additional nodes that become assets.
        asset_keys: Keys of chosen nodes by node name; names in here are chosen too. Other keys are the
            node's name with ``_`` for characters that Dagster does not allow.
        key_prefix: First parts of keys that are not in ``asset_keys``.
        deps: Assets that the flow reads; every asset without another dependency in the flow gets them.
        quality: A node whose result is a blocking asset check: it passes when the node completed, unless
            its result is ``False`` or ``{"passed": false}``, or has a false ``passed`` in
            ``{"checks": [...]}``.
        name: Name of the step; the flow's by default.
        group_name: Group of the assets.
        partitions_def: Partitions; ``build`` gets the key from its context.
        retry_policy: Retry policy of the step.
        config_schema: Config of the step, for ``build``: ``context.op_execution_context.op_config``.
        resource_key: Key of the ``GlideMQResource``.

    Raises:
        ConfigurationError: A node is unknown, or two nodes would have one key.
        InvalidFlow: The flow cannot run as written.

    Example:
        .. code-block:: python

            assets = glidemq_flow_assets(flow=spec, nodes=["clean"], quality="check")
            defs = dg.Definitions(
                assets=[assets], resources={"glidemq": GlideMQResource(url=dg.EnvVar("GLIDEMQ_URL"))}
            )
    """
    plan = _plan(flow, {*nodes, *([quality] if quality else [])}, asset_keys or {}, key_prefix)
    checks = [dg.AssetCheckSpec("quality", asset=plan.keys[quality], blocking=True)] if quality else []

    @dg.multi_asset(
        name=name or _identifier(flow.name),
        specs=[plan.asset_spec(node, deps, group_name) for node in plan.keys],
        check_specs=checks,
        can_subset=True,
        partitions_def=partitions_def,
        retry_policy=retry_policy,
        config_schema=config_schema,
        required_resource_keys={resource_key},
    )
    def run(context: dg.AssetExecutionContext) -> Iterator[Event]:
        glidemq: GlideMQResource = getattr(context.resources, resource_key)
        wanted = plan.wanted(context)
        whole = flow if build is None else build(context)
        if plan.shape != (shape := _shape(whole)):
            changed = sorted({node for node, _ in plan.shape.items() ^ shape.items()})
            raise InvalidFlow(
                f"build made a flow with other nodes or dependencies than declared: see {', '.join(changed)}"
            )
        own_id = flow_id(context) if flow_id is not None else None
        name = own_id or flow_id_for(context, whole.name)
        former = _former_nodes(context, glidemq, whole.name, name) if is_retry(context) else set()
        spec = plan.part(whole, wanted, former)
        emitter = _Emitter(plan, wanted, quality)
        for change in glidemq.stream_flow(context, spec, flow_id=name):
            yield from emitter.events(glidemq, change)

    return run


@dataclass(frozen=True)
class _Plan:
    """A flow as assets: its nodes in topological order, and the keys of the chosen ones."""

    shape: dict[str, tuple[str, ...]]
    keys: dict[str, dg.AssetKey]
    ancestors: dict[str, set[str]]
    queues: dict[str, str]

    def asset_spec(
        self, node: str, deps: Sequence[dg.AssetKey | str], group_name: str | None
    ) -> dg.AssetSpec:
        inside = [self.keys[name] for name in self._nearest(node)]
        return dg.AssetSpec(
            self.keys[node],
            deps=inside or deps,
            skippable=True,
            group_name=group_name,
            kinds={"glidemq"},
            metadata={"glidemq/node": node, "glidemq/queue": self.queues[node]},
        )

    def _nearest(self, node: str) -> list[str]:
        """The chosen nodes it depends on, directly or through nodes that are not chosen."""
        found: dict[str, None] = {}
        open_nodes, seen = list(self.shape[node]), set(self.shape[node])
        while open_nodes:
            dependency = open_nodes.pop(0)
            if dependency in self.keys:
                found[dependency] = None
                continue
            further = [name for name in self.shape[dependency] if name not in seen]
            seen.update(further)
            open_nodes.extend(further)
        return list(found)

    def wanted(self, context: dg.AssetExecutionContext) -> set[str]:
        """The nodes whose assets or checks are selected."""
        selected = {*context.selected_asset_keys, *(c.asset_key for c in context.selected_asset_check_keys)}
        return {node for node, key in self.keys.items() if key in selected}

    def part(self, whole: FlowSpec, wanted: set[str], former: set[str]) -> FlowSpec:
        """The wanted nodes, those of the flow that the run goes on with, and the ancestors of both.

        So a repair keeps what completed, also of assets that are not selected this time.
        """
        chosen = wanted | (former & set(self.shape))
        needed = {name for node in chosen for name in (node, *self.ancestors[node])}
        return replace(whole, nodes=[node for node in whole.nodes if node.name in needed])


def _plan(
    flow: FlowSpec,
    nodes: set[str],
    asset_keys: Mapping[str, dg.AssetKey | str | Sequence[str]],
    key_prefix: Sequence[str],
) -> _Plan:
    checked = check_flow(flow).nodes
    shape = {node.name: node.after for node in checked}
    if unknown := sorted({*nodes, *asset_keys} - set(shape)):
        raise ConfigurationError(f"flow {flow.name} has no node {', '.join(unknown)}")
    keys: dict[str, dg.AssetKey] = {}
    for node in checked:
        if node.name in asset_keys:
            keys[node.name] = dg.AssetKey.from_coercible(asset_keys[node.name])
        elif node.name in nodes or not node.dependents:
            keys[node.name] = dg.AssetKey([*key_prefix, _identifier(node.name)])
    if len(set(keys.values())) < len(keys):
        raise ConfigurationError(
            f"two nodes of flow {flow.name} have the same asset key; set different ones in asset_keys"
        )
    ancestors: dict[str, set[str]] = {}
    for name, after in shape.items():
        ancestors[name] = {*after, *(further for dependency in after for further in ancestors[dependency])}
    return _Plan(shape, keys, ancestors, {node.name: node.queue for node in checked})


def _shape(flow: FlowSpec) -> dict[str, tuple[str, ...]]:
    return {node.name: node.after for node in check_flow(flow).nodes}


def _former_nodes(
    context: dg.AssetExecutionContext, glidemq: GlideMQResource, flow_name: str, flow_id: str
) -> set[str]:
    """The nodes of a flow that this run goes on with."""
    try:
        goes_on = glidemq.goes_on(context, flow_name, flow_id=flow_id)
        return glidemq.existing_nodes(flow_id) if goes_on else set()
    except GlideMQError as exc:
        context.log.warning("the flow of the earlier run could not be read: %s", exc)
        return set()


class _Emitter:
    """Turns ended nodes into events, each asset once and after the assets it depends on."""

    def __init__(self, plan: _Plan, wanted: set[str], quality: str | None) -> None:
        self._plan, self._quality = plan, quality
        self._open = {node: None for node in plan.keys if node in wanted}

    def events(self, glidemq: GlideMQResource, change: Changes) -> Iterator[Event]:
        states = {node.name: node for node in change.nodes}
        ready = [node for node in list(self._open) if self._is_ready(node, states)]
        if not ready:
            return
        with glidemq.get_client() as producer:
            results = producer.get(change.status.id).results()
        for name in ready:
            node = states[name]
            del self._open[name]
            yield from self._outcome(node, results.get(name), change.status.id)

    def _is_ready(self, name: str, states: Mapping[str, NodeStatus]) -> bool:
        """Whether a node and all its ancestors have ended in this snapshot, which takes several reads."""
        needed = (name, *(node for node in self._plan.ancestors[name] if node in self._open))
        return all(node in states and states[node].state.is_terminal for node in needed)

    def _outcome(self, node: NodeStatus, result: Json, flow_id: str) -> Iterator[Event]:
        key = self._plan.keys[node.name]
        completed = node.state == "completed"
        if completed:
            yield dg.MaterializeResult(asset_key=key, metadata=_metadata(node, result, flow_id))
        if node.name == self._quality and (completed or not node.reason.startswith("upstream failed: ")):
            yield dg.AssetCheckResult(
                asset_key=key,
                check_name="quality",
                passed=completed and has_passed(result),
                metadata=_result_metadata(result) if completed else {"reason": node.reason},
            )


def has_passed(result: Json) -> bool:
    """Whether the result of a quality node passes: unless it is explicitly false."""
    if isinstance(result, dict):
        checks = result.get("checks")
        parts = checks if isinstance(checks, list) else []
        return result.get("passed") is not False and not any(
            isinstance(part, dict) and part.get("passed") is False for part in parts
        )
    return result is not False


def _metadata(node: NodeStatus, result: Json, flow_id: str) -> dict[str, dg.MetadataValue]:
    metadata: dict[str, dg.MetadataValue] = {
        "glidemq/flow_id": dg.MetadataValue.text(flow_id),
        "glidemq/node": dg.MetadataValue.text(node.name),
        "glidemq/queue": dg.MetadataValue.text(node.queue),
        "glidemq/job_id": dg.MetadataValue.text(node.job_id),
        "glidemq/attempts": dg.MetadataValue.int(node.attempts),
    }
    times: dict[str, datetime | None] = {
        "glidemq/started_at": node.started_at,
        "glidemq/finished_at": node.finished_at,
    }
    metadata |= {name: dg.MetadataValue.timestamp(at) for name, at in times.items() if at is not None}
    if node.seconds is not None:
        metadata["glidemq/run_seconds"] = dg.MetadataValue.float(node.seconds)
    return {**metadata, **_result_metadata(result)}


def _result_metadata(result: Json) -> dict[str, dg.MetadataValue]:
    """The result, unless it is None or too large for an event log."""
    if result is None or len(json.dumps(result)) > MAX_RESULT_BYTES:
        return {}
    if isinstance(result, dict | list):
        return {"glidemq/result": dg.MetadataValue.json(result)}
    return {"glidemq/result": dg.MetadataValue.text(json.dumps(result))}


def _identifier(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", name)
