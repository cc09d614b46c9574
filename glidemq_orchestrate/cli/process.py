"""Commands that run in the foreground: ``glidemq server``, ``worker``, ``supervise`` and ``demo``."""

from __future__ import annotations

import importlib
import json
import logging
import signal
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from glidemq_orchestrate.cli.shell import (
    AllowImport,
    Apps,
    Concurrency,
    Level,
    LogJson,
    LogLevel,
    Prefix,
    StopAfter,
    Url,
    console,
    errors,
    log_to_stderr,
    reports_errors,
    seconds,
)
from glidemq_orchestrate.embedded import EmbeddedServer
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX
from glidemq_orchestrate.worker.handlers.handler import Handlers

CHECK_SECONDS: Final = 0.5
LOG_FILE: Final = "valkey.log"


@reports_errors
def server(
    data: Annotated[Path, typer.Option(help="Directory of the data; created if missing.")] = Path(
        "glidemq-data"
    ),
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.", min=1, max=65535)] = 6379,
) -> None:
    """Run an embedded Valkey in the foreground until Ctrl-C. Its data survives a restart.

    If Valkey ends or is killed, the command ends too, with exit code 1.
    """
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # first: no signal may leave Valkey running
        signal.signal(number, lambda *_: ended.set())
    with EmbeddedServer(data_dir=data, port=port) as running:
        console.print(
            f"Valkey listens on {running.url}, data in {data.resolve()}. Ctrl-C stops it.", markup=False
        )
        console.print(f"In another terminal: export GLIDEMQ_URL={running.url}", highlight=False, markup=False)
        while not ended.wait(CHECK_SECONDS):
            # Ctrl-C may reach Valkey first.
            if running.exit_code is not None and not ended.wait(CHECK_SECONDS):
                _print_end(running.exit_code, data.resolve() / LOG_FILE)
                raise typer.Exit(1)


def _print_end(code: int, log: Path) -> None:
    """Print how the process of the server ended."""
    how = (
        f"was killed by signal {-code} ({signal.strsignal(-code)})"
        if code < 0
        else f"ended with exit code {code}"
    )
    errors.print(f"Valkey {how}. Its log: {log}", markup=False, highlight=False)


class JsonLines(logging.Formatter):
    """Log records as JSON objects: time (UTC), level, logger, message, and the record's own fields."""

    _COMMON = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        own = record.__dict__.keys() - self._COMMON
        entry |= {name: record.__dict__[name] for name in sorted(own) if record.__dict__[name] is not None}
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


@reports_errors
def worker(
    app_names: Apps,
    queue: Annotated[list[str], typer.Option(help="Queue to serve. Repeatable.")],
    url: Url = None,
    concurrency: Concurrency = 10,
    lease: Annotated[
        float,
        typer.Option(
            parser=seconds(1),
            metavar="DURATION",
            help="Let other workers take the jobs over after this long without a heartbeat.",
        ),
    ] = 30,
    stop_after: StopAfter = 10,
    allow_import: AllowImport = None,
    prefix: Prefix = DEFAULT_PREFIX,
    log_level: Level = LogLevel.INFO,
    log_json: LogJson = False,
) -> None:
    """Run jobs until SIGTERM or Ctrl-C; then finish them or return them to the queue."""
    from glidemq_orchestrate.worker.services.worker import Worker  # noqa: PLC0415  no other command needs it

    start_log(log_level, as_json=log_json)
    handlers, packages = loaded(app_names, allow_import)
    Worker(
        url,
        queues=queue,
        concurrency=concurrency,
        handlers=handlers,
        prefix=prefix,
        lease=lease,
        shutdown_timeout=timedelta(seconds=stop_after),
        allow_import=packages,
    ).run()


def start_log(level: LogLevel, *, as_json: bool) -> None:
    """Log to standard error, in lines of text or of JSON."""
    log_to_stderr(level)
    if as_json:
        for root_handler in logging.getLogger().handlers:
            root_handler.setFormatter(JsonLines())


def loaded(app_names: Sequence[str], allow_import: Sequence[str] | None) -> tuple[Handlers, Sequence[str]]:
    """The handlers of the modules of a worker, and the packages from which they may import."""
    from glidemq_orchestrate.worker.services.worker import load_handlers, package_of  # noqa: PLC0415  see worker

    handlers = Handlers()
    for name in app_names:
        handlers.include(load_handlers(name))
    return handlers, allow_import or [package_of(name) for name in app_names]


@reports_errors
def demo(
    orchestrator: Annotated[
        str, typer.Option(help="The orchestrator to start: airflow or dagster.")
    ] = "airflow",
    home: Annotated[Path, typer.Option(help="Directory of the demo's data.")] = Path(".demo"),
    project: Annotated[Path, typer.Option(help="Checkout with the example DAGs.")] = Path(),
    months: Annotated[str, typer.Option(help="Months of 2013, such as 1,2; all by default.")] = "",
) -> None:
    """Run the flights pipeline with a real orchestrator, a real Valkey and a worker with a Spark session."""
    # By name: the demo is a layer above the command line, and needs its extra.
    run_demo = importlib.import_module("glidemq_orchestrate.demo.run").run_demo
    run_demo(orchestrator, home=home.resolve(), project=project.resolve(), months=months, console=console)


@reports_errors
def supervise(
    queue: Annotated[
        list[str],
        typer.Option(help="Queue to supervise: the home of a flow, or a queue of Node workers. Repeatable."),
    ],
    url: Url = None,
    lease: Annotated[
        float,
        typer.Option(
            parser=seconds(1),
            metavar="DURATION",
            help="Return the jobs of a worker to the queue after this long without a heartbeat.",
        ),
    ] = 30,
    prefix: Prefix = DEFAULT_PREFIX,
    log_level: Level = LogLevel.INFO,
) -> None:
    """Supervise queues until SIGTERM or Ctrl-C. Any number of supervisors may run: one leads each queue."""
    from glidemq_orchestrate.worker.services.supervisor import Supervisor  # noqa: PLC0415  no other command needs it

    log_to_stderr(log_level)
    Supervisor(url, queues=queue, prefix=prefix, lease=lease).run()
