"""The command line ``glidemq``: arguments, output, exit codes (0 done, 1 failed, 2 the request is wrong)."""

from __future__ import annotations

import importlib
import json
import logging
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NoReturn, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.live import Live

from glidemq_orchestrate._view import flow_view
from glidemq_orchestrate.embedded import EmbeddedServer
from glidemq_orchestrate.errors import (
    CodecError,
    ConfigurationError,
    GlideMQError,
    InvalidFlow,
    InvalidJob,
)
from glidemq_orchestrate.flow import FlowOutcome, FlowSpec, FlowState, NodeStatus
from glidemq_orchestrate.handler import Handlers
from glidemq_orchestrate.keys import DEFAULT_PREFIX
from glidemq_orchestrate.library import Libraries, LibraryStatus, source
from glidemq_orchestrate.producer import Flow, FlowProducer
from glidemq_orchestrate.worker import Worker

P = ParamSpec("P")
T = TypeVar("T")

app = typer.Typer(
    name="glidemq",
    help="Run DAGs as flows of jobs on Valkey, in the format of glide-mq.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
flow_app = typer.Typer(name="flow", help="Submit flows and look at them.", no_args_is_help=True)
app.add_typer(flow_app)
library_app = typer.Typer(
    name="library", help="Look at the server's function libraries and load them.", no_args_is_help=True
)
app.add_typer(library_app)

# Output that goes to a file or a pipe has no width of its own.
console = Console() if sys.stdout.isatty() else Console(width=120)
errors = Console(stderr=True, soft_wrap=True)

Url = Annotated[
    str | None,
    typer.Option(envvar="GLIDEMQ_URL", show_envvar=True, help="The server, such as valkey://127.0.0.1:6379."),
]
Prefix = Annotated[str, typer.Option(help="First part of every key, as in glide-mq.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON for programs instead of a table for people.")
]


def _told(command: Callable[P, T]) -> Callable[P, T]:
    """Turn the errors of this package into one sentence and an exit code."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except (ConfigurationError, InvalidFlow, InvalidJob, CodecError) as exc:
            _stop(exc, 2)
        except GlideMQError as exc:
            _stop(exc, 1)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None

    return run


def _stop(exc: GlideMQError, code: int) -> NoReturn:
    errors.print(f"[bold red]{type(exc).__name__}[/]: ", end="")
    errors.print(str(exc), markup=False, highlight=False)
    raise typer.Exit(code) from exc


@app.command()
@_told
def server(
    data: Annotated[Path, typer.Option(help="Directory for the data; made if missing.")] = Path(
        "glidemq-data"
    ),
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.", min=1, max=65535)] = 6379,
) -> None:
    """Run an embedded Valkey in the foreground until Ctrl-C. Its data survives a restart."""
    with EmbeddedServer(data_dir=data, port=port) as running:
        ended = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: ended.set())
        console.print(f"Valkey listens on {running.url}, data in {data.resolve()}. Ctrl-C stops it.")
        console.print(f"In another terminal: export GLIDEMQ_URL={running.url}", highlight=False)
        ended.wait()


@app.command()
@_told
def worker(
    app_names: Annotated[
        list[str],
        typer.Option(
            "--app", help="Module with handlers: package.module or package.module:name. Repeatable."
        ),
    ],
    queue: Annotated[list[str], typer.Option(help="Queue to serve. Repeatable.")],
    url: Url = None,
    concurrency: Annotated[int, typer.Option(help="Jobs at the same time.", min=1)] = 10,
    lock: Annotated[
        float, typer.Option(help="Seconds without a sign of life until others take the jobs over.", min=1)
    ] = 30,
    stop_after: Annotated[
        float, typer.Option(help="Seconds to wait for running jobs at a stop.", min=0)
    ] = 10,
    prefix: Prefix = DEFAULT_PREFIX,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run jobs until SIGTERM or Ctrl-C; then finish or give back what it holds."""
    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S"
    )
    handlers = Handlers()
    for name in app_names:
        handlers.include(load_handlers(name))
    Worker(
        url,
        queues=queue,
        concurrency=concurrency,
        handlers=handlers,
        prefix=prefix,
        lock_duration=timedelta(seconds=lock),
        shutdown_timeout=timedelta(seconds=stop_after),
    ).run()


