"""Functions of the user by name: ``module:function``."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.names import shown


class Named(NamedTuple):
    """A function, and where it is: an attribute ``name`` of ``holder``, a module or class."""

    holder: Any
    name: str
    function: Callable[..., Any]


def check_named(name: str, what: str) -> None:
    """Refuse what is not ``module:function``, without importing anything.

    Raises:
        ConfigurationError: It is not; ``what`` says for what it is.
    """
    module, _, path = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *path.split("."))):
        raise ConfigurationError(f"{what} {shown(name)}: no such function; write module:function")


def find(name: str, what: str) -> Named:
    """Find ``module:function`` or ``module:Class.method``; modules of the current directory are found too.

    Raises:
        ConfigurationError: There is none; ``what`` says for what it is.
    """
    check_named(name, what)
    module, _, path = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    *outer, last = path.split(".")
    try:
        holder: Any = importlib.import_module(module)
        for part in outer:
            holder = getattr(holder, part)
        function = getattr(holder, last)
    except (ImportError, AttributeError, ValueError, TypeError) as exc:
        raise ConfigurationError(f"{what} {shown(name)}: no such function; write module:function") from exc
    if not callable(function) or inspect.isclass(function):
        raise ConfigurationError(f"{what} {shown(name)} is not a function; write module:function")
    return Named(holder, last, function)
