"""``glidemq supervise``: a supervisor for queues that none of our workers serves."""

from __future__ import annotations

from typing import Annotated

import typer

from glidemq_orchestrate.cli.shell import Level, LogLevel, Prefix, Url, log_to_stderr, reports_errors, seconds
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX


@reports_errors
def supervise(
    queue: Annotated[
        list[str],
        typer.Option(help="Queue to supervise: the home of a flow, or a queue of Node workers. Repeatable."),
    ],
    url: Url = None,
    lock: Annotated[
        float,
        typer.Option(
            parser=seconds(1),
            metavar="DURATION",
            help="Take back the jobs of a worker after this long without a heartbeat.",
        ),
    ] = 30,
    prefix: Prefix = DEFAULT_PREFIX,
    log_level: Level = LogLevel.INFO,
) -> None:
    """Supervise queues until SIGTERM or Ctrl-C. Any number may run: one of them leads each queue."""
    from glidemq_orchestrate.worker.services.supervisor import Supervisor  # noqa: PLC0415  no other command needs it

    log_to_stderr(log_level)
    Supervisor(url, queues=queue, prefix=prefix, lock_duration=lock).run()
