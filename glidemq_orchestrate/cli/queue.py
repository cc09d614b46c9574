"""``glidemq queue``: show and manage queues; ``glidemq events``: the events of a queue, live."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from glidemq_orchestrate.cli.failures import GroupOption, Most, explain_unchanged, print_failures
from glidemq_orchestrate.cli.job import job_row
from glidemq_orchestrate.cli.shell import (
    AsJson,
    Prefix,
    QueueName,
    QueueOption,
    Url,
    console,
    errors,
    print_json,
    print_rows,
    print_text,
    printable,
    progress,
    reports_errors,
    seconds,
)
from glidemq_orchestrate.cli.tags import tags
from glidemq_orchestrate.clients.client import Client
from glidemq_orchestrate.clients.events import Event, EventFilter, EventKind, EventReader
from glidemq_orchestrate.clients.queue import (
    Durations,
    FoundJobs,
    HandlerStatistics,
    Queue,
    QueueStatistics,
    TaggedJobs,
)
from glidemq_orchestrate.errors import ConfigurationError, ProtocolError
from glidemq_orchestrate.foundation.suggestions import did_you_mean, nearest
from glidemq_orchestrate.jobs.job import Job
from glidemq_orchestrate.jobs.states import EndedState, JobState
from glidemq_orchestrate.queues.listing import MAX_EXAMINED
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX

queue_app = typer.Typer(name="queue", help="Show and manage queues.", no_args_is_help=True)

Yes = Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")]
GROUP_LIMIT = 1000
HIDDEN = (JobState.WAITING_CHILDREN, JobState.GROUP_WAITING, JobState.SKIPPED, JobState.UNKNOWN)
WAITING = (JobState.WAITING, JobState.PRIORITIZED, JobState.GROUP_WAITING)
STATISTICS_COLUMNS = (
    "done", "failed", "retried", "wait p50", "wait p95", "run mean", "run p50", "run p95", "run p99"
)  # fmt: skip
PERCENTILES = (50, 95, 99)
MAX_BARS, BAR_WIDTH = 20, 40
SHOWN = [state for state in JobState if state not in HIDDEN]


@queue_app.command("list")
@reports_errors
def queue_list(url: Url = None, prefix: Prefix = DEFAULT_PREFIX, as_json: AsJson = False) -> None:
    """List the queues with their job counts. Scans all keys of the server, page by page."""
    with Client(url, prefix=prefix) as client:
        names = client.queues()
    rows = [_listed(name, url, prefix) for name in names]
    if as_json:
        print_json(rows)
        return
    table = Table("queue", "paused", *SHOWN, "workers", box=None, padding=(0, 2, 0, 0))
    for row in rows:
        if "broken" in row:
            table.add_row(Text(row["queue"]), "?", *["?"] * len(SHOWN), Text(row["broken"]))
            continue
        numbers = [str(row["counts"][state]) for state in SHOWN]
        table.add_row(Text(row["queue"]), "yes" if row["paused"] else "", *numbers, str(len(row["workers"])))
    console.print(table)


@queue_app.command("show")
@reports_errors
def queue_show(
    queue: QueueName, url: Url = None, prefix: Prefix = DEFAULT_PREFIX, as_json: AsJson = False
) -> None:
    """Show a queue: its jobs by state, its limits and its workers."""
    found = _described(queue, url, prefix, indexed_only=False)
    if as_json:
        print_json(found)
        return
    lines = {
        "paused": "yes" if found["paused"] else "no",
        **{
            str(state): f"{'at least ' if state in found['at_least'] else ''}{count}"
            for state, count in found["counts"].items()
        },
        "global concurrency": str(found["global_concurrency"] or "no limit"),
        "dead letter queue": found["dead_letter_queue"] or "none",
        **{f"{name} today": _summary(found["today"][name]) for name in ("waiting", "running")},
    }
    table = Table(title=Text(queue), show_header=False, box=None, padding=(0, 2, 0, 0), title_justify="left")
    for name, value in lines.items():
        table.add_row(name, Text(value))
    left = {lost.id: f"{lost.jobs} jobs until their leases end" for lost in found["lost_workers"]}
    for worker in found["workers"]:
        jobs = left.pop(worker.id, f"{worker.active_jobs} jobs")
        silent = f", silent for {worker.silent.total_seconds():.0f} s" if worker.is_silent else ""
        table.add_row("worker", Text(f"{worker.host} {worker.pid}{silent}: {jobs}"))
    for lost, jobs in left.items():
        table.add_row("lost worker", Text(f"{lost}: {jobs}"))
    console.print(table)
    if not any(found["counts"].values()) and not found["workers"]:
        console.print(
            "No job and no worker: `glidemq queue list` shows the queues that have any.", style="dim"
        )


@queue_app.command("statistics")
@reports_errors
def queue_statistics(
    queue: QueueName,
    day: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%d"], help="A day in UTC, at most 30 days ago; today.")
    ] = None,
    handler: Annotated[str | None, typer.Option(help="Show only this handler.")] = None,
    url: Url = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Show how long the jobs of a day waited and ran, by handler, with a histogram.

    Counts what workers of this package ran and reported: every five seconds, and when they stop.
    """
    with Queue(queue, url, prefix=prefix) as client:
        found = client.statistics(day.date() if day else None)
    rows = [one for one in found.handlers if handler in (None, one.handler)]
    if handler is not None and not rows:
        known = [one.handler for one in found.handlers]
        hint = did_you_mean(handler, known)
        raise ConfigurationError(f"queue {queue} has no statistics of handler {handler} on {found.day}{hint}")
    if as_json:
        whole = {"day": found.day.isoformat(), **_statistics_row(found)}
        print_json(whole | {"handlers": [{"handler": one.handler, **_statistics_row(one)} for one in rows]})
        return
    if not rows:
        console.print(Text(f"No job has run in queue {queue} on {found.day} (UTC)."), style="dim")
        return
    table = Table(
        "handler",
        *(Column(name, justify="right") for name in STATISTICS_COLUMNS),
        box=None,
        padding=(0, 2, 0, 0),
    )
    for one in rows:
        spans = [one.waiting.percentile(50), one.waiting.percentile(95)]
        spans += [one.running.mean if one.running.count else None]
        spans += [one.running.percentile(percent) for percent in PERCENTILES]
        counts = f"{one.running.count:,}", f"{one.failures:,}", f"{one.retries:,}"
        table.add_row(Text(one.handler or "(others)"), *counts, *map(_short_span, spans))
    print_rows(table)
    shown = found if handler is None else rows[0]
    for title, durations in (("waiting", shown.waiting), ("running", shown.running)):
        if durations.count:
            console.print(Text(f"\n{title}"))
            print_rows(_bars(durations))


