"""The vocabulary between use cases and drivers.

A use case (``_ops``) is a generator: it yields a ``Call`` or a ``Batch`` and is resumed with the raw reply,
or with the translated error thrown into it. A driver (``_io``) sends what is yielded. Nothing here does I/O.

A ``Batch`` is one pipeline, not a transaction; its reply is a list in which an error stands where the reply
of a refused call would be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from glidemq_orchestrate.errors import GlideMQError, ProtocolError

T = TypeVar("T")
Word: TypeAlias = str | int | float

_QUEUE: Final = re.compile(r"[^{}]*:\{([^{}]+)\}", re.DOTALL)
# Without TIME: whoever asks for it measures how long the answer takes.
_READS: Final = frozenset(
    """
    exists get hget hgetall hmget hscan info llen lrange mget ping scan scard sismember smembers smismember
    srandmember sscan xinfo xlen xpending xrange xread xrevrange zcard zcount zrange zrangebyscore
    zrevrange zrevrangebyscore zscore
    """.upper().split()
)
_READING_FUNCTIONS: Final = frozenset(
    [
        "glidemq_checkBudget",
        "glidemq_nextDue",
        "glidemq_version",
        "gmo_flow_nodes",
        "gmo_flow_results",
        "gmo_flow_status",
        "gmo_list_flows",
        "gmo_node_inputs",
        "gmo_version",
    ]
)


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One command and how to read its reply.

    ``blocks_for``: seconds for which the server may keep the call on purpose; the driver waits longer than
    that.
    ``repeatable``: sent twice it leaves what it leaves when sent once, and answers the same; the driver
    repeats it where a connection breaks.
    ``packed``: the command as the driver sends it, once that has made it.
    """

    words: tuple[Word, ...]
    decode: Callable[[Any], T]
    blocks_for: float | None = None
    repeatable: bool = False
    packed: bytes | None = field(default=None, init=False, compare=False, repr=False)

    @property
    def place(self) -> str:
        """What is called and for which queue, for errors."""
        name = str(self.words[1] if self.words[0] in ("FCALL", "FCALL_RO") else self.words[0])
        queues = (
            found[1] for word in self.words[1:] if isinstance(word, str) and (found := _QUEUE.match(word))
        )
        queue = next(queues, "")
        told = f"{name} of queue {queue}" if queue else name
        return told.encode("ascii", "backslashreplace").decode()

    def read(self, reply: Any) -> T:
        """What the reply says.

        Raises:
            ProtocolError: It cannot be read; the message says what was called, for which queue.
        """
        try:
            return self.decode(reply)
        except ProtocolError as exc:
            raise self.placed(exc) from exc.__cause__
        except GlideMQError:
            raise
        except Exception as exc:
            raise ProtocolError(f"the reply to {self.place} cannot be read: {type(exc).__name__}") from exc

    def placed(self, error: GlideMQError) -> GlideMQError:
        """The error, with the place in its message where that is a reply that nobody understands."""
        if type(error) is ProtocolError and not error.is_placed:
            error.args, error.is_placed = (f"{error} ({self.place})",), True
        return error


@dataclass(frozen=True, slots=True)
class Batch:
    """Calls that travel together, in order."""

    calls: tuple[Call[Any], ...]


Request: TypeAlias = "Call[Any] | Batch"
Op: TypeAlias = Generator[Request, Any, T]


class Run(Protocol):
    """Drives an operation to its end: what the parts of a worker are given instead of a connection."""

    async def __call__(self, op: Op[T]) -> T:
        """The operation's value; raises what it raises."""


def ask(call: Call[T]) -> Op[T]:
    """Yield a call and decode its reply; a refusal raises."""
    try:
        reply = yield call
    except ProtocolError as exc:
        raise call.placed(exc) from exc.__cause__
    return call.read(reply)


def ask_all(calls: Iterable[Call[T]]) -> Op[list[T]]:
    """Yield calls as one pipeline, decode the replies in order; the first refusal raises, all were sent."""
    told = yield from ask_each(calls)
    for one in told:
        if isinstance(one, GlideMQError):
            raise one
    return told  # type: ignore[return-value]  # no error is among them


def ask_each(calls: Iterable[Call[T]]) -> Op[list[T | GlideMQError]]:
    """Like ``ask_all``, but a refusal, or a reply that cannot be read, stands in the list."""
    batch = Batch(tuple(calls))
    if not batch.calls:
        return []
    replies = yield batch
    return [_read_or_error(call, reply) for call, reply in zip(batch.calls, replies, strict=True)]


def _read_or_error(call: Call[T], reply: Any) -> T | GlideMQError:
    if isinstance(reply, GlideMQError):
        return call.placed(reply)
    try:
        return call.read(reply)
    except GlideMQError as exc:
        return exc


def command(
    *words: Word, decode: Callable[[Any], T], blocks_for: float | None = None, repeatable: bool = False
) -> Call[T]:
    """A plain server command. One that only reads is repeatable."""
    return Call(words, decode, blocks_for, repeatable or words[0] in _READS)


def function(
    name: str,
    keys: Iterable[str],
    args: Iterable[Word],
    decode: Callable[[Any], T],
    *,
    repeatable: bool = False,
) -> Call[T]:
    """A call of a server function. One that only reads is repeatable."""
    declared = tuple(keys)
    words = ("FCALL", name, len(declared), *declared, *args)
    return Call(words, decode, repeatable=repeatable or name in _READING_FUNCTIONS)
