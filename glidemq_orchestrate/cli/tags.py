"""Commands about tags: ``glidemq queue tags``, ``glidemq job tag`` and ``untag``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from glidemq_orchestrate.cli.shell import (
    AsJson,
    Prefix,
    QueueName,
    Url,
    print_json,
    print_rows,
    print_text,
    reports_errors,
)
from glidemq_orchestrate.clients.queue import Queue
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX

JobIdArgument = Annotated[str, typer.Argument(metavar="JOB_ID", help="Id of the job.")]
Tags = Annotated[list[str], typer.Argument(metavar="TAG...", help="The tags.")]


@reports_errors
def tags(
    queue: QueueName,
    limit: Annotated[int, typer.Option(help="Maximum number of tags.")] = 20,
    url: Url = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """List the tags of a queue with their numbers of jobs, most used first."""
    with Queue(queue, url, prefix=prefix) as client:
        found = client.tags(limit=limit)
    if as_json:
        print_json(found)
        return
    table = Table("tag", box=None, padding=(0, 2, 0, 0))
    table.add_column("jobs", justify="right")
    for one in found:
        table.add_row(Text(one.tag), f"{one.count:,}")
    print_rows(table)


@reports_errors
def tag(
    queue: QueueName,
    job_id: JobIdArgument,
    tags: Tags,
    url: Url = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Add tags to a job, and print all its tags."""
    with Queue(queue, url, prefix=prefix) as client:
        _print_tags(client.tag(job_id, tags), as_json=as_json)


@reports_errors
def untag(
    queue: QueueName,
    job_id: JobIdArgument,
    tags: Tags,
    url: Url = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Take tags off a job, and print the others."""
    with Queue(queue, url, prefix=prefix) as client:
        _print_tags(client.untag(job_id, tags), as_json=as_json)


def _print_tags(found: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        print_text(", ".join(found) or "no tags")
