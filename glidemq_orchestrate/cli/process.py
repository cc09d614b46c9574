"""Commands that run in the foreground: ``glidemq server``, ``worker``, ``supervise`` and ``demo``."""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from pydantic import ByteSize, TypeAdapter

from glidemq_orchestrate.cli.shell import (
    AllowImport,
    Apps,
    Level,
    LogJson,
    LogLevel,
    MetricsHost,
    MetricsPortOption,
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
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.forking import left_open, start_method
from glidemq_orchestrate.foundation.functions import with_directory
from glidemq_orchestrate.shards import MAX_SHARDS
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX
from glidemq_orchestrate.worker.handlers.handler import Handlers

if TYPE_CHECKING:
    from glidemq_orchestrate.worker.services.worker import Worker
    from glidemq_orchestrate.worker.services.worker_process import Target

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
    """Log records as JSON objects: time (UTC), level, logger, message, and the record's own fields.

    Args:
        process: The number of this process, if it is one of several.
    """

    _COMMON = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime"}

    def __init__(self, process: int = 0) -> None:
        super().__init__()
        self._process = {"process": process} if process else {}

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._process,
        }
        own = record.__dict__.keys() - self._COMMON
        entry |= {name: record.__dict__[name] for name in sorted(own) if record.__dict__[name] is not None}
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def _size(text: str) -> int:
    """A parser for options that are sizes, such as ``800MB`` or ``1GiB``."""
    try:
        return int(TypeAdapter(ByteSize).validate_python(text))
    except ValueError as exc:
        raise typer.BadParameter("must be a size such as 800MB or 1GiB") from exc


