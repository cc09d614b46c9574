"""Functions by import path, as users name them: ``module:function``."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.texts import shown


class LocatedFunction(NamedTuple):
    """A function and its location: attribute ``name`` of ``holder``, a module or class."""

    holder: Any
    name: str
    function: Callable[..., Any]


def with_directory() -> None:
    """Add the current directory to the import path, as users of the shell expect."""
    if "" not in sys.path:
        sys.path.insert(0, "")


def is_named(name: str) -> bool:
    """Whether it has the form ``module:function`` or ``module:Class.method``."""
    module, _, path = name.partition(":")
    return all(part.isidentifier() for part in (*module.split("."), *path.split(".")))


def check_named(name: str, what: str) -> None:
    """Refuse a name that is not ``module:function``, without importing anything.

    Raises:
        ConfigurationError: It is not; the message begins with ``what``, the purpose of the function.
    """
    if not is_named(name):
        raise ConfigurationError(f"{what} {shown(name)}: no such function; write module:function")


def named_function(name: str, what: str) -> LocatedFunction:
    """Find ``module:function`` or ``module:Class.method``.

    Raises:
        ConfigurationError: It does not exist, or its module cannot be imported. The message begins with
            ``what``, the purpose of the function.
    """
    check_named(name, what)
    module, _, path = name.partition(":")
    *outer, last = path.split(".")
    try:
        holder: Any = importlib.import_module(module)
    except (ImportError, SyntaxError) as exc:
        raise ConfigurationError(f"{what} {shown(name)}: {module} cannot be imported: {exc}") from exc
    try:
        for part in outer:
            holder = getattr(holder, part)
        function = getattr(holder, last)
    except AttributeError as exc:
        raise ConfigurationError(f"{what} {shown(name)}: {module} has no function {path}") from exc
    if not callable(function) or inspect.isclass(function):
        raise ConfigurationError(f"{what} {shown(name)} is not a function; write module:function")
    return LocatedFunction(holder, last, function)
