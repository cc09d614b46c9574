"""Sends many calls in few round trips."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from glidemq_orchestrate.errors import GlideMQError, LibraryMissing
from glidemq_orchestrate.wire.call import Call, Op, ask_all, ask_each

T = TypeVar("T")
PER_TRIP: Final = 200
MAX_BYTES: Final = 524_288


def send_all(todo: Iterable[Call[T]]) -> Op[None]:
    """Send calls without using their replies, many per trip."""
    for part in parts(list(todo)):
        yield from ask_all(part)


def send_fenced(todo: Iterable[tuple[Call[int], Sequence[Call[Any]]]]) -> Op[None]:
    """Send calls of our functions, each with the plain calls to use where the function is missing."""
    for part in parts(list(todo)):
        replies = yield from ask_each([call for call, _ in part])
        plain: list[Call[Any]] = []
        for (_, instead), reply in zip(part, replies, strict=True):
            if isinstance(reply, LibraryMissing):
                plain += instead
            elif isinstance(reply, GlideMQError):
                raise reply
        yield from send_all(plain)


def parts(items: Sequence[T], size: int = PER_TRIP) -> Iterator[Sequence[T]]:
    """Slices of one trip each."""
    for first in range(0, len(items), size):
        yield items[first : first + size]


def parts_of_size(pairs: Iterable[tuple[str, str]]) -> Iterator[dict[str, str]]:
    """Slices that the server writes in a millisecond or two."""
    part: dict[str, str] = {}
    length = 0
    for name, text in pairs:
        if part and (len(part) == PER_TRIP or length + len(text) > MAX_BYTES):
            yield part
            part, length = {}, 0
        part[name] = text
        length += len(text)
    if part:
        yield part