@flow_app.command("submit")
@_told
def flow_submit(
    file: Annotated[
        Path, typer.Argument(help="Flow file, YAML or JSON: {name, nodes: [{name, queue, job, ...}]}.")
    ],
    url: Url = None,
    flow_id: Annotated[
        str | None, typer.Option("--id", help="Submit under this id; the same id attaches.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Watch the flow until it ends.")] = True,
    retry_failed: Annotated[
        bool, typer.Option(help="If it is there and failed, run again what did not complete.")
    ] = False,
    require_workers: Annotated[bool, typer.Option(help="Refuse when no live worker can run it.")] = True,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Submit a flow, all or nothing, and watch it. Exit code 1 when it fails."""
    spec = FlowSpec.from_file(file)
    with FlowProducer(url, prefix=prefix) as flows:
        flow = flows.submit(
            spec,
            flow_id=flow_id,
            on_existing="retry_failed" if retry_failed else "attach",
            require_workers=require_workers,
        )
        _follow(flow, as_json=as_json) if wait else _show(flow, as_json=as_json)


FlowIdArgument = Annotated[str, typer.Argument(metavar="FLOW_ID", help="The flow's id.")]


@flow_app.command("show")
@_told
def flow_show(
    flow_id: FlowIdArgument, url: Url = None, prefix: Prefix = DEFAULT_PREFIX, as_json: AsJson = False
) -> None:
    """Show a flow's state, counts and nodes."""
    with FlowProducer(url, prefix=prefix) as flows:
        _show(flows.get(flow_id), as_json=as_json)


@flow_app.command("watch")
@_told
def flow_watch(
    flow_id: FlowIdArgument, url: Url = None, prefix: Prefix = DEFAULT_PREFIX, as_json: AsJson = False
) -> None:
    """Follow a flow until it ends. Exit code 1 when it fails."""
    with FlowProducer(url, prefix=prefix) as flows:
        _follow(flows.get(flow_id), as_json=as_json)


@flow_app.command("cancel")
@_told
def flow_cancel(
    flow_id: FlowIdArgument,
    url: Url = None,
    reason: Annotated[str, typer.Option(help="Why; readers of the flow see it.")] = "by command line",
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """End every node that has not ended; running handlers are told. An ended flow stays as it is."""
    with FlowProducer(url, prefix=prefix) as flows:
        flow = flows.get(flow_id)
        flow.cancel(reason)
        _show(flow, as_json=as_json)


@flow_app.command("retry")
@_told
def flow_retry(
    flow_id: FlowIdArgument,
    url: Url = None,
    wait: Annotated[bool, typer.Option(help="Watch the flow until it ends.")] = True,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: AsJson = False,
) -> None:
    """Run again what did not complete of a failed or cancelled flow; completed nodes keep their results."""
    with FlowProducer(url, prefix=prefix) as flows:
        flow = flows.get(flow_id)
        flow.retry_failed()
        _follow(flow, as_json=as_json) if wait else _show(flow, as_json=as_json)


@library_app.command("status")
@_told
def library_status(url: Url = None, as_json: AsJson = False) -> None:
    """Show which libraries are on the server (on each primary of its cluster) and whether they are ours."""
    with Libraries(url) as libraries:
        _show_libraries(libraries.status(), as_json=as_json)


@library_app.command("load")
@_told
def library_load(
    url: Url = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Also replace what somebody else has loaded.")
    ] = False,
) -> None:
    """Load what is missing, on every primary of a cluster. Exit code 1 when a foreign one was left alone."""
    with Libraries(url) as libraries:
        _show_libraries(libraries.load(replace=replace), as_json=False)


@library_app.command("print")
@_told
def library_print(
    name: Annotated[str, typer.Argument(help="glidemq or glidemq_orchestrate.")] = "glidemq",
) -> None:
    """Write the source of a library to standard output."""
    typer.echo(source(name), nl=False)


@app.command()
@_told
def demo(
    orchestrator: Annotated[str, typer.Option(help="airflow or dagster.")] = "airflow",
    home: Annotated[Path, typer.Option(help="Where the demo keeps its data.")] = Path(".demo"),
    project: Annotated[Path, typer.Option(help="The checkout with the example DAGs.")] = Path(),
) -> None:
    """Run the flights pipeline: a real orchestrator, a real Valkey, a worker with a warm Spark session."""
    from glidemq_orchestrate.demo.run import run_demo  # noqa: PLC0415  needs the demo extra

    run_demo(orchestrator, home=home.resolve(), project=project.resolve(), console=console)


def load_handlers(name: str) -> Handlers:
    """The handlers that ``module`` or ``module:name`` holds, directly or in a Worker.

    Raises:
        ConfigurationError: There is no such module or name, or no handlers in it.
    """
    module_name, _, attribute = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and not f"{module_name}.".startswith(f"{exc.name}."):
            raise ConfigurationError(
                f"--app {name}: {module_name} needs the module {exc.name}, which is missing"
            ) from exc
        raise ConfigurationError(
            f"--app {name}: there is no module {exc.name}; is it installed or below here?"
        ) from exc
    found = [getattr(module, attribute, None)] if attribute else list(vars(module).values())
    for thing in found:
        if isinstance(thing, Handlers):
            return thing
        if isinstance(thing, Worker):
            return thing.handlers
    raise ConfigurationError(f"--app {name} holds no handlers: make a glidemq_orchestrate.Handlers() there")


def _follow(flow: Flow, *, as_json: bool) -> None:
    """Watch a flow until it ends, then show it; the exit code tells whether it completed."""
    _watch(flow, quiet=as_json)
    _show(flow, as_json=as_json)
    if flow.status().state is not FlowState.COMPLETED:
        raise typer.Exit(1)


def _watch(flow: Flow, *, quiet: bool) -> None:
    if quiet or not console.is_terminal:
        flow.wait()
        return
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        while not (status := flow.status()).state.is_terminal:
            live.update(flow_view(status, flow.nodes()))
            _wait_a_little(flow)


def _wait_a_little(flow: Flow) -> None:
    try:
        flow.wait(timeout=timedelta(milliseconds=400))
    except GlideMQError as exc:
        if not exc.retryable:
            raise


def _show(flow: Flow, *, as_json: bool) -> None:
    outcome, nodes = flow.outcome(), flow.nodes()
    if as_json:
        typer.echo(json.dumps(_as_json(outcome, nodes), default=str, indent=2))
    else:
        console.print(flow_view(outcome.status, nodes))


def _as_json(outcome: FlowOutcome, nodes: list[NodeStatus]) -> dict[str, Any]:
    shown = [{**asdict(node), "seconds": node.seconds} for node in nodes]
    return {"flow": asdict(outcome.status), "nodes": shown, "results": dict(outcome.results)}


def _show_libraries(found: dict[str, list[LibraryStatus]], *, as_json: bool) -> None:
    rows = [{"server": server, **asdict(status)} for server, statuses in found.items() for status in statuses]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    words = {True: "ours", False: "not ours"}
    for row in rows:
        told = f"{words[row['ours']]}, version {row['version'] or 'unknown'}, sha256 {row['sha256']}"
        line = f"{row['server']}  {row['name']}: {told if row['loaded'] else 'not loaded'}"
        typer.echo(line)


def main() -> None:
    """Entry point of the ``glidemq`` command."""
    app()
