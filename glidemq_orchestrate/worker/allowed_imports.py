"""Which modules named by a job a worker may import: only those in the packages it was started with."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final

from glidemq_orchestrate.errors import ConfigurationError

_REMEDY: Final = "start the worker with --allow-import PACKAGE, or Worker(allow_import=[...])"


class ImportNotAllowed(Exception):
    """The worker was not started with a package that contains this module; nothing was imported."""

    def __init__(self, module: str, allowed: Sequence[str]) -> None:
        may = f"from {', '.join(allowed)}" if allowed else "nothing that a job names"
        super().__init__(f"this worker may not import {module}: it imports {may}; {_REMEDY}")


def check_packages(names: Sequence[str]) -> tuple[str, ...]:
    """The packages of an allow-list, checked.

    Raises:
        ConfigurationError: Not a list, or one of them is not the dotted name of a package or module.
    """
    if isinstance(names, str):
        raise ConfigurationError(f"allow_import must be a list of packages, got the text {names[:100]!r}")
    for name in names:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise ConfigurationError(
                f"allow_import: {str(name)[:100]!r} is not the name of a package, such as mypackage.steps"
            )
    return tuple(dict.fromkeys(names))


def is_allowed(module: str, allowed: Sequence[str]) -> bool:
    """Whether a module is one of the packages or inside one, by whole parts of its name."""
    return any(f"{module}.".startswith(f"{package}.") for package in allowed)


def import_allowed(module: str, allowed: Sequence[str]) -> ModuleType:
    """Import a module that a job names.

    Raises:
        ImportNotAllowed: It is in none of the packages; nothing was imported.
        Exception: Whatever the import raises.
    """
    if not is_allowed(module, allowed):
        raise ImportNotAllowed(module, allowed)
    return importlib.import_module(module)


def follow(module: ModuleType, path: str, allowed: Sequence[str]) -> Any:
    """The object at a path of attributes in a module, such as ``Report.build``.

    Raises:
        ImportNotAllowed: The path leads through another module, as ``os.system`` does if ``os`` is imported.
        AttributeError: There is no such attribute.
    """
    target: Any = module
    for part in path.split("."):
        target = getattr(target, part)
        if isinstance(target, ModuleType) and not is_allowed(target.__name__, allowed):
            raise ImportNotAllowed(target.__name__, allowed)
    return target
