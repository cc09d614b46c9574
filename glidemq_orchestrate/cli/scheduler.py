"""``glidemq scheduler``: the repeating jobs of a queue."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from glidemq_orchestrate.cli.shell import (
    AsJson,
    Prefix,
    QueueOption,
    Url,
    print_json,
    print_rows,
    print_text,
    read_json,
    reports_errors,
    seconds,
)
from glidemq_orchestrate.clients.schedules import JobTemplate, Schedule, ScheduleEntry, Schedules
from glidemq_orchestrate.errors import ScheduleNotFound
from glidemq_orchestrate.foundation.durations import span_text
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX

scheduler_app = typer.Typer(
    name="scheduler", help="Set, show, pause, resume and remove repeating jobs.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(help="Name of the schedule.")]


@scheduler_app.command("list")
@reports_errors
def scheduler_list(
    queue: QueueOption, url: Url = None, prefix: Prefix = DEFAULT_PREFIX, as_json: AsJson = False
) -> None:
    """List the schedules of a queue, also finished and paused ones, and those of Node clients."""
    with Schedules(queue, url, prefix=prefix) as schedules:
        entries = schedules.list()
    if as_json:
        print_json([_row(entry) for entry in entries])
        return
    if not entries:
        print_text(f"No schedules in queue {queue}.")
        return
    table = Table("name", "schedule", "job", "next run", "runs", box=None, padding=(0, 2, 0, 0))
    for entry in entries:
        due = _state(entry) or _time(entry.next_run) or "unknown"
        when = f"broken: {entry.broken}" if entry.broken else _when(entry.schedule)
        table.add_row(*map(Text, (entry.name, when, entry.job, due, f"{entry.iterations:,}")))
    print_rows(table)


@scheduler_app.command("set")
@reports_errors
def scheduler_set(
    name: Name,
    queue: QueueOption,
    job: Annotated[
        str, typer.Option(help="Name of the job, which selects its handler; default: that of the schedule.")
    ] = "",
    cron: Annotated[str | None, typer.Option(help="Cron pattern, such as '0 2 * * *'.")] = None,
    every: Annotated[
        float | None, typer.Option(parser=seconds(), metavar="DURATION", help="Interval, such as 5m.")
    ] = None,
    time_zone: Annotated[
        str | None, typer.Option(help="Time zone of --cron, such as Europe/Rome; by default UTC.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Total number of runs.")] = None,
    data: Annotated[str, typer.Option(help="Data of the jobs, as JSON.")] = "{}",
    attempts: Annotated[int, typer.Option(help="Maximum number of attempts of each job.")] = 1,
    url: Url = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Add a schedule, or replace the one of this name. A repeat changes nothing."""
    rule = Schedule(cron=cron, every=every, time_zone=time_zone, limit=limit)
    template = JobTemplate(job or None, read_json(data, "data"), attempts=attempts)
    with Schedules(queue, url, prefix=prefix) as schedules:
        entry = schedules.upsert(name, rule, template)
    if as_json:
        print_json(_row(entry))
    else:
        print_text(f"{name}: {_when(entry.schedule)}, {_next(entry)}")


@scheduler_app.command("show")
@reports_errors
def scheduler_show(
    name: Name, queue: QueueOption, url: Url = None, prefix: Prefix = DEFAULT_PREFIX, as_json: AsJson = False
) -> None:
    """Show a schedule. Exit code 1 if it does not exist."""
    with Schedules(queue, url, prefix=prefix) as schedules:
        row = _row(schedules.get(name))
    if as_json:
        print_json(row)
        return
    for field, value in row.items():
        print_text(f"{field}: {value if isinstance(value, str) else json.dumps(value)}")


@scheduler_app.command("pause")
@reports_errors
def scheduler_pause(
    name: Name, queue: QueueOption, url: Url = None, prefix: Prefix = DEFAULT_PREFIX, as_json: AsJson = False
) -> None:
    """Keep a schedule from firing until it is resumed. A repeat changes nothing."""
    with Schedules(queue, url, prefix=prefix) as schedules:
        _print(schedules.pause(name), as_json=as_json)


@scheduler_app.command("resume")
@reports_errors
def scheduler_resume(
    name: Name, queue: QueueOption, url: Url = None, prefix: Prefix = DEFAULT_PREFIX, as_json: AsJson = False
) -> None:
    """Let a paused schedule fire again; missed slots are omitted. A repeat changes nothing."""
    with Schedules(queue, url, prefix=prefix) as schedules:
        _print(schedules.resume(name), as_json=as_json)


@scheduler_app.command("remove")
@reports_errors
def scheduler_remove(
    name: Name, queue: QueueOption, url: Url = None, prefix: Prefix = DEFAULT_PREFIX, as_json: AsJson = False
) -> None:
    """Remove a schedule; the jobs that it added are kept. Exit code 1 if it does not exist."""
    with Schedules(queue, url, prefix=prefix) as schedules:
        if not schedules.remove(name):
            raise ScheduleNotFound(f"no schedule {name} in queue {queue}")
    print_text(json.dumps({"removed": name}) if as_json else f"removed {name}")


def _print(entry: ScheduleEntry, *, as_json: bool) -> None:
    """Print what became of a schedule."""
    if as_json:
        print_json(_row(entry))
    else:
        print_text(f"{entry.name}: {_next(entry)}")


def _when(schedule: Schedule | None) -> str:
    """The rule of a schedule in a few words."""
    if schedule is None:
        return "unknown"
    if schedule.cron is not None:
        return f"{schedule.cron} ({schedule.time_zone or 'UTC'})"
    if schedule.every is not None:
        return f"every {span_text(schedule.every)}"
    return f"{span_text(schedule.repeat_after_complete or 0)} after each end"


def _state(entry: ScheduleEntry) -> str:
    return "paused" if entry.paused else "finished" if entry.finished else ""


def _next(entry: ScheduleEntry) -> str:
    return _state(entry) or f"next run {_time(entry.next_run) or 'none'}"


def _row(entry: ScheduleEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "schedule": None if entry.schedule is None else entry.schedule.to_wire(),
        "job": entry.job,
        "iterations": entry.iterations,
        "last_run": _time(entry.last_run),
        "next_run": _time(entry.next_run),
        "python_only": entry.python_only,
        "finished": entry.finished,
        "paused": entry.paused,
        "broken": entry.broken,
    }


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="milliseconds")
