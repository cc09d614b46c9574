"""``glidemq job``: show and manage single jobs."""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import timedelta
from typing import Annotated, Any, Final

import typer
from rich.table import Table
from rich.text import Text

from glidemq_orchestrate.cli.shell import (
    AsJson,
    Prefix,
    Url,
    as_json_value,
    console,
    read_json,
    reports_errors,
    say,
    say_json,
    seconds,
)
from glidemq_orchestrate.clients.queue import Queue
from glidemq_orchestrate.jobs.job import Job
from glidemq_orchestrate.jobs.options import JobOptions
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX

LOG_LINES: Final = 100

job_app = typer.Typer(name="job", help="Show and manage single jobs.", no_args_is_help=True)

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]
JobIdArgument = Annotated[str, typer.Argument(metavar="JOB_ID", help="The job's id.")]


@job_app.command("add")
@reports_errors
def job_add(
    queue: QueueName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the job: that of its handler.")],
    data: Annotated[str, typer.Option(help="The data of the job, as JSON.")] = "null",
    attempts: Annotated[int, typer.Option(help="How many times it may run in total.")] = 1,
    priority: Annotated[int, typer.Option(help="0 to 2048; 1 runs first, 0 after all others.")] = 0,
    delay: Annotated[
        float, typer.Option(parser=seconds(), metavar="SECONDS", help="Time before the first run.")
    ] = 0,
    job_id: Annotated[str | None, typer.Option("--id", help="Custom job id, unique in the queue.")] = None,
    url: Url = None,
    prefix: Prefix = DEFAULT_PREFIX,
) -> None:
    """Add a job and print its id."""
    value = read_json(data, "data")
    options = JobOptions(attempts=attempts, priority=priority, delay=timedelta(seconds=delay), job_id=job_id)
    with Queue(queue, url, prefix=prefix) as client:
        say(client.add(name, value, options=options))


@job_app.command("show")
@reports_errors
def job_show(
    queue: QueueName,
    job_id: JobIdArgument,
    url: Url = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Show a job with its data, its result and its last log lines."""
    with Queue(queue, url, prefix=prefix) as client:
        job, wait = client.get_job(job_id, lenient=True), client.wait_of(job_id)
        logs = client.logs(job_id, offset=-LOG_LINES, limit=LOG_LINES)
    row = job_row(job) | {"logs": logs.lines}
    if as_json:
        say_json(row | {"wait": wait})
        return
    row |= {"logs": "\n".join(logs.lines), "waits": str(wait or "")}
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in row.items():
        if value not in (None, False, [], 0, "") or name in ("data", "result"):
            text = value if isinstance(value, str) else json.dumps(value, default=as_json_value)
            table.add_row(name, Text(text))
    console.print(table)


@job_app.command("retry")
@reports_errors
def job_retry(
    queue: QueueName, job_id: JobIdArgument, url: Url = None, prefix: Prefix = DEFAULT_PREFIX
) -> None:
    """Run a failed job again. A node of a flow is retried with its flow."""
    with Queue(queue, url, prefix=prefix) as client:
        client.retry(job_id)
    say(f"{job_id} is waiting")


@job_app.command("revoke")
@reports_errors
def job_revoke(
    queue: QueueName, job_id: JobIdArgument, url: Url = None, prefix: Prefix = DEFAULT_PREFIX
) -> None:
    """Fail a job that has not started; ask an active one to stop."""
    with Queue(queue, url, prefix=prefix) as client:
        outcome = client.revoke(job_id)
    say(f"{job_id} {'has failed' if outcome == 'revoked' else 'was asked to stop'}")


@job_app.command("promote")
@reports_errors
def job_promote(
    queue: QueueName, job_id: JobIdArgument, url: Url = None, prefix: Prefix = DEFAULT_PREFIX
) -> None:
    """Make a delayed job ready to run now."""
    with Queue(queue, url, prefix=prefix) as client:
        client.promote(job_id)
    say(f"{job_id} is waiting")


@job_app.command("remove")
@reports_errors
def job_remove(
    queue: QueueName, job_id: JobIdArgument, url: Url = None, prefix: Prefix = DEFAULT_PREFIX
) -> None:
    """Delete a job. Refused for a node of a flow that has not ended."""
    with Queue(queue, url, prefix=prefix) as client:
        client.remove(job_id)
    say(f"{job_id} was removed")


def job_row(job: Job) -> dict[str, Any]:
    """The fields of a job for JSON."""
    return {part.name: getattr(job, part.name) for part in fields(job) if part.name != "options"}
