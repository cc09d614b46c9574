"""The console, tables, the options of all commands, and errors as one line and an exit code.

All text that the command line prints for people passes through ``printable``: external names, reasons and
logs may contain escape sequences.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, ParamSpec, TypeVar

import typer
import typer.core
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from glidemq_orchestrate.cli.completion import ids_like, queue_names
from glidemq_orchestrate.errors import (
    CodecError,
    ConfigurationError,
    EncodeError,
    FlowNotFound,
    GlideMQError,
    InvalidFlow,
    InvalidJob,
    TransportError,
)
from glidemq_orchestrate.foundation.durations import setting_duration
from glidemq_orchestrate.foundation.texts import plain
from glidemq_orchestrate.foundation.values import MAX_DURATION

_UNKNOWN: Final = "\ufffd"
_ODD: Final[dict[int, str | int]] = {
    **{code: 0x2400 + code for code in range(0x20)},  # C0: the Unicode control pictures
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), _UNKNOWN),  # C1: 0x9b alone starts an escape sequence
    # Bidirectional controls, which could make a name look like another.
    **dict.fromkeys((0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), _UNKNOWN),
    **dict.fromkeys((0x2028, 0x2029), _UNKNOWN),
    **dict.fromkeys(range(0xD800, 0xE000), _UNKNOWN),
}
_IN_LINE: Final = {code: sign for code, sign in _ODD.items() if code != ord("\t")}
_IN_LINES: Final = {code: sign for code, sign in _IN_LINE.items() if code != ord("\n")}


def printable(text: str, *, lines: bool = False) -> str:
    """The text with control characters replaced; tabs stay, and with ``lines`` line ends too."""
    if text.isascii() and text.isprintable():
        return text
    return text.translate(_IN_LINES if lines else _IN_LINE)


class SafeConsole(Console):
    """A rich console that makes external text printable; its own colours still work."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Make every piece of text printable."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(printable(text, lines=True), style)


class SafeFormatter(logging.Formatter):
    """Makes log records printable: a message is one line, a traceback keeps its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the base class's name
        """The line of a record."""
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802  the base class's name
        """The traceback of a record."""
        return printable(super().formatException(ei), lines=True)


UNREACHABLE: Final = 4
MAX_WIDTH: Final = 1_000
PROGRESS_SECONDS: Final = 0.5
_DISK: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
P = ParamSpec("P")
T = TypeVar("T")

if sys.stdout is None:  # the caller has closed it
    sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  for the life of the process
if sys.stderr is None:
    sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115


# A file or a pipe has no width.
console = SafeConsole() if sys.stdout.isatty() else SafeConsole(width=120)
errors = SafeConsole(stderr=True, soft_wrap=True)

Url = Annotated[
    str | None,
    typer.Option(
        envvar="GLIDEMQ_URL",
        show_envvar=True,
        help="The server: valkey://HOST:PORT; valkeys:// with TLS; valkey+cluster://, valkey+sentinel://.",
    ),
]
Prefix = Annotated[str, typer.Option(help="Prefix of all keys, as in glide-mq.")]
AllowImport = Annotated[
    list[str] | None,
    typer.Option(
        help="Allow python and spark.python jobs to import functions from this package. Repeatable; "
        "default: the packages of --app."
    ),
]
Apps = Annotated[
    list[str],
    typer.Option("--app", help="Module with handlers, as package.module or package.module:name. Repeatable."),
]
QueueName = Annotated[
    str, typer.Argument(metavar="QUEUE", help="Name of the queue.", autocompletion=queue_names)
]
QueueOption = Annotated[
    str, typer.Option("--queue", "-q", help="Name of the queue.", autocompletion=queue_names)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def reports_errors(command: Callable[P, T]) -> Callable[P, T]:
    """Turn the errors of this package into one line and an exit code."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except (ConfigurationError, InvalidFlow, InvalidJob, CodecError) as exc:
            stop_with(exc, 2)
        except TransportError as exc:
            stop_with(exc, UNREACHABLE if exc.retryable else 1)
        except GlideMQError as exc:
            stop_with(_with_ids(exc, kwargs), 1, exc)
        except BrokenPipeError:  # ``| head`` has read enough
            raise
        except OSError as exc:
            if exc.errno not in _DISK or exc.filename is not None:
                raise
            stop_with(ConfigurationError(f"the output cannot be written: {exc.strerror}"), 1, exc)
        except UnicodeEncodeError as exc:
            stop_with(ConfigurationError("an argument is not UTF-8 text"), 2, exc)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None

    return run


def _with_ids(exc: GlideMQError, options: Mapping[str, Any]) -> GlideMQError:
    """The error; for an unknown flow, with the ids of newest flows that begin with the given text."""
    given = options.get("flow_id")
    found = ids_like(options, given) if isinstance(exc, FlowNotFound) and isinstance(given, str) else []
    return FlowNotFound(f"{exc}. Ids that begin with it: {', '.join(found[:3])}") if found else exc