@queue_app.command("jobs")
@reports_errors
def queue_jobs(
    queue: QueueName,
    state: Annotated[JobState, typer.Option(help="List the jobs in this state.")] = JobState.WAITING,
    name: Annotated[str | None, typer.Option(help="List only jobs of this name.")] = None,
    tag: Annotated[
        str | None, typer.Option(help="List the jobs with this tag instead, in any state.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of jobs.")] = 20,
    url: Url = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """List the jobs of one state, or with one tag."""
    jobs: FoundJobs | TaggedJobs
    with Queue(queue, url, prefix=prefix) as client:
        if tag is None:
            jobs = client.search(state=state, name=name, limit=limit, exclude_data=True)
        else:
            jobs = client.tagged(tag, limit=limit, exclude_data=True)
    if as_json:
        print_json([job_row(job) for job in jobs])
        return
    if state is JobState.ACTIVE:
        print_rows(_held(jobs))
        return
    table = Table("id", "name", "state", "tries", "reason", box=None, padding=(0, 2, 0, 0))
    for job in jobs:
        cells = (
            job.id,
            job.name,
            job.state,
            f"{job.attempts}/{job.max_attempts}",
            job.failed_reason or "",
        )
        table.add_row(*map(Text, cells))
    print_rows(table)
    if isinstance(jobs, TaggedJobs) and jobs.total > len(jobs):
        console.print(f"{len(jobs)} of {jobs.total:,} jobs; --limit shows more", style="dim")
    if isinstance(jobs, FoundJobs) and jobs.is_partial:
        console.print(f"Only about {MAX_EXAMINED:,} jobs were searched; there may be more.", style="dim")


@queue_app.command("failures")
@reports_errors
def queue_failures(
    queue: QueueName,
    most: Most = 20,
    url: Url = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Group the failed jobs by cause: how many, since when, and how many nodes of flows they hold back."""
    with Queue(queue, url, prefix=prefix) as client:
        print_failures(client.failures(), most, as_json=as_json)


queue_app.command("tags")(tags)


@queue_app.command("pause")
@reports_errors
def queue_pause(queue: QueueName, url: Url = None, prefix: Prefix = DEFAULT_PREFIX) -> None:
    """Pause a queue: workers start none of its jobs until it is resumed."""
    with Queue(queue, url, prefix=prefix) as client:
        client.pause()
    print_text(f"{queue} is paused")


@queue_app.command("resume")
@reports_errors
def queue_resume(queue: QueueName, url: Url = None, prefix: Prefix = DEFAULT_PREFIX) -> None:
    """Resume a queue: workers start its jobs again."""
    with Queue(queue, url, prefix=prefix) as client:
        client.resume()
    print_text(f"{queue} is resumed")


@queue_app.command("drain")
@reports_errors
def queue_drain(
    queue: QueueName,
    delayed: Annotated[bool, typer.Option("--delayed", help="Delete delayed jobs, too.")] = False,
    yes: Yes = False,
    url: Url = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Delete the waiting jobs. Nodes of flows are kept."""
    _confirm(f"Delete the waiting jobs of queue {queue}?", yes=yes)
    with Queue(queue, url, prefix=prefix) as client:
        with progress(f"Deleting the waiting jobs of {printable(queue)}", lambda: _left(client, *WAITING)):
            deleted = client.drain(delayed=delayed)
        _print_count("deleted", deleted, as_json=as_json)


@queue_app.command("clean")
@reports_errors
def queue_clean(
    queue: QueueName,
    state: Annotated[str, typer.Option(help="The state of the jobs: completed or failed.")] = "completed",
    older: Annotated[
        float,
        typer.Option(
            parser=seconds(), metavar="DURATION", help="Delete only jobs that ended at least this long ago."
        ),
    ] = 0,
    group: GroupOption = None,
    limit: Annotated[int, typer.Option(help="Maximum number of jobs.")] = 1000,
    yes: Yes = False,
    url: Url = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Delete ended jobs, oldest first. Nodes of unfinished flows are kept.

    With --group, the failed jobs of this group, regardless of --older.
    """
    if group is not None:
        _clean_group(queue, url, prefix, group, limit, yes=yes, as_json=as_json)
        return
    if state not in ("completed", "failed"):
        raise typer.BadParameter("must be completed or failed", param_hint="--state")
    _confirm(f"Delete up to {limit} {state} jobs of queue {queue}?", yes=yes)
    ended: EndedState = JobState.COMPLETED if state == "completed" else JobState.FAILED
    with (
        Queue(queue, url, prefix=prefix) as client,
        progress(f"Deleting {state} jobs of {printable(queue)}", lambda: _left(client, JobState(state))),
    ):
        deleted = client.clean(ended, grace=timedelta(seconds=older), limit=limit)
    _print_count("deleted", len(deleted), as_json=as_json)


def _clean_group(
    queue: str, url: str | None, prefix: str, group: str, limit: int, *, yes: bool, as_json: bool
) -> None:
    _confirm(f"Delete up to {limit} failed jobs of group {group} of queue {queue}?", yes=yes)
    with Queue(queue, url, prefix=prefix) as client:
        with progress(f"Deleting failed jobs of {printable(queue)}", lambda: _left(client, JobState.FAILED)):
            deleted = client.remove_failures(group, limit=limit)
        _print_count("deleted", len(deleted), as_json=as_json)
        if not deleted:
            explain_unchanged(f"Queue {queue}", group, client.failures())


@queue_app.command("retry")
@reports_errors
def queue_retry(
    queue: QueueName,
    group: GroupOption = None,
    limit: Annotated[
        int | None, typer.Option(help="Maximum number of jobs; by default all, with --group 1,000.")
    ] = None,
    url: Url = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Run failed jobs again, oldest first. Nodes of flows stay failed: retry the flow instead."""
    with Queue(queue, url, prefix=prefix) as client:
        with progress(f"Retrying jobs of {printable(queue)}", lambda: _left(client, JobState.FAILED)):
            if group is None:
                retried = client.retry_failed(limit)
            else:
                retried = client.retry_failures(group, limit=limit or GROUP_LIMIT)
        _print_count("retried", retried, as_json=as_json)
        if group is not None and not retried:
            explain_unchanged(f"Queue {queue}", group, client.failures())


@queue_app.command("obliterate")
@reports_errors
def queue_obliterate(
    queue: QueueName,
    force: Annotated[bool, typer.Option("--force", help="Delete the queue even if jobs are active.")] = False,
    yes: Yes = False,
    url: Url = None,
    prefix: Prefix = DEFAULT_PREFIX,
) -> None:
    """Delete a queue and all its jobs and settings. Stop its workers first."""
    _confirm(f"Delete queue {queue} and all its jobs?", yes=yes)
    with (
        Queue(queue, url, prefix=prefix) as client,
        progress(f"Deleting queue {printable(queue)}", lambda: _left(client, *JobState)),
    ):
        client.obliterate(force=force)
    print_text(f"{queue} was deleted")


def _left(client: Queue, *states: JobState) -> int:
    counts = client.counts(indexed_only=True)
    return sum(counts.get(state, 0) for state in states)


def _listed(queue: str, url: str | None, prefix: str) -> dict[str, Any]:
    """A row of the list; a queue whose keys cannot be read has the error in ``broken``."""
    try:
        return _described(queue, url, prefix, indexed_only=True)
    except ProtocolError as exc:
        return {"queue": queue, "broken": str(exc)}


def _described(queue: str, url: str | None, prefix: str, *, indexed_only: bool) -> dict[str, Any]:
    with Queue(queue, url, prefix=prefix) as client:
        counts = client.counts(indexed_only=indexed_only)
        today = {} if indexed_only else {"today": _statistics_row(client.statistics())}
        return today | {
            "queue": queue,
            "paused": client.is_paused(),
            "counts": counts,
            "at_least": sorted(counts.at_least),
            "global_concurrency": client.global_concurrency(),
            "dead_letter_queue": client.dead_letter_queue(),
            "workers": client.workers(),
            "lost_workers": client.lost_workers(),
        }


def _held(jobs: Sequence[Job]) -> Table:
    """Active jobs: who holds them, since when, and how long the lease lasts or has been over."""
    table = Table("id", "name", "tries", "for", "lease", "worker", box=None, padding=(0, 2, 0, 0))
    now = datetime.now(UTC)
    for job in sorted(jobs, key=lambda one: one.started_at or now):
        left = None if job.lease_until is None else job.lease_until - now
        if left is None:
            lease = ""
        elif left >= timedelta(0):
            lease = f"{_short_span(left)} left"
        else:
            lease = f"over since {_short_span(-left)}"
        ran = _short_span(max(now - job.started_at, timedelta(0))) if job.started_at else ""
        tries = f"{job.attempts}/{job.max_attempts}"
        table.add_row(*map(Text, (job.id, job.name, tries, ran, lease, job.worker or "")))
    return table


def _statistics_row(one: HandlerStatistics | QueueStatistics) -> dict[str, Any]:
    return {
        "failures": one.failures,
        "retries": one.retries,
        **{name: _durations(found) for name, found in (("waiting", one.waiting), ("running", one.running))},
    }


def _durations(durations: Durations) -> dict[str, Any]:
    """Durations in seconds."""
    percentiles = {f"p{percent}": durations.percentile(percent) for percent in PERCENTILES}
    return {
        "count": durations.count,
        "mean": durations.mean.total_seconds(),
        "deviation": durations.deviation.total_seconds(),
        **{name: None if span is None else span.total_seconds() for name, span in percentiles.items()},
        "buckets": [
            {"from": one.start.total_seconds(), "to": one.end.total_seconds(), "count": one.count}
            for one in durations.buckets
        ],
    }


def _summary(durations: Mapping[str, Any]) -> str:
    """The percentiles of ``_durations`` in one line."""
    if not durations["count"]:
        return "no job"
    spans = (f"p{one} {_short_span(timedelta(seconds=durations[f'p{one}']))}" for one in PERCENTILES)
    return f"{', '.join(spans)} ({durations['count']:,} jobs)"


def _bars(durations: Durations) -> Table:
    """The histogram; neighbouring buckets share a line so that it fits on a screen."""
    size = -(-len(durations.buckets) // MAX_BARS)
    groups = [durations.buckets[at : at + size] for at in range(0, len(durations.buckets), size)]
    counts = [sum(one.count for one in group) for group in groups]
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for group, count in zip(groups, counts, strict=True):
        bar = "█" * max(round(count / max(counts) * BAR_WIDTH), 1)
        table.add_row(f"{_short_span(group[0].start)} to {_short_span(group[-1].end)}", bar, f"{count:,}")
    return table


def _short_span(span: timedelta | None) -> str:
    if span is None:
        return "-"
    seconds = span.total_seconds()
    for unit, least in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= least:
            return f"{seconds / least:.3g} {unit}"
    return f"{seconds * 1_000:.3g} ms"


def _confirm(question: str, *, yes: bool) -> None:
    if not yes:
        typer.confirm(printable(question), abort=True)


def _print_count(word: str, count: int, *, as_json: bool) -> None:
    print_text(json.dumps({word: count}) if as_json else f"{count:,} jobs {word}")


@reports_errors
def events(
    queue: QueueOption,
    url: Url = None,
    prefix: Prefix = DEFAULT_PREFIX,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Start after this position; 0-0: with the oldest stored event; default: new events only.",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for new events.")] = True,
    kind: Annotated[
        list[str] | None, typer.Option(help="Print only events of this kind. Repeatable.")
    ] = None,
    job: Annotated[list[str] | None, typer.Option(help="Print only events of this job. Repeatable.")] = None,
    flow: Annotated[
        list[str] | None, typer.Option(help="Print only events of this flow. Repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Follow the events of a queue until Ctrl-C, one line each. A line marks a gap of lost events.

    The stored events, without waiting for new ones: --from 0-0 --no-follow.
    """
    where = EventFilter(kinds=kind or None, jobs=job or None, flows=flow or None)
    _hint(queue, kind or (), start, follow=follow)
    idle_timeout = None if follow else timedelta(milliseconds=100)
    with EventReader(
        queue, url, prefix=prefix, position=start, where=where, idle_timeout=idle_timeout
    ) as reader:
        for event in reader:
            print_text(_json(event) if as_json else _line(event))


def _hint(queue: str, kinds: Sequence[str], start: str | None, *, follow: bool) -> None:
    """Print which kinds are unknown and, in a terminal, that the command waits."""
    for kind in kinds:
        if kind not in tuple(EventKind):
            known = nearest(kind, EventKind)
            hint = f"did you mean {known}?" if known else f"known: {', '.join(EventKind)}."
            errors.print(f"Neither glide-mq nor this package writes {kind!r} events; {hint}", markup=False)
    if follow and errors.is_terminal:
        new = "new events" if start is None else f"events after {start}"
        errors.print(f"Waiting for {new} of queue {queue}; Ctrl-C ends this.", markup=False, style="dim")


def _json(event: Event) -> str:
    about: dict[str, str | int] = {
        "id": event.id,
        "kind": event.kind,
        "job": event.job_id,
        "flow": event.flow_id,
    }
    about |= {"generation": event.generation} if event.flow_id else {}
    return json.dumps(about | {"fields": dict(event.fields)})


def _line(event: Event) -> str:
    if event.is_gap:
        return f"{event.id}  events after this position were lost"
    # Payloads only with --json: the output of a terminal may be recorded.
    about = event.flow_id or event.job_id
    if event.generation:
        about += f" generation {event.generation}"
    return f"{event.id}  {event.kind}  {about}  {event.fields.get('name', '')}".rstrip()
