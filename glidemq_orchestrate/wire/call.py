"""Calls, and the operations that drivers run.

An operation is a generator. It yields a ``Call`` or a ``Batch``, and a driver (``io``) sends it. The driver
resumes the generator with the raw reply, or throws the translated error into it. Nothing here does I/O.

A ``Batch`` is one pipeline, not a transaction; its reply is a list, with an error in place of each refused
call's reply.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from glidemq_orchestrate.errors import GlideMQError, LibraryError, NotConfirmed, ProtocolError, TransportError
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.codec import readable

T = TypeVar("T")
logger = logging.getLogger("glidemq_orchestrate.worker")
Word: TypeAlias = str | int | float
PER_TRIP: Final = 200

_QUEUE: Final = re.compile(r"[^{}]*:\{([^{}]+)\}", re.DOTALL)
# TIME is missing, since its callers measure how long the reply takes.
_READS: Final = frozenset(
    """
    exists get getbit getrange hget hgetall hmget hscan info llen lrange mget ping scan scard sismember
    smembers smismember srandmember sscan xinfo xlen xpending xrange xread xrevrange zcard zcount zrange
    zrangebyscore zrevrange zrevrangebyscore zscore
    """.upper().split()
)
# Commands without keys: they change no data.
_WITHOUT_KEYS: Final = frozenset(
    """
    acl asking cluster command config echo function info ping sentinel time wait waitaof
    """.upper().split()
)
_READING_FUNCTIONS: Final = frozenset(
    [
        "glidemq_checkBudget",
        "glidemq_version",
        "gmo_flow_nodes",
        "gmo_flow_results",
        "gmo_flow_states",
        "gmo_flow_status",
        "gmo_list_flows",
        "gmo_node_inputs",
        "gmo_version",
    ]
)
Request: TypeAlias = "Call[Any] | Batch"


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One command and how to decode its reply.

    ``blocks_for``: seconds for which the server may block on purpose; the driver waits longer.
    ``repeatable``: sending it twice has the effect and the reply of sending it once; the driver repeats it
    when a connection breaks.
    ``confirms``: if it writes, the driver waits as ``confirm`` of the connection requires.
    ``packed``: the encoded command, once the driver has encoded it.
    """

    words: tuple[Word, ...]
    decode: Callable[[Any], T]
    blocks_for: float | None = None
    repeatable: bool = False
    confirms: bool = True
    packed: bytes | None = field(default=None, init=False, compare=False, repr=False)

    @property
    def writes(self) -> bool:
        """Whether it may change data."""
        name, *words = self.words
        if name in ("FCALL", "FCALL_RO"):
            return words[0] not in _READING_FUNCTIONS and words[1] != 0
        return name not in _READS and name not in _WITHOUT_KEYS

    @property
    def place(self) -> str:
        """The command or function and its queue, for error messages."""
        name = str(self.words[1] if self.words[0] in ("FCALL", "FCALL_RO") else self.words[0])
        queues = (
            found[1] for word in self.words[1:] if isinstance(word, str) and (found := _QUEUE.match(word))
        )
        queue = next(queues, "")
        text = f"{name} of queue {queue}" if queue else name
        return text.encode("ascii", "backslashreplace").decode()

    def of_several(self, replies: Sequence[Any]) -> Any:
        """The reply to use when several servers reply: the first."""
        return replies[0]

    def read(self, reply: Any) -> T:
        """The decoded reply.

        Raises:
            ProtocolError: It cannot be read; the message names the call and its queue.
        """
        try:
            value = self.decode(reply)
        except ProtocolError as exc:
            raise self.placed(exc) from exc.__cause__
        except GlideMQError:
            raise
        except Exception as exc:
            raise ProtocolError(f"the reply to {self.place} cannot be read: {type(exc).__name__}") from exc
        if not replies.has_form(self.words, reply):
            raise ProtocolError(
                f"the reply to {self.place} does not have the form of replies to this command"
            )
        return value

    def placed(self, error: GlideMQError) -> GlideMQError:
        """Return the error; add the place to the message of a ``ProtocolError``."""
        if type(error) is ProtocolError and not error.is_placed:
            error.args, error.is_placed = (f"{error} ({self.place})",), True
        return error


