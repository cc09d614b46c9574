"""An entry of the package: where input from outside comes in."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from hypothesis.strategies import SearchStrategy

from glidemq_orchestrate.errors import GlideMQError
from tests.fuzz.secret import ALL, refuse_in_error
from tests.fuzz.violation import undocumented

T = TypeVar("T")


class Target(NamedTuple):
    """An entry that is ready: the inputs, and what is done with one."""

    inputs: SearchStrategy[Any]
    attempt: Callable[[Any], None]


@dataclass(frozen=True)
class Entry:
    """One of the entries.

    Attributes:
        name: For the command line.
        about: What is given bad input.
        share: Of a hundred cases.
        opened: Makes it ready, and takes it down.
    """

    name: str
    about: str
    share: int
    opened: Callable[[], AbstractContextManager[Target]]


def outcome(
    function: Callable[[], T],
    allowed: tuple[type[Exception], ...] = (GlideMQError,),
    secrets: tuple[str, ...] = ALL,
) -> tuple[T | None, Exception | None]:
    """What a function returns, or the error that it may raise.

    Raises:
        Violation: It raised another error, or the error shows a secret.
    """
    try:
        return function(), None
    except allowed as exc:
        refuse_in_error(exc, secrets)
        return None, exc
    except Exception as exc:
        raise undocumented(exc) from exc
