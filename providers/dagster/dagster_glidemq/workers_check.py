"""build_glidemq_workers_check: an asset check that live workers serve what flows need."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

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
from glidemq_orchestrate.runs import Patience

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
    """Make an asset check that live workers serve every queue and have a handler for every job of flows.

    It runs when its asset is materialized, in a step of its own, or alone in a job with the selection
    ``dagster.AssetSelection.checks(check)``. Its metadata has a table of what is missing. A worker of
    glide-mq in Node does not list its handlers and is assumed to have all. The check looks at this moment
    only: it changes nothing and waits for nobody. If the server cannot be reached, its step fails, and its
    last result stays.

    Args:
        asset: The asset that the check belongs to: its key, or an ``AssetsDefinition`` with a single one.
        flows: The flows; names, queues and jobs of their nodes count, payloads do not.
        name: Name of the check.
        severity: Of a result that did not pass.
        blocking: Whether assets downstream have to wait for the check to pass; needs the severity ``ERROR``.
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
        raise ConfigurationError(f"check {name} has no flows to look at")
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
    """What each queue lacks, if it lacks something."""
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
