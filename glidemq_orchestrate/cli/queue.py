"""``glidemq queue``: show and manage queues."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from glidemq_orchestrate.cli.failures import GroupOption, Most, explain_unchanged, print_failures
from glidemq_orchestrate.cli.holders import held_by_worker, held_text, holders
from glidemq_orchestrate.cli.job import job_row
from glidemq_orchestrate.cli.shell import (
    AsJson,
    Prefix,
    QueueName,
    Url,
    console,
    print_json,
    print_rows,
    print_text,
    printable,
    progress,
    reports_errors,
    seconds,
)
from glidemq_orchestrate.cli.statistics import statistics, statistics_row, summary
from glidemq_orchestrate.cli.tags import tags
from glidemq_orchestrate.clients.client import Client
from glidemq_orchestrate.clients.queue import (
    ElementCounts,
    FoundJobs,
    Queue,
    TaggedJobs,
    WorkerInfo,
)
from glidemq_orchestrate.errors import ProtocolError
from glidemq_orchestrate.foundation.texts import counted
from glidemq_orchestrate.jobs.attempt import OURS
from glidemq_orchestrate.jobs.states import EndedState, JobState
from glidemq_orchestrate.queues.listing import MAX_EXAMINED
from glidemq_orchestrate.shards import MAX_SHARDS
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX

queue_app = typer.Typer(name="queue", help="Show and manage queues.", no_args_is_help=True)

Yes = Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")]
GROUP_LIMIT = 1000
HIDDEN = (JobState.WAITING_CHILDREN, JobState.GROUP_WAITING, JobState.SKIPPED, JobState.UNKNOWN)
WAITING = (JobState.WAITING, JobState.PRIORITIZED, JobState.GROUP_WAITING)
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
    table = Table("queue", "shards", "paused", *SHOWN, "elements", "workers", box=None, padding=(0, 2, 0, 0))
    for row in rows:
        if "broken" in row:
            table.add_row(Text(row["queue"]), "?", "?", *["?"] * (len(SHOWN) + 1), Text(row["broken"]))
            continue
        numbers = [str(row["counts"][state]) for state in SHOWN]
        numbers.append(str(row["elements"].waiting + row["elements"].running))
        paused, shards = "yes" if row["paused"] else "", str(row["shards"] or "")
        table.add_row(Text(row["queue"]), shards, paused, *numbers, str(len(row["workers"])))
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
        **({"shards": str(found["shards"])} if found["shards"] else {}),
        "paused": "yes" if found["paused"] else "no",
        **{
            str(state): f"{'at least ' if state in found['at_least'] else ''}{count}"
            for state, count in found["counts"].items()
        },
        "elements": _elements(found["elements"]),
        "global concurrency": str(found["global_concurrency"] or "no limit"),
        "dead letter queue": found["dead_letter_queue"] or "none",
        **{f"{name} today": summary(found["today"][name]) for name in ("waiting", "running")},
    }
    table = Table(title=Text(queue), show_header=False, box=None, padding=(0, 2, 0, 0), title_justify="left")
    for name, value in lines.items():
        table.add_row(name, Text(value))
    lost = {one.id: one.jobs for one in found["lost_workers"]}
    for worker in found["workers"]:
        silent = f", silent for {worker.silent.total_seconds():.0f} s" if worker.is_silent else ""
        reported = lost.pop(worker.id, 0 if worker.id.startswith(OURS) else worker.active_jobs)
        jobs = held_text(found["held"], worker.id, reported, found["now"])
        table.add_row("worker", Text(f"{worker.host} {worker.pid}{_size(worker)}{silent}: {jobs}"))
    for gone, reported in lost.items():
        jobs = held_text(found["held"], gone, reported, found["now"])
        table.add_row("lost worker", Text(f"{gone}: {jobs}"))
    console.print(table)
    if not any(found["counts"].with_elements().values()) and not found["workers"]:
        console.print(
            "No job and no worker: `glidemq queue list` shows the queues that have any.", style="dim"
        )


def _size(worker: WorkerInfo) -> str:
    """The subscription of a worker, its places and memory, if it reports them."""
    parts = [
        *([f"subscription {worker.subscription}"] if worker.subscription else []),
        *([] if worker.concurrency is None else [counted(worker.concurrency, "place")]),
        *([] if worker.memory is None else [f"{worker.memory / 2**20:,.0f} MiB"]),
    ]
    return "".join(f", {part}" for part in parts)


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
        now = client.now()
    if as_json:
        print_json([job_row(job) for job in jobs])
        return
    if state is JobState.ACTIVE:
        print_rows(holders(jobs, now))
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


queue_app.command("statistics")(statistics)
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


@queue_app.command("shards")
@reports_errors
def queue_shards(
    queue: QueueName,
    count: Annotated[
        int | None,
        typer.Argument(
            metavar="[COUNT]",
            help="Let the queue have so many shards.",
            min=1,
            max=MAX_SHARDS,
            show_default=False,
        ),
    ] = None,
    url: Url = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Print how many shards a queue has, or add some: a cluster spreads them over its primaries.

    Workers serve new shards within seconds; clients use them after a minute. Flows that run end where they
    began. Shards cannot be removed.
    """
    with Queue(queue, url, prefix=prefix) as client:
        had = client.shards()
        has = had if count is None else client.add_shards(count)
    if as_json:
        print_json({"queue": queue, "shards": has, "added": has - had})
        return
    added = f": {has - had} added" if has > had else ""
    print_text(f"{queue} has {counted(has, 'shard')}{added}" if has else f"{queue} has no shards")


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
    state: Annotated[
        str | None, typer.Option(help="The state of the jobs: completed (default) or failed.")
    ] = None,
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
    if state not in (None, "completed", "failed"):
        raise typer.BadParameter("must be completed or failed", param_hint="--state")
    if group is not None:
        if state == "completed":
            raise typer.BadParameter(
                "only failed jobs have a group: use --state failed, or omit it", param_hint="--state"
            )
        _clean_group(queue, url, prefix, group, limit, yes=yes, as_json=as_json)
        return
    state = state or "completed"
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
                retried = client.retry_failures(group, limit=GROUP_LIMIT if limit is None else limit)
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


def _elements(counts: ElementCounts) -> str:
    """How many elements of arrays there are, for people."""
    partial = "at least " if counts.is_partial else ""
    return f"{partial}{counts.waiting:,} waiting, {counts.ready:,} of them ready, {counts.running:,} running"


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
        more: dict[str, Any] = {}
        if not indexed_only:
            more = {"today": statistics_row(client.statistics()), "held": held_by_worker(client)}
            more["now"] = client.now()
        return more | {
            "queue": queue,
            "shards": client.shards(),
            "paused": client.is_paused(),
            "counts": counts,
            "at_least": sorted(counts.at_least),
            "elements": counts.elements,
            "global_concurrency": client.global_concurrency(),
            "dead_letter_queue": client.dead_letter_queue(),
            "workers": client.workers(),
            "lost_workers": client.lost_workers(),
        }


def _confirm(question: str, *, yes: bool) -> None:
    if not yes:
        typer.confirm(printable(question), abort=True)


def _print_count(word: str, count: int, *, as_json: bool) -> None:
    print_text(json.dumps({word: count}) if as_json else f"{counted(count, 'job')} {word}")
