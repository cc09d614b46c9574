"""The public surface, one line for each part: names, signatures, commands, options, exit codes.

``python -m tests.surface`` prints it; ``make generated`` writes it to ``tests/packaging/surface.txt``.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from enum import Enum
from types import ModuleType
from typing import Any, Final

import typer

from glidemq_orchestrate.cli import app
from glidemq_orchestrate.cli.flow.options import EXIT_CODES

PACKAGE: Final = "glidemq_orchestrate"
MODULES: Final = [
    PACKAGE,
    *(
        f"{PACKAGE}.{room}"
        for room in ("chasquimq", "clients", "errors", "events", "flows", "jobs", "pipes", "runs")
    ),
    *(f"{PACKAGE}.{room}" for room in ("spark", "testing", "worker")),
    "dagster_glidemq",
    *(f"airflow_provider_glidemq.{kind}.glidemq" for kind in ("hooks", "operators", "sensors", "triggers")),
]
OWN: Final = (PACKAGE, "dagster_glidemq", "airflow_provider_glidemq")
_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")


def text() -> str:
    """All lines, sorted."""
    known: dict[int, str] = {}
    lines = {line for name in MODULES for line in _module(importlib.import_module(name), known)}
    lines |= set(_command(typer.main.get_command(app), "glidemq"))
    lines |= {f"exit code {line}" for line in EXIT_CODES.splitlines() if line[:1].isdigit()}
    return "".join(f"{line}\n" for line in sorted(lines))


def _module(module: ModuleType, known: dict[int, str]) -> Iterator[str]:
    for name in _names(module):
        path, value = f"{module.__name__}.{name}", getattr(module, name)
        first = known.setdefault(id(value), path)
        yield from _part(path, value) if first == path else (f"{path} is {first}",)


def _names(module: ModuleType) -> list[str]:
    named = getattr(module, "__all__", None)
    if named is not None:
        return list(named)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
        if module.__name__.startswith(PACKAGE) or name.startswith("GlideMQ")
    ]


def _part(path: str, value: Any) -> Iterator[str]:
    if not inspect.isclass(value):
        yield f"{path}{_signature(value)}" if callable(value) else f"{path}: {type(value).__name__}"
        return
    if issubclass(value, Enum):
        yield from (f"{path}.{name} = {member.value!r}" for name, member in value.__members__.items())
        return
    if issubclass(value, BaseException):
        bases = ", ".join(base.__name__ for base in value.__mro__[1:-1] if base is not object)
        yield f"{path} is {bases}"
        return
    yield f"{path}{_signature(value)}"
    for name in sorted(dir(value)):
        part = inspect.getattr_static(value, name)
        if name.startswith("_") or inspect.isclass(part) or not _is_own(value, name):
            continue
        if isinstance(part, classmethod | staticmethod):
            part = part.__func__
        yield f"{path}.{name}{_signature(part)}" if callable(part) else f"{path}.{name}"


def _is_own(kind: type, name: str) -> bool:
    """Whether a class of this project defines the attribute."""
    home = next((one.__module__ for one in kind.__mro__ if name in vars(one)), "")
    return home.partition(".")[0] in OWN


def _signature(value: Any) -> str:
    try:
        return _ADDRESS.sub("", str(inspect.signature(value)))
    except (TypeError, ValueError):
        return "(...)"


def _command(command: Any, path: str) -> Iterator[str]:
    if commands := getattr(command, "commands", None):
        for name, one in commands.items():
            yield from _command(one, f"{path} {name}")
        return
    yield path
    for option in command.params:
        is_argument = option.param_type_name == "argument"
        names = [option.name] if is_argument else [*option.opts, *option.secondary_opts]
        yield f"{path} {'/'.join(names)}{' (required)' if option.required else ''}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        os.environ["AIRFLOW_HOME"] = home
        sys.stdout.write(text())
