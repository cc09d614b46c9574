"""The command line ``glidemq``: arguments, output, exit codes (0 success, 1 failure, 2 invalid, ...)."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from glidemq_orchestrate import __version__
from glidemq_orchestrate.cli import process
from glidemq_orchestrate.cli.bridge import bridge_app
from glidemq_orchestrate.cli.chaos import chaos_app
from glidemq_orchestrate.cli.chasquimq import chasquimq_app
from glidemq_orchestrate.cli.events import events
from glidemq_orchestrate.cli.flow import flow_app
from glidemq_orchestrate.cli.init import init
from glidemq_orchestrate.cli.job import job_app
from glidemq_orchestrate.cli.queue import queue_app
from glidemq_orchestrate.cli.scheduler import scheduler_app
from glidemq_orchestrate.cli.server import doctor, library_app
from glidemq_orchestrate.cli.shell import Commands
from glidemq_orchestrate.cli.track import track
from glidemq_orchestrate.cli.ui import ui

app = typer.Typer(
    name="glidemq",
    cls=Commands,
    help="Run DAGs as flows of jobs on Valkey, in the format of glide-mq.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_version(is_set: bool) -> None:  # noqa: FBT001  as typer calls it
    if is_set:
        typer.echo(f"glidemq-orchestrate {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """The options of the command itself."""


app.command()(init)
app.command()(process.server)
app.command()(process.worker)
app.command()(process.supervise)
app.command()(ui)
app.add_typer(bridge_app)
app.add_typer(chasquimq_app)
app.add_typer(flow_app)
app.add_typer(queue_app)
app.add_typer(job_app)
app.add_typer(library_app)
app.add_typer(scheduler_app)
app.command()(events)
app.command()(track)
app.command()(doctor)
app.add_typer(chaos_app)
app.command()(process.demo)


def main() -> None:
    """Entry point of the ``glidemq`` command."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # names on the wire may hold bytes that are not text
        sys.stdout.reconfigure(errors="backslashreplace")
    app()