@dataclass(frozen=True, slots=True)
class Batch:
    """Calls sent together, in order."""

    calls: tuple[Call[Any], ...]


class Unconfirmed(NotConfirmed):
    """Replaces the ``reply`` to a write that was accepted but not confirmed. ``standing`` catches it."""

    def __init__(self, message: str, reply: Any) -> None:
        self.reply = reply
        super().__init__(message)


Op: TypeAlias = Generator[Request, Any, T]


class Run(Protocol):
    """Drives an operation to its end. The parts of a worker use this instead of a connection."""

    async def __call__(self, op: Op[T]) -> T:
        """Return the value of the operation or raise its error."""


def ask(call: Call[T]) -> Op[T]:
    """Yield a call and return its decoded reply; raise its error."""
    try:
        reply = yield call
    except ProtocolError as exc:
        raise call.placed(exc) from exc.__cause__
    return call.read(reply)


def ask_all(calls: Iterable[Call[T]]) -> Op[list[T]]:
    """Yield calls as one pipeline and return the decoded replies in order; raise the first error."""
    results = yield from ask_each(calls)
    for result in results:
        if isinstance(result, GlideMQError):
            raise result
    return results  # type: ignore[return-value]  # no error is among them


def ask_each(calls: Iterable[Call[T]]) -> Op[list[T | GlideMQError]]:
    """Like ``ask_all``, but return errors in the list instead of raising one."""
    batch = Batch(tuple(calls))
    if not batch.calls:
        return []
    replies = yield batch
    return [_read_or_error(call, reply) for call, reply in zip(batch.calls, replies, strict=True)]


def side_by_side(ops: Iterable[Op[T]]) -> Op[list[T]]:
    """Run operations at the same time: the calls that they make next go out together. In order.

    Raises:
        GlideMQError: The first error. If an operation fails before its first call, none makes any; otherwise
            the others are run to their ends before.
    """
    results = yield from each_of(ops)
    for result in results:
        if isinstance(result, GlideMQError):
            raise result
    return results  # type: ignore[return-value]  # no error is among them


def each_of(ops: Iterable[Op[T]]) -> Op[list[T | GlideMQError]]:
    """``side_by_side``, with errors in the list, but for one before the first call."""
    every = list(ops)
    results: list[Any] = [None] * len(every)
    asking: dict[int, Request] = {}

    def go_on(at: int, step: Callable[[], Request]) -> None:
        try:
            asking[at] = step()
        except StopIteration as end:
            results[at] = end.value

    def resumed(at: int, reply: Any) -> None:
        resume = every[at].throw if isinstance(reply, GlideMQError) else every[at].send
        try:
            go_on(at, partial(resume, reply))
        except GlideMQError as exc:
            results[at] = exc

    for at, op in enumerate(every):
        go_on(at, partial(next, op))
    while asking:
        trip = dict(asking)
        asking.clear()
        replies = iter((yield Batch(tuple(call for request in trip.values() for call in _calls_of(request)))))
        for at, request in trip.items():
            found = [next(replies) for _ in _calls_of(request)]
            resumed(at, found if isinstance(request, Batch) else found[0])
    return results


def _calls_of(request: Request) -> Sequence[Call[Any]]:
    return request.calls if isinstance(request, Batch) else (request,)


def send_all(todo: Iterable[Call[T]]) -> Op[None]:
    """Send calls in several trips, without using their replies; raise the first error."""
    for part in parts(list(todo)):
        yield from ask_all(part)


def parts(items: Sequence[T], size: int = PER_TRIP) -> Iterator[Sequence[T]]:
    """The items in slices, one for each trip."""
    for first in range(0, len(items), size):
        yield items[first : first + size]


def _read_or_error(call: Call[T], reply: Any) -> T | GlideMQError:
    """The decoded reply, the error in its place, or the error of decoding it."""
    if isinstance(reply, GlideMQError):
        return call.placed(reply)
    try:
        return call.read(reply)
    except GlideMQError as exc:
        return exc


