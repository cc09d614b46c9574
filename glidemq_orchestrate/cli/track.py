"""``glidemq track``: report every change of some jobs and flows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Annotated, Any

import typer

from glidemq_orchestrate.cli.job import job_row
from glidemq_orchestrate.cli.shell import (
    Prefix,
    QueueName,
    Url,
    errors,
    print_json,
    print_text,
    reports_errors,
)
from glidemq_orchestrate.clients.client import Client
from glidemq_orchestrate.clients.queue import Tracked, TrackedChange
from glidemq_orchestrate.errors import ConfigurationError, FlowNotFound, JobNotFound
from glidemq_orchestrate.shards import split_shard
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX


@reports_errors
def track(
    queue: QueueName,
    jobs: Annotated[
        list[str] | None, typer.Argument(metavar="[JOB_ID]...", help="Track these jobs, too.")
    ] = None,
    flows: Annotated[
        list[str] | None,
        typer.Option("--flow", metavar="FLOW_ID", help="Track this flow of the queue, too. Repeatable."),
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="Stop tracking these jobs and flows instead.")] = False,
    follow: Annotated[bool, typer.Option(help="Wait for changes.")] = True,
    url: Url = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Report every change of the tracked jobs and flows of a queue until Ctrl-C, also their removal.

    They stay tracked for everybody until --off. Without new ones, and without waiting: --no-follow.
    """
    if off and not (jobs or flows):
        raise typer.BadParameter("needs jobs, or flows with --flow", param_hint="--off")
    with Client(url, prefix=prefix) as client:
        place = client.queue(queue)
        known = {(one.kind, one.id) for one in place.tracked()} if off else set()
        for job_id in jobs or ():
            (place.untrack if off else place.track)(job_id)
        for flow_id in flows or ():
            _track_flow(client, queue, flow_id, off=off)
        if off or not follow:
            for one in place.tracked():
                _print(TrackedChange(one, None, place.now()), as_json=as_json)
            if off:
                _check_tracked(queue, jobs or (), flows or (), known)
            return
        if errors.is_terminal:
            errors.print(
                f"Waiting for changes in queue {queue}; Ctrl-C ends this.", markup=False, style="dim"
            )
        for change in place.watch_tracked():
            _print(change, as_json=as_json)


def _check_tracked(
    queue: str, jobs: Sequence[str], flows: Sequence[str], known: Collection[tuple[str, str]]
) -> None:
    """Raise an error for those that were not tracked."""
    if unknown := [job_id for job_id in jobs if ("job", job_id) not in known]:
        raise JobNotFound(f"queue {queue} did not track job {', '.join(unknown)}")
    if unknown := [flow_id for flow_id in flows if ("flow", flow_id) not in known]:
        raise FlowNotFound(f"queue {queue} did not track flow {', '.join(unknown)}")


def _track_flow(client: Client, queue: str, flow_id: str, *, off: bool) -> None:
    flow = client.flows.get(flow_id)
    if split_shard(flow.home)[0] != queue:
        raise ConfigurationError(
            f"flow {flow_id} belongs to queue {flow.home}, not {queue}. "
            f"Fix: glidemq track {flow.home} --flow {flow_id}"
        )
    if off:
        flow.untrack()
    else:
        flow.track()


def _print(change: TrackedChange, *, as_json: bool) -> None:
    if as_json:
        print_json(_row(change), indent=None)
        return
    now, before = change.now, change.before
    words = [change.at.astimezone().strftime("%H:%M:%S"), now.kind, now.id, str(now.state or "removed")]
    if before is not None and before.state == now.state:
        words.append("changed")
    print_text("  ".join(chain(words, _details(now))))


def _details(now: Tracked) -> list[str]:
    """What else is worth a look."""
    if now.flow is not None:
        return [
            f"{now.flow.total - now.flow.open}/{now.flow.total} nodes ended",
            *filter(None, [now.flow.reason]),
        ]
    job = now.job
    if job is None:
        return []
    found = [f"attempt {job.attempts} of {job.max_attempts}"] if job.attempts else []
    found += [] if job.progress is None else [f"progress {job.progress}"]
    return found + ([job.failed_reason] if job.failed_reason else [])


def _row(change: TrackedChange) -> dict[str, Any]:
    now, before = change.now, change.before
    return {
        "at": change.at,
        "kind": now.kind,
        "id": now.id,
        "since": now.since,
        "state": now.state,
        "before": None if before is None else before.state,
        "job": None if now.job is None else job_row(now.job),
        "flow": None if now.flow is None else asdict(now.flow),
    }