@reports_errors
def worker(
    app_names: Apps,
    queue: Annotated[
        list[str], typer.Option(help="Queue to serve, with its shards if it has some. Repeatable.")
    ],
    url: Url = None,
    shards: Annotated[
        int | None,
        typer.Option(
            help="Number of shards of the queues, over which a cluster spreads them. A new queue gets them. "
            "Default: as many as each queue has. To add shards later: glidemq queue shards",
            min=1,
            max=MAX_SHARDS,
        ),
    ] = None,
    concurrency: Annotated[
        int,
        typer.Option(help="Maximum number of jobs that run at the same time, over all processes.", min=1),
    ] = 10,
    processes: Annotated[
        int | None,
        typer.Option(
            help="Number of processes, which share --concurrency. Default: one for each core that this "
            "machine, or its cgroup, allows; at most --concurrency; 1 with --reload, or if the app asks for "
            "one process, as that of Spark does. 1: no parent process.",
            min=1,
        ),
    ] = None,
    max_jobs: Annotated[
        int | None,
        typer.Option(
            help="Replace a process after about this many jobs or elements of arrays, one process at a time. "
            "It finishes its running jobs, however long they take; then the next one starts.",
            min=1,
        ),
    ] = None,
    max_memory: Annotated[
        int | None,
        typer.Option(
            parser=_size,
            metavar="SIZE",
            help="Replace a process, in the same way, when its memory (RSS) exceeds this size, such as 1GB.",
        ),
    ] = None,
    reload: Annotated[
        bool,
        typer.Option(
            "--reload", help="For development: restart when a Python file of the app, or here, changes."
        ),
    ] = False,
    lease: Annotated[
        float,
        typer.Option(
            parser=seconds(1),
            metavar="DURATION",
            help="Let other workers take the jobs over after this long without a heartbeat.",
        ),
    ] = 30,
    stop_after: StopAfter = 10,
    metrics_port: MetricsPortOption = None,
    metrics_host: MetricsHost = "127.0.0.1",
    allow_import: AllowImport = None,
    prefix: Prefix = DEFAULT_PREFIX,
    log_level: Level = LogLevel.INFO,
    log_json: LogJson = False,
) -> None:
    """Run jobs until SIGTERM or Ctrl-C; then finish them or return them to the queue.

    Runs one process for each core by default. A process that dies is replaced.
    """
    from glidemq_orchestrate.worker.services.worker import Worker  # noqa: PLC0415  no other command needs it
    from glidemq_orchestrate.worker.services.worker_process import Limits  # noqa: PLC0415
    from glidemq_orchestrate.worker.services.worker_processes import (  # noqa: PLC0415
        WorkerProcesses,
        process_count,
    )

    if processes is not None and processes > concurrency:
        raise ConfigurationError(
            f"--processes {processes} is more than --concurrency {concurrency}, which the processes share. "
            f"Fix: --concurrency {processes} or more"
        )
    serve = partial(
        _serve,
        app_names=app_names,
        allow_import=allow_import,
        log_level=log_level,
        log_json=log_json,
        url=url,
        queues=queue,
        shards=shards,
        prefix=prefix,
        lease=lease,
        shutdown_timeout=timedelta(seconds=stop_after),
    )
    start_log(log_level, as_json=log_json)
    limits, watched = Limits(max_jobs, max_memory), _sources(app_names, allow_import) if reload else []
    open_before, made = left_open(), list[Worker]()
    if not reload:  # the parent of processes that are restarted with other code loads none of it
        importlib.import_module("glidemq_orchestrate.io.aio")  # once, for all that are forked
        single = partial(serve, metrics_port=metrics_port, metrics_host=metrics_host)
        single(made.append, number=0, concurrency=concurrency)
    is_single = reload or made[0].handlers.single_process
    count = process_count(1 if processes is None and is_single else processes, concurrency)
    if count == 1 and not (reload or max_jobs or max_memory):
        made[0].run()
        return
    made.clear()
    places = [concurrency // count + (number < concurrency % count) for number in range(count)]
    targets = [
        partial(_serve_in_process, partial(serve, number=number, concurrency=share))
        for number, share in enumerate(places, 1)
    ]
    method = "spawn" if reload else start_method(open_before)
    metrics = None if metrics_port is None else (metrics_host, metrics_port)
    processes_ = WorkerProcesses(targets, limits=limits, method=method, watched=watched, metrics=metrics)
    if code := processes_.run():
        raise typer.Exit(code)


def _serve(
    run: Callable[[Worker], None],
    *,
    number: int,
    app_names: Sequence[str],
    allow_import: Sequence[str] | None,
    log_level: LogLevel,
    log_json: bool,
    **options: Any,
) -> None:
    """Run a worker in this process; ``number``: which one of several it is, or 0."""
    from glidemq_orchestrate.worker.services.worker import Worker  # noqa: PLC0415  no other command needs it

    start_log(log_level, as_json=log_json, process=number)
    handlers, packages = loaded(app_names, allow_import)
    run(Worker(handlers=handlers, allow_import=packages, **options))


def _serve_in_process(serve: Target, run: Callable[[Worker], None]) -> None:
    """Serve as one of several processes: an error is one line and an exit code here, too."""
    try:
        reports_errors(serve)(run)
    except typer.Exit as exc:
        sys.exit(exc.exit_code)


def _sources(app_names: Sequence[str], allow_import: Sequence[str] | None) -> list[Path]:
    """Where the Python files are to watch: this folder, and those of the packages that are elsewhere.

    Raises:
        ConfigurationError: The watcher is not installed.
    """
    if importlib.util.find_spec("watchfiles") is None:
        raise ConfigurationError("--reload needs watchfiles. Fix: pip install 'glidemq-orchestrate[reload]'")
    with_directory()
    here = Path.cwd()
    found = [here]
    for name in (*app_names, *(allow_import or ())):
        spec = importlib.util.find_spec(name.partition(":")[0].partition(".")[0])
        places = [] if spec is None else list(spec.submodule_search_locations or [])
        if spec is not None and not places and spec.origin is not None:
            places = [str(Path(spec.origin).parent)]
        found += [Path(place) for place in places if not Path(place).resolve().is_relative_to(here)]
    return found


def start_log(level: LogLevel, *, as_json: bool, process: int = 0) -> None:
    """Log to standard error, in lines of text or of JSON; with the number of the process if it is not 0."""
    log_to_stderr(level, process)
    if as_json:
        for root_handler in logging.getLogger().handlers:
            root_handler.setFormatter(JsonLines(process))


def loaded(app_names: Sequence[str], allow_import: Sequence[str] | None) -> tuple[Handlers, Sequence[str]]:
    """The handlers of the modules of a worker, and the packages from which they may import."""
    from glidemq_orchestrate.worker.services.apps import load_handlers, package_of  # noqa: PLC0415  see worker

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