def command(
    *words: Word, decode: Callable[[Any], T], blocks_for: float | None = None, repeatable: bool = False
) -> Call[T]:
    """Return the call of a plain command. One that only reads is repeatable."""
    return Call(words, decode, blocks_for, repeatable or words[0] in _READS)


@dataclass(frozen=True, slots=True)
class Survey(Call[T]):
    """A call with a rule for choosing among servers' replies. As a field it would slow every call."""

    choose: Callable[[Sequence[Any]], Any] = itemgetter(0)

    def of_several(self, replies: Sequence[Any]) -> Any:
        """The chosen reply."""
        return self.choose(replies)


def survey(call: Call[T], choose: Callable[[Sequence[Any]], Any]) -> Survey[T]:
    """The same call, with a choice among replies."""
    return Survey(call.words, call.decode, call.blocks_for, call.repeatable, call.confirms, choose)


def function(
    name: str,
    keys: Iterable[str],
    args: Iterable[Word],
    decode: Callable[[Any], T],
    *,
    repeatable: bool = False,
) -> Call[T]:
    """Return the call of a server function. One that only reads is repeatable."""
    declared = tuple(keys)
    words = ("FCALL", name, len(declared), *declared, *args)
    return Call(words, decode, repeatable=repeatable or name in _READING_FUNCTIONS)


def members(key: str) -> Call[list[str]]:
    """The members of a set, in a fixed order."""
    return command("SMEMBERS", key, decode=sorted)


def fields_of(key: str, *fields: str) -> Call[list[str | None]]:
    """The given fields of a hash, in order."""
    return command("HMGET", key, *fields, decode=list)


def write_fields(key: str, fields: Mapping[str, Word]) -> Call[None]:
    """Write fields of a hash."""
    words = [word for pair in fields.items() for word in pair]
    return command("HSET", key, *words, decode=replies.anything)


def fields_page(key: str, cursor: str, count: int) -> Call[tuple[str, dict[str, str]]]:
    """A page of a hash: the next cursor (``0`` at the end) and the fields."""
    return command("HSCAN", key, cursor, "COUNT", count, decode=replies.page)


def members_page(key: str, cursor: str, count: int) -> Call[tuple[str, list[str]]]:
    """A page of a set: the next cursor (``0`` at the end) and the members, possibly with duplicates."""
    return command("SSCAN", key, cursor, "COUNT", count, decode=replies.members_page)


def every_page(page: Callable[[str], Call[tuple[str, T]]]) -> Op[list[T]]:
    """All pages that the call for a cursor reads: from cursor ``0`` until the next one is ``0``."""
    cursor, found = "0", list[T]()
    while True:
        cursor, part = yield from ask(page(cursor))
        found.append(part)
        if cursor == "0":
            return found


def every_row(page: Callable[[str], Call[tuple[str, dict[str, T]]]]) -> Op[dict[str, T]]:
    """``every_page`` of a table, as one dict."""
    found: dict[str, T] = {}
    for part in (yield from every_page(page)):
        found |= part
    return found


def whole_hash(key: str) -> Call[dict[str, str]]:
    """A whole hash with string values."""
    return command("HGETALL", key, decode=replies.pairs)


def isolated(op: Op[T], what: str) -> Op[T | None]:
    """Run an operation for one flow, schedule or job. Log a failure once and return None.

    Raises:
        TransportError, LibraryError, ConfigurationError: The server cannot be reached, lacks a library or
        denies a permission: this affects every item.
    """
    try:
        return (yield from op)
    except (TransportError, LibraryError):
        raise
    except Exception as exc:
        if getattr(exc, "code", None) == "NOPERM":
            raise
        report(what, exc if isinstance(exc, GlideMQError) else f"{type(exc).__name__}: {exc}")
        return None


def report(what: str, why: object) -> None:
    """Log once that an item is skipped, and why."""
    _report_once(readable(what), readable(str(why)))


@lru_cache(maxsize=1_000)  # once per reason, not every two seconds
def _report_once(what: str, why: str) -> None:
    logger.error("%s is skipped: %s", what, why, extra={"action": "skipped"})
