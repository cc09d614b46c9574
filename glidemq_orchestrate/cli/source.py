"""The flow of a command: from a flow file, or from a function that returns one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from glidemq_orchestrate.errors import ConfigurationError, GlideMQError, InvalidFlow
from glidemq_orchestrate.flows.forms.reader import place_of
from glidemq_orchestrate.flows.spec import FlowSpec
from glidemq_orchestrate.foundation.functions import is_named, with_directory
from glidemq_orchestrate.foundation.texts import shown

FLOW_HELP: Final = (
    "Flow file, YAML or JSON (`glidemq flow schema` prints its schema), or package.module:function, "
    "which returns a FlowSpec or a dict."
)

Arguments = Annotated[
    list[str] | None,
    typer.Option(
        "--arg", metavar="NAME=VALUE", help="Argument of the function: JSON, or else text. Repeatable."
    ),
]


def flow_of(source: str, arguments: Sequence[str] | None) -> FlowSpec:
    """Read the flow file, or call the function.

    Raises:
        ConfigurationError, InvalidFlow: There is no such file or function, or it is not a valid flow.
    """
    given = dict(_argument(text) for text in arguments or ())
    if is_named(source) and not _is_file(source):
        with_directory()
        try:
            return FlowSpec.from_function(source, **given)
        except GlideMQError:
            raise
        except Exception as exc:
            raise InvalidFlow(f"flow {source} raised {type(exc).__name__}: {exc}") from exc
    if given:
        raise ConfigurationError(
            f"--arg is only valid for package.module:function; {shown(source)} is a flow file"
        )
    return FlowSpec.from_file(source)


@contextmanager
def located(source: str) -> Iterator[None]:
    """Name file and line in an error that is found only when the flow is checked as a whole."""
    try:
        yield
    except InvalidFlow as exc:
        if _is_file(source):
            names = [*getattr(exc, "missing", ()), *getattr(exc, "cycle", ()), *getattr(exc, "names", ())]
            exc.args = (f"{place_of(source, names)}: {exc}",)
        raise


def is_source(text: str) -> bool:
    """Whether a text names a flow file or a function; otherwise it is the id of a flow."""
    return text.endswith((".yaml", ".yml", ".json")) or is_named(text) or _is_file(text)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # for example, the name is too long
        return False


def _argument(text: str) -> tuple[str, Any]:
    name, is_given, value = text.partition("=")
    if not name.isidentifier() or not is_given:
        raise ConfigurationError(f"--arg {shown(text)} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value
