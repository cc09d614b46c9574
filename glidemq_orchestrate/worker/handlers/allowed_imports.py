"""The modules that a job may name: only those in the packages that its worker was started with."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import Any, Final

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.importing import importing

_FIX: Final = "start the worker with --allow-import PACKAGE, or Worker(allow_import=[...])"


class ImportNotAllowed(Exception):
    """The worker was not started with a package that contains this module; nothing was imported."""

    def __init__(self, module: str, allowed: Sequence[str]) -> None:
        may = f"from {', '.join(allowed)}" if allowed else "nothing that a job names"
        super().__init__(f"this worker may not import {module}: it imports {may}; {_FIX}")


def check_packages(names: Sequence[str]) -> tuple[str, ...]:
    """The packages of an allow-list, checked.

    Raises:
        ConfigurationError: It is not a list, or an entry is not the dotted name of a package or module.
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
    """Whether a module is one of the packages or in one, by whole parts of its name.

    A part that is not an identifier, as in ``mypackage./tmp/x`` or ``mypackage..x``, is in no package; nor is
    one like ``__main__``, whose import runs the program of the package.
    """
    return any(
        module == package or (module.startswith(f"{package}.") and _are_names(module[len(package) + 1 :]))
        for package in allowed
    )


def import_allowed(module: str, allowed: Sequence[str]) -> ModuleType:
    """Import a module that a job names.

    Raises:
        ImportNotAllowed: It is in none of the packages; nothing was imported.
        Exception: The import raised it.
    """
    if not is_allowed(module, allowed):
        raise ImportNotAllowed(module, allowed)
    with importing():
        return importlib.import_module(module)


def follow(module: ModuleType, path: str, allowed: Sequence[str]) -> Any:
    """The object at a path of attributes in a module, such as ``Report.build``.

    Raises:
        ImportNotAllowed: The path leaves the packages: through another module (``os.system`` where ``os`` is
            imported), to a function or class that is imported from elsewhere, or through a special attribute
            (``f.__globals__``).
        AttributeError: There is no such attribute.
    """
    target: Any = module
    for part in path.split("."):
        if _is_special(part):
            raise ImportNotAllowed(f"{module.__name__}:{path}", allowed)
        target = getattr(target, part)
        home = _home_of(target)
        if home is not None and not is_allowed(home, allowed):
            raise ImportNotAllowed(home, allowed)
    return target


def undecorated(target: Any, allowed: Sequence[str]) -> Any:
    """The function that Airflow's ``@task`` has wrapped; anything else is returned as it is.

    Raises:
        ImportNotAllowed: The function is defined outside the packages.
    """
    if getattr(type(target), "_airflow_is_task_decorator", False) is not True:
        return target
    home = _home_of(target.function)
    if home is not None and not is_allowed(home, allowed):
        raise ImportNotAllowed(home, allowed)
    return target.function


def _home_of(target: Any) -> str | None:
    """The module that an object is, or that defines it; None for a value."""
    if isinstance(target, ModuleType):
        return target.__name__
    if isinstance(target, partial):
        return _home_of(target.func)
    if isinstance(target, type) or inspect.isroutine(target):
        home = target.__module__  # None for a method of a built-in type
        return home if isinstance(home, str) else "builtins"
    return None


def _are_names(path: str) -> bool:
    return all(part.isidentifier() and not _is_special(part) for part in path.split("."))


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
