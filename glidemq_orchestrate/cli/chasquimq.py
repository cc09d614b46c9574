"""Commands for queues of ChasquiMQ: ``glidemq chasquimq``."""

from __future__ import annotations

from typing import Annotated

import typer

from glidemq_orchestrate.cli.process import loaded, start_log
from glidemq_orchestrate.cli.shell import (
    AllowImport,
    Apps,
    Concurrency,
    Level,
    LogJson,
    LogLevel,
    StopAfter,
    Url,
    reports_errors,
    seconds,
)

chasquimq_app = typer.Typer(name="chasquimq", help="Serve queues of ChasquiMQ.", no_args_is_help=True)


@chasquimq_app.callback()
def _group() -> None:
    """Serve queues of ChasquiMQ."""


@chasquimq_app.command()
@reports_errors
def worker(
    app_names: Apps,
    queue: Annotated[str, typer.Option(help="Queue of ChasquiMQ to serve.")],
    url: Url = None,
    concurrency: Concurrency = 10,
    attempts: Annotated[
        int, typer.Option(help="Maximum number of runs of a job without a number of its own.", min=1)
    ] = 25,
    unnamed: Annotated[
        str | None, typer.Option(help="Handler of jobs without a name. Default: they fail.")
    ] = None,
    group: Annotated[str, typer.Option(help="Consumer group of all workers of the queue.")] = "default",
    lease: Annotated[
        float,
        typer.Option(
            parser=seconds(1),
            metavar="DURATION",
            help="Let other workers take the jobs over after this long without a renewal.",
        ),
    ] = 30,
    stop_after: StopAfter = 30,
    require_chasquimq: Annotated[
        bool,
        typer.Option(
            "--require-chasquimq", help="Refuse a server on which ChasquiMQ's own workers cannot run."
        ),
    ] = False,
    allow_import: AllowImport = None,
    log_level: Level = LogLevel.INFO,
    log_json: LogJson = False,
) -> None:
    """Run the jobs of a queue of ChasquiMQ until SIGTERM or Ctrl-C; then finish them or give them back."""
    from glidemq_orchestrate.chasquimq.worker import ChasquiWorker  # noqa: PLC0415  no other command needs it

    start_log(log_level, as_json=log_json)
    handlers, packages = loaded(app_names, allow_import)
    ChasquiWorker(
        queue,
        url,
        handlers=handlers,
        unnamed=unnamed,
        concurrency=concurrency,
        attempts=attempts,
        lease=lease,
        group=group,
        require_chasquimq=require_chasquimq,
        shutdown_timeout=stop_after,
        allow_import=packages,
    ).run()
