"""Commands that let workers of other systems run our jobs: ``glidemq bridge``."""

from __future__ import annotations

from typing import Annotated

import typer

from glidemq_orchestrate.cli.shell import (
    Level,
    LogLevel,
    MetricsHost,
    MetricsPortOption,
    Prefix,
    StopAfter,
    Url,
    log_to_stderr,
    reports_errors,
    seconds,
)
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX

bridge_app = typer.Typer(name="bridge", help="Let workers of another system run jobs.", no_args_is_help=True)


@bridge_app.callback()
def _group() -> None:
    """Let workers of another system run jobs."""


@bridge_app.command()
@reports_errors
def chasquimq(
    queue: Annotated[str, typer.Option(help="Queue to serve.")],
    url: Url = None,
    chasquimq_url: Annotated[
        str | None, typer.Option(help="URL of the server of ChasquiMQ. Default: the same server.")
    ] = None,
    chasquimq_queue: Annotated[
        str | None, typer.Option(help="Queue of ChasquiMQ. Default: the one of the same name.")
    ] = None,
    group: Annotated[str, typer.Option(help="Consumer group of the workers of ChasquiMQ.")] = "default",
    concurrency: Annotated[
        int, typer.Option(help="Maximum number of jobs that are handed over at the same time.", min=1)
    ] = 100,
    lease: Annotated[
        float,
        typer.Option(
            parser=seconds(1),
            metavar="DURATION",
            help="Let another bridge take the jobs over after this long without a heartbeat.",
        ),
    ] = 30,
    stop_after: StopAfter = 1,
    metrics_port: MetricsPortOption = None,
    metrics_host: MetricsHost = "127.0.0.1",
    prefix: Prefix = DEFAULT_PREFIX,
    log_level: Level = LogLevel.INFO,
) -> None:
    """Run the jobs of a queue in workers of ChasquiMQ until SIGTERM or Ctrl-C; then give them back."""
    from glidemq_orchestrate.chasquimq.bridge import ChasquiBridge  # noqa: PLC0415  no other command needs it

    log_to_stderr(log_level)
    ChasquiBridge(
        queue,
        url,
        chasquimq_url=chasquimq_url,
        chasquimq_queue=chasquimq_queue,
        group=group,
        concurrency=concurrency,
        lease=lease,
        shutdown_timeout=stop_after,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        prefix=prefix,
    ).run()
