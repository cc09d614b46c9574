"""The vocabulary between use cases and drivers.

A use case (``_ops``) is a generator: it yields a ``Call`` or a ``Batch`` and is resumed with the raw reply,
or with the translated error thrown into it. A driver (``_io``) sends what is yielded. Nothing here does I/O.

A ``Batch`` is one pipeline, not a transaction; its reply is a list in which an error stands where the reply
of a refused call would be.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from glidemq_orchestrate.errors import GlideMQError

T = TypeVar("T")
Word: TypeAlias = str | int | float


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One command and how to read its reply.

    ``blocks_for``: seconds for which the server may keep the call on purpose; the driver waits longer than
    that.
    """

    words: tuple[Word, ...]
    decode: Callable[[Any], T]
    blocks_for: float | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Calls that travel together, in order."""

    calls: tuple[Call[Any], ...]


Request: TypeAlias = "Call[Any] | Batch"
Op: TypeAlias = Generator[Request, Any, T]


def ask(call: Call[T]) -> Op[T]:
    """Yield a call and decode its reply; a refusal raises."""
    return call.decode((yield call))


def ask_all(calls: Iterable[Call[T]]) -> Op[list[T]]:
    """Yield calls as one pipeline, decode the replies in order; the first refusal raises, all were sent."""
    batch = Batch(tuple(calls))
    if not batch.calls:
        return []
    replies = yield batch
    for reply in replies:
        if isinstance(reply, GlideMQError):
            raise reply
    return [call.decode(reply) for call, reply in zip(batch.calls, replies, strict=True)]


def ask_each(calls: Iterable[Call[T]]) -> Op[list[T | GlideMQError]]:
    """Like ``ask_all``, but a refusal stands in the list instead of being raised."""
    batch = Batch(tuple(calls))
    if not batch.calls:
        return []
    replies = yield batch
    return [
        reply if isinstance(reply, GlideMQError) else call.decode(reply)
        for call, reply in zip(batch.calls, replies, strict=True)
    ]


def command(*words: Word, decode: Callable[[Any], T], blocks_for: float | None = None) -> Call[T]:
    """A plain server command."""
    return Call(words, decode, blocks_for)


def function(name: str, keys: Iterable[str], args: Iterable[Word], decode: Callable[[Any], T]) -> Call[T]:
    """A call of a server function."""
    declared = tuple(keys)
    return Call(("FCALL", name, len(declared), *declared, *args), decode)
