"""What all commands share: the console, common options, and errors as one sentence and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Annotated, NoReturn, ParamSpec, TypeVar

import typer
from rich.console import Console

from glidemq_orchestrate.errors import (
    CodecError,
    ConfigurationError,
    GlideMQError,
    InvalidFlow,
    InvalidJob,
)

P = ParamSpec("P")
T = TypeVar("T")

# Output that goes to a file or a pipe has no width of its own.
console = Console() if sys.stdout.isatty() else Console(width=120)
errors = Console(stderr=True, soft_wrap=True)

Url = Annotated[
    str | None,
    typer.Option(
        envvar="GLIDEMQ_URL",
        show_envvar=True,
        help="The server: valkey://HOST:PORT; valkeys:// with TLS; valkey+cluster://, valkey+sentinel://.",
    ),
]
Prefix = Annotated[str, typer.Option(help="First part of every key, as in glide-mq.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON for programs instead of a table for people.")
]


def told(command: Callable[P, T]) -> Callable[P, T]:
    """Turn the errors of this package into one sentence and an exit code."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except (ConfigurationError, InvalidFlow, InvalidJob, CodecError) as exc:
            stop_with(exc, 2)
        except GlideMQError as exc:
            stop_with(exc, 1)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None

    return run


def stop_with(exc: GlideMQError, code: int) -> NoReturn:
    errors.print(f"[bold red]{type(exc).__name__}[/]: ", end="")
    errors.print(str(exc), markup=False, highlight=False)
    raise typer.Exit(code) from exc
