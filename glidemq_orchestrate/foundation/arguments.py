"""Explains an error by an argument of the wrong type: its name, the expected type and the actual one.

Nothing is checked in advance, so valid calls cost nothing. Only after a call fails with an error that is not
ours are its arguments compared with their annotations.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
import types
import typing
from collections import abc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from enum import StrEnum
from typing import Any, Final, Literal, TypeVar

from glidemq_orchestrate.errors import ConfigurationError, GlideMQError

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

EXPLAINABLE: Final = (TypeError, AttributeError, ValueError, LookupError, ArithmeticError, RecursionError)
_TEXTS: Final = (str, bytes, bytearray)
# How to make what is expected, for classes in place of which users give plain values.
_FIXES: Final = {
    "Backoff": "backoff=Backoff(delay=5)",
    "FlowNode": "FlowNode(name, ...), or FlowSpec.from_dict({...}) for a whole flow of dicts",
    "FlowSpec": "FlowSpec.from_dict({...})",
    "JobOptions": "the options as keywords (attempts=3), or JobOptions(attempts=3)",
    "Schedule": "Schedule(cron='0 2 * * *'), or Schedule(every=60)",
}


def explained(error: type[GlideMQError] = ConfigurationError) -> Callable[[F], F]:
    """Decorate a function: an error due to an argument of the wrong type becomes ``error`` and names it."""

    def decorate(function: F) -> F:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def later(*args: Any, **kwargs: Any) -> Any:
                try:
                    return await function(*args, **kwargs)
                except EXPLAINABLE as exc:
                    explain(exc, function, args, kwargs, error)
                    raise

            return later  # type: ignore[return-value]  # a function of the same signature

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except EXPLAINABLE as exc:
                explain(exc, function, args, kwargs, error)
                raise

        return call  # type: ignore[return-value]  # a function of the same signature

    return decorate


def explain_methods(kind: C) -> C:
    """Apply ``explained`` to the constructor and the public methods that a class defines itself."""
    for name, method in list(vars(kind).items()):
        is_public = name == "__init__" or not name.startswith("_")
        if inspect.isfunction(method) and is_public and not hasattr(method, "__wrapped__"):
            setattr(kind, name, explained()(method))
    return kind


def check_fields(instance: Any, error: type[GlideMQError], *, without: Collection[str] = ()) -> None:
    """Refuse a dataclass with a value of the wrong type; the message names the field.

    Fields in ``without`` are skipped: another check gives a better message.

    Raises:
        GlideMQError: A field has the wrong type; the class is ``error``.
    """
    kind: Any = type(instance)
    for name, hint, default, plain in _fields(kind):
        value = getattr(instance, name)
        if (
            value is not default
            and type(value) not in plain
            and name not in without
            and not fits(value, hint)
        ):
            annotation = next(part.type for part in fields(instance) if part.name == name)
            raise error(_fault(name, annotation, value))


def explain(
    exc: Exception,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    error: type[GlideMQError] = ConfigurationError,
) -> None:
    """Raise a clearer error if an argument of the wrong type explains ``exc``."""
    if isinstance(exc, GlideMQError):
        return
    try:
        bound = inspect.signature(function).bind(*args, **kwargs).arguments
    except TypeError:  # the number of arguments is wrong
        return
    hints = _hints(function)
    for name, value in bound.items():
        if not fits(value, hints.get(name, Any)):
            annotation = inspect.signature(function).parameters[name].annotation
            raise error(_fault(name, annotation, value)) from exc


def _fault(name: str, annotation: object, value: object) -> str:
    expected = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    found = f"{type(value).__name__}" + (
        " with other elements"
        if "[" in expected and isinstance(value, Collection) and not isinstance(value, _TEXTS)
        else ""
    )
    fix = next((f". Fix: {_FIXES[word]}" for word in re.findall(r"\w+", expected) if word in _FIXES), "")
    return (
        f"{name} must be {expected.replace(' | ', ' or ')}, got {found if value is not None else None}{fix}"
    )


@functools.cache
def _fields(kind: type) -> list[tuple[str, Any, Any, frozenset[type]]]:
    """The fields of a dataclass: name, hint, default, and the types whose every value fits."""
    hints = _hints(kind)
    return [
        (part.name, hint := hints.get(part.name, Any), part.default, frozenset(_plain_types(hint)))
        for part in fields(kind)
    ]


def _plain_types(hint: Any) -> Iterator[type]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        for one in typing.get_args(hint):
            yield from _plain_types(one)
    elif isinstance(hint, type) and typing.get_origin(hint) is None and not issubclass(hint, StrEnum):
        yield hint


@functools.cache
def _hints(of: Any) -> Mapping[str, Any]:
    """By name, the annotations that can be evaluated."""
    namespace = vars(sys.modules[of.__module__])
    found: dict[str, Any] = {}
    for name, annotation in of.__annotations__.items():
        alone = types.SimpleNamespace(__annotations__={name: annotation})
        # An alias may use names that its users do not import; some are imported for type checkers only.
        with contextlib.suppress(NameError, TypeError):
            found |= typing.get_type_hints(alone, namespace, vars(abc))
    return found


def fits(value: object, hint: Any) -> bool:
    """Whether a value matches the type hint; True if that cannot be decided."""
    if hint is None or hint is types.NoneType:
        return value is None
    if isinstance(hint, typing.NewType):
        return fits(value, hint.__supertype__)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if isinstance(origin, type):
        return _fits_generic(value, origin, inner)
    return hint is Any or not isinstance(hint, type) or _fits_class(value, hint)


def _fits_class(value: object, hint: type) -> bool:
    if issubclass(hint, StrEnum):
        return isinstance(value, str) and value in tuple(hint)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if getattr(hint, "_is_protocol", False):
        return all(hasattr(value, name) for name in vars(hint) if not name.startswith("_"))
    return isinstance(value, hint)


def _fits_generic(value: object, origin: type, inner: tuple[Any, ...]) -> bool:
    if issubclass(origin, Mapping):
        return isinstance(value, Mapping) and (
            not inner or all(fits(key, inner[0]) and fits(part, inner[1]) for key, part in value.items())
        )
    if origin is tuple and Ellipsis not in inner:
        return isinstance(value, tuple | list) and len(value) == len(inner) and all(map(fits, value, inner))
    if issubclass(origin, Iterable) and origin is not str:
        if not isinstance(value, Iterable) or isinstance(value, _TEXTS):
            return False
        some = value[:1] if isinstance(value, range) else value
        return not isinstance(some, Collection) or all(fits(part, inner[0]) for part in some)
    return isinstance(value, origin) if origin is not type else True
