"""The flow that a command is given: a flow file, or a function that makes one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from glidemq_orchestrate.errors import ConfigurationError, GlideMQError, InvalidFlow
from glidemq_orchestrate.flows.spec import FlowSpec
from glidemq_orchestrate.foundation.named import is_named, with_directory
from glidemq_orchestrate.foundation.names import shown

FLOW_HELP: Final = (
    "Flow file, YAML or JSON (`glidemq flow schema` prints its schema), or package.module:function, "
    "which returns a FlowSpec or a dict."
)

Arguments = Annotated[
    list[str] | None,
    typer.Option(
        "--arg", metavar="NAME=VALUE", help="Argument for the function; JSON, else a text. Repeatable."
    ),
]


def flow_of(source: str, arguments: Sequence[str] | None) -> FlowSpec:
    """Read the flow file, or call the function.

    Raises:
        ConfigurationError, InvalidFlow: There is no such file or function, or it makes no flow.
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
        raise ConfigurationError(f"--arg is for package.module:function; {shown(source)} is a flow file")
    return FlowSpec.from_file(source)


def is_source(text: str) -> bool:
    """Whether that names a flow file or a function; else it is an id of a flow."""
    return text.endswith((".yaml", ".yml", ".json")) or is_named(text) or _is_file(text)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long a name, say
        return False


def _argument(text: str) -> tuple[str, Any]:
    name, is_given, value = text.partition("=")
    if not name.isidentifier() or not is_given:
        raise ConfigurationError(f"--arg {shown(text)} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value