class Commands(typer.core.TyperGroup):
    """All commands; typer's messages about their options are reworded."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as exc:
            exc.message = plain(exc.message)
            raise


def stop_with(exc: GlideMQError, code: int, cause: Exception | None = None) -> NoReturn:
    """Print an error in one line and exit."""
    errors.print(f"[bold red]{type(exc).__name__}[/]: ", end="")
    errors.print(printable(str(exc)), markup=False, highlight=False)
    raise typer.Exit(code) from cause or exc


def print_text(text: str, *, lines: bool = False, end: str = "\n") -> None:
    """Print a line, or several. Control characters are replaced; JSON is ASCII and stays unchanged."""
    typer.echo(printable(text, lines=lines) + end, nl=False)


def print_json(value: object, *, indent: int | None = 2) -> None:
    """Print a JSON document, in which JSON escapes control characters."""
    typer.echo(json.dumps(value, default=as_json_value, indent=indent))


def print_rows(table: RenderableType, *, whole: bool = False) -> None:
    """Print a table, or a group with one; outside a terminal, and with ``whole``, each row in one line."""
    if console.is_terminal and not whole:
        console.print(table)
        return
    wide = SafeConsole(width=MAX_WIDTH)
    wide.width = Measurement.get(wide, wide.options, table).maximum
    wide.print(table, crop=False)


@contextmanager
def progress(text: str, left: Callable[[], int]) -> Iterator[None]:
    """Show, in a terminal, that a command still works, and how many jobs are left, each half second."""
    if not errors.is_terminal:
        yield
        return
    done = threading.Event()
    with errors.status(text) as status:

        def count() -> None:
            while not done.wait(PROGRESS_SECONDS):
                with suppress(GlideMQError):
                    status.update(f"{text}: {left():,} left")

        counting = threading.Thread(target=count, daemon=True)
        counting.start()
        try:
            yield
        finally:
            done.set()
            counting.join(PROGRESS_SECONDS)


def read_json(text: str, option: str) -> Any:
    """The value of an option that is JSON.

    Raises:
        EncodeError: The text is not JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise EncodeError(f"--{option} is not valid JSON", where=option) from exc


def as_json_value(value: object) -> object:
    """A value that JSON cannot express: times as ISO 8601, durations as seconds."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime):
        return value.isoformat()
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def seconds(least: float = 0) -> Callable[[str], float]:
    """A parser for options that are durations: seconds, or a text such as ``5m``; with a minimum."""

    def parse(text: str) -> float:
        try:
            span = setting_duration("it", text, min_=timedelta(seconds=least), max_=MAX_DURATION)
        except ConfigurationError as exc:
            raise typer.BadParameter(str(exc).removeprefix("it ")) from exc
        return span.total_seconds()

    return parse


class LogLevel(StrEnum):
    """The lowest level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


Level = Annotated[
    LogLevel, typer.Option("--log-level", case_sensitive=False, help="Log this level and those above.")
]
LogJson = Annotated[bool, typer.Option("--log-json", help="Log one JSON object per line.")]
Concurrency = Annotated[int, typer.Option(help="Maximum number of jobs that run at the same time.", min=1)]
StopAfter = Annotated[
    float,
    typer.Option(parser=seconds(), metavar="DURATION", help="Wait this long for running jobs at shutdown."),
]
MetricsPortOption = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        help="Serve what it counts, over all its processes, to Prometheus: at /metrics of this port. 0: any "
        "free port, which is logged. Needs the extra 'metrics'. Default: do not.",
        min=0,
        max=65535,
    ),
]
MetricsHost = Annotated[str, typer.Option("--metrics-host", help="The address of that port.")]


def log_to_stderr(level: LogLevel, process: int = 0) -> None:
    """Write the log of this process to standard error; of one of several, with its number in each line."""
    logging.basicConfig(level=level.upper())
    line = f"%(asctime)s %(levelname)-7s {f'[{process}] ' if process else ''}%(message)s"
    for handler in logging.getLogger().handlers:
        handler.setFormatter(SafeFormatter(line, datefmt="%H:%M:%S"))


def summary_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """A small table of results; the columns are the keys of the first row."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 3, 0, 0))
    columns = list(rows[0]) if rows else []
    for name in columns:
        table.add_column(
            name.replace("_", " "), justify="left" if isinstance(rows[0][name], str) else "right"
        )
    for row in rows:
        table.add_row(*(Text(_cell(row.get(name))) for name in columns))
    return table


def _cell(value: Any) -> str:
    return (
        f"{value:,.1f}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )
