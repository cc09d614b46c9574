"""Asset checks that nodes of a flow evaluate, a check for live workers, and the metadata of nodes."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

import dagster as dg

from dagster_glidemq.connection import GlideMQConnection
from dagster_glidemq.durations import in_seconds
from glidemq_orchestrate import FlowProducer, FlowSpec, check_flow
from glidemq_orchestrate.errors import (
    ConfigurationError,
    GlideMQError,
    HandlerNotFound,
    QueueNotServed,
    WorkersMissing,
)
from glidemq_orchestrate.flows import NodeStatus
from glidemq_orchestrate.jobs.attempt import NOT_PASSED, has_passed
from glidemq_orchestrate.runs import Json, Patience, in_text, json_size

Metadata = dict[str, Any]


@dataclass(frozen=True, slots=True)
class GlideMQCheck:
    """An asset check that a node of a flow evaluates.

    It passes when the node completes, unless the result contains another verdict: ``False``, ``{"passed":
    false}``, or such a part in ``{"checks": [{"name", "passed", "severity", "metadata"}, ...]}``. If a node
    has several checks, each uses the part with its name; a check without such a part uses the whole result.

    If the node fails, its checks fail; if it is skipped or cancelled, they have no result.

    Attributes:
        node: The node that evaluates the check.
        name: Name of the check.
        asset: The node whose asset is checked; None: the node itself.
        blocking: If the check does not pass, the dependents of the node and the assets downstream of the flow
            do not run. The node gets ``JobOptions(must_pass=True)``, so each of its parts blocks; give a part
            that should only warn ``"severity": "WARN"``. A Node.js worker must fail the job instead.
        severity: Severity of a failure, unless the part of the result has its own ``severity``.
        description: Description in the UI.
    """

    node: str
    name: str = "quality"
    asset: str | None = None
    blocking: bool = False
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR
    description: str | None = None

    @property
    def asset_node(self) -> str:
        """The node whose asset is checked."""
        return self.asset or self.node

    def spec(self, key: dg.AssetKey) -> dg.AssetCheckSpec:
        """The specification of the check for Dagster."""
        return dg.AssetCheckSpec(
            self.name,
            asset=key,
            blocking=self.blocking,
            description=self.description,
            metadata={"glidemq/node": self.node},
        )

    def result(self, key: dg.AssetKey, node: NodeStatus, result: Json) -> dg.AssetCheckResult | None:
        """The check result from an ended node; None if there is none."""
        if node.state == "completed" or node.reason == NOT_PASSED:
            found = result if node.state == "completed" else node.progress
            part = self._part(found)
            return dg.AssetCheckResult(
                asset_key=key,
                check_name=self.name,
                passed=has_passed(_without_severity(part)),
                severity=self._severity(part),
                metadata=_metadata(part),
            )
        if node.state != "failed" or node.reason.startswith(("upstream failed: ", "cancelled: ")):
            return None
        return dg.AssetCheckResult(
            asset_key=key,
            check_name=self.name,
            passed=False,
            severity=self.severity,
            metadata={"reason": dg.MetadataValue.text(in_text(node.reason))},
        )

    def _part(self, result: Json) -> Json:
        checks = result.get("checks") if isinstance(result, dict) else None
        parts = checks if isinstance(checks, list) else []
        named = [part for part in parts if isinstance(part, dict) and part.get("name") == self.name]
        return named[0] if named else result

    def _severity(self, part: Json) -> dg.AssetCheckSeverity:
        severity = str(part.get("severity", "")).upper() if isinstance(part, dict) else ""
        return {
            "WARN": dg.AssetCheckSeverity.WARN,
            "WARNING": dg.AssetCheckSeverity.WARN,
            "ERROR": dg.AssetCheckSeverity.ERROR,
        }.get(severity, self.severity)


def _without_severity(part: Json) -> Json:
    return (
        {name: value for name, value in part.items() if name != "severity"}
        if isinstance(part, dict)
        else part
    )


def _metadata(part: Json) -> Metadata:
    own: Any = part.get("metadata") if isinstance(part, dict) else None
    found = result_metadata(part)
    for name, value in (own if isinstance(own, dict) else {}).items():
        found |= {str(name): one for one in result_metadata(value, "value").values()}
    return found


def with_blocking(flow: FlowSpec, checks: Sequence[GlideMQCheck]) -> FlowSpec:
    """The flow whose nodes with blocking checks fail if the checks do not pass."""
    blocking = {check.node for check in checks if check.blocking}
    nodes = [
        replace(node, options=replace(node.options, must_pass=True)) if node.name in blocking else node
        for node in flow.nodes
    ]
    return replace(flow, nodes=nodes) if blocking else flow


def check_checks(flow: FlowSpec, checks: Sequence[GlideMQCheck]) -> None:
    """Refuse checks of unknown nodes, and two checks with the same name for one asset.

    Raises:
        ConfigurationError: There is such a check.
    """
    known = {node.name for node in flow.nodes}
    if unknown := sorted({name for check in checks for name in (check.node, check.asset_node)} - known):
        raise ConfigurationError(f"flow {flow.name} has no node {', '.join(unknown)}, of which a check is")
    seen: set[tuple[str, str]] = set()
    for check in checks:
        if (check.asset_node, check.name) in seen:
            raise ConfigurationError(
                f"node {check.asset_node} of flow {flow.name} has two checks with the name {check.name}: "
                "give them different names"
            )
        seen.add((check.asset_node, check.name))


def by_node(checks: Sequence[GlideMQCheck]) -> Mapping[str, list[GlideMQCheck]]:
    """The checks that each node evaluates."""
    found: dict[str, list[GlideMQCheck]] = {}
    for check in checks:
        found.setdefault(check.node, []).append(check)
    return found


MAX_RESULT_BYTES: Final = 10_000
ROWS: Final = "dagster/row_count"


def about(node: NodeStatus) -> dict[str, str | int | float]:
    """Metadata about a node that has ended."""
    found: dict[str, str | int | float] = {
        "glidemq/node": node.name,
        "glidemq/queue": node.queue,
        "glidemq/job_id": node.job_id,
        "glidemq/attempts": node.attempts,
    }
    return found if node.seconds is None else {**found, "glidemq/run_seconds": node.seconds}


def node_metadata(
    node: NodeStatus, result: Json, *, flow_id: str, link: str, ready_at: datetime | None
) -> Metadata:
    """The metadata of the asset of a node.

    Args:
        node: The node, which has completed.
        result: Its result; ``{"rows": 3}`` is the number of rows of the asset.
        flow_id: The id of its flow.
        link: The link to the flow, or "".
        ready_at: When the node could have started; None: unknown.
    """
    metadata: Metadata = {"glidemq/flow_id": flow_id, **about(node)}
    if node.worker is not None:
        metadata["glidemq/worker"] = node.worker
    if link:
        metadata["glidemq/flow"] = dg.MetadataValue.url(link)
    times = {"glidemq/started_at": node.started_at, "glidemq/finished_at": node.finished_at}
    metadata |= {name: dg.MetadataValue.timestamp(at) for name, at in times.items() if at is not None}
    if ready_at is not None and node.started_at is not None:
        metadata["glidemq/queued_seconds"] = max((node.started_at - ready_at).total_seconds(), 0.0)
    rows = result.get("rows") if isinstance(result, dict) else None
    if isinstance(rows, int) and not isinstance(rows, bool):
        metadata[ROWS] = rows
    return metadata | result_metadata(result)


def result_metadata(result: Json, name: str = "glidemq/result") -> Metadata:
    """The result, unless it is None or too large for an event log."""
    if result is None or json_size(result) > MAX_RESULT_BYTES:
        return {}
    if isinstance(result, dict | list):
        return {name: dg.MetadataValue.json(result)}
    return {name: dg.MetadataValue.text(json.dumps(result))}


NO_WORKER: Final = "no live worker"


def build_glidemq_workers_check(  # noqa: PLR0913  keyword-only, most have defaults
    *,
    asset: dg.AssetsDefinition | dg.AssetKey | str | Iterable[str],
    flows: Iterable[FlowSpec],
    name: str = "workers",
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.WARN,
    blocking: bool = False,
    resource_key: str = "glidemq",
) -> dg.AssetChecksDefinition:
    """Build an asset check that live workers serve every queue and have a handler for every job of flows.

    It runs when its asset is materialized, in a separate step, or alone in a job with the selection
    ``dagster.AssetSelection.checks(check)``. Its metadata has a table of missing workers and handlers. A Node
    worker of glide-mq does not list its handlers and is assumed to have all. The check reads only the current
    state: it changes nothing and does not wait. If the server cannot be reached, its step fails, and the last
    result of the check stays.

    Args:
        asset: The asset that the check belongs to: its key, or an ``AssetsDefinition`` with a single one.
        flows: The flows; names, queues and jobs of their nodes count, payloads do not.
        name: Name of the check.
        severity: Severity of a failure.
        blocking: Whether downstream assets must wait for the check to pass; requires the severity ``ERROR``.
        resource_key: Key of the ``GlideMQResource``.

    Raises:
        ConfigurationError: No flow was given.
        InvalidFlow: A flow cannot run as written.
    """
    jobs: dict[str, set[str]] = defaultdict(set)
    for spec in flows:
        for node in check_flow(spec).nodes:
            jobs[node.queue].add(node.job)
    if not jobs:
        raise ConfigurationError(f"check {name} has no flows to check")
    queues = ", ".join(sorted(jobs))

    @dg.asset_check(
        asset=asset
        if isinstance(asset, str | dg.AssetKey | dg.AssetsDefinition)
        else dg.AssetKey(list(asset)),
        name=name,
        blocking=blocking,
        description=f"Live workers serve {queues} and have a handler for every job.",
        required_resource_keys={resource_key},
    )
    def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        missing = _missing(getattr(context.resources, resource_key), jobs)
        return dg.AssetCheckResult(
            passed=not missing,
            severity=severity,
            description="; ".join(map(_sentence, missing)) or "live workers serve everything",
            metadata={"glidemq/queues": queues, **({"glidemq/missing": _table(missing)} if missing else {})},
        )

    return check


def _missing(glidemq: GlideMQConnection, jobs: Mapping[str, set[str]]) -> list[WorkersMissing]:
    """The missing workers and handlers of each queue, if any."""
    patience = Patience(in_seconds("patience", glidemq.patience))
    found: list[WorkersMissing] = []
    with FlowProducer(glidemq.settings()) as producer:
        for queue in sorted(jobs):
            try:
                patience(partial(producer.check_workers, {queue: jobs[queue]}))
            except WorkersMissing as exc:
                found.append(exc)
            except GlideMQError as exc:
                raise dg.Failure(description=str(exc), allow_retries=exc.retryable) from exc
    return found


def _sentence(missing: WorkersMissing) -> str:
    if isinstance(missing, HandlerNotFound):
        return "; ".join(
            f"no worker of queue {queue} has a handler for {', '.join(jobs)}"
            for queue, jobs in missing.missing.items()
        )
    return "; ".join(f"no worker serves queue {queue}" for queue in getattr(missing, "queues", []))


def _table(missing: Sequence[WorkersMissing]) -> dg.TableMetadataValue:
    """A row for each queue without a worker, and for each job without a handler."""
    rows: list[dict[str, str]] = []
    for one in missing:
        if isinstance(one, QueueNotServed):
            rows += [{"queue": queue, "missing": NO_WORKER, "known": ""} for queue in one.queues]
        elif isinstance(one, HandlerNotFound):
            rows += [
                {"queue": queue, "missing": f"handler {job}", "known": ", ".join(one.known[queue])}
                for queue, jobs in one.missing.items()
                for job in jobs
            ]
    schema = dg.TableSchema([dg.TableColumn(column) for column in ("queue", "missing", "known")])
    return dg.MetadataValue.table([dg.TableRecord(row) for row in rows], schema=schema)
