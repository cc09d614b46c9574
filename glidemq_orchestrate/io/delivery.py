"""Sending calls: their bytes, those that cannot be sent, and those that are sent again. Pure.

A reply byte that is not UTF-8 is read as an escape (``surrogateescape``) and sent as the same byte again. So
ids keep their bytes. Any other lone surrogate cannot be sent.

When a connection breaks, a call that was refused or not sent has changed nothing: it is repeated. A call with
an unknown outcome is repeated if it is safe to repeat (``Call.repeatable``), so one dropped connection goes
unnoticed. A call that timed out is not repeated: the server is slow, and the caller has already waited. A
server that never replied is not tried again: its address may be wrong.

While a slot of a cluster moves key by key, functions are refused (``slots.undivided``). That may take longer
than a broken connection, so these calls are repeated for as long as the driver is patient.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from time import monotonic
from typing import Any, Final, TypeAlias

from redis.exceptions import TimeoutError as RedisTimeoutError

from glidemq_orchestrate.errors import (
    ConnectionFailed,
    EncodeError,
    GlideMQError,
    OutcomeUnknown,
    ServerBusy,
    TransportError,
)
from glidemq_orchestrate.io.slots import is_for_all
from glidemq_orchestrate.wire.call import Call, Op, Word
from glidemq_orchestrate.wire.replies import MOVING, is_moving
from glidemq_orchestrate.wire.trips import Leading

Recover: TypeAlias = Callable[[Sequence[Call[Any]], list[Any]], Op[list[Any]]]
"""Takes calls and their replies, of which some report a missing library; returns the replies to use."""

_fast: Any = None
with contextlib.suppress(ImportError):  # redis-py itself uses it on blocking connections only
    import hiredis

    _fast = hiredis.pack_command

ESCAPES: Final = "surrogateescape"
LONE_SURROGATE: Final = "a text with a lone surrogate"
_MAX: Final = 2**63  # hiredis crashes on numbers of thousands of digits
_NUMBERS: Final = frozenset({int, float})

PIECE: Final = 65_536

Refused = Mapping[int, EncodeError]
_NONE: Final[Refused] = {}


def pack(words: Sequence[Word]) -> bytes:
    """Encode one command in the form of the protocol.

    Raises:
        UnicodeEncodeError: A word is not valid text. ``sort_out`` finds such calls.
    """
    if _fast is not None:
        try:
            command: bytes = _fast(tuple(words))
        except UnicodeEncodeError:
            texts = [w.encode(errors=ESCAPES) if w.__class__ is str else w for w in words]
            command = _fast(tuple(texts))
        return command
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = _encoded(word)
        parts += (b"$%d\r\n" % len(data), data, b"\r\n")
    return b"".join(parts)


def pieces(calls: Sequence[Call[Any]]) -> list[bytes]:
    """The calls of a trip as few pieces, each for one system call; large calls are not copied."""
    packed = [call.packed or pack(call.words) for call in calls]
    if len(packed) == 1:
        return packed
    found: list[bytes] = []
    small: list[bytes] = []
    size = 0
    for command in packed:
        if len(command) > PIECE or size + len(command) > PIECE:
            found += [b"".join(small)] if small else []
            small, size = [], 0
        if len(command) > PIECE:
            found.append(command)
        else:
            small.append(command)
            size += len(command)
    return [*found, b"".join(small)] if small else found


def work_ahead(calls: Sequence[Call[Any]]) -> None:
    """Encode what comes after calls that were just sent.

    An error is found again in its turn: it must not pass for one of the connection.
    """
    for call in calls:
        if isinstance(call, Leading):
            with contextlib.suppress(Exception):
                sort_out(call.following())


def _encoded(word: Word) -> bytes:
    if isinstance(word, str):
        return word.encode(errors=ESCAPES)
    return repr(word).encode()


def sort_out(calls: Sequence[Call[Any]]) -> tuple[tuple[Call[Any], ...], Refused]:
    """The calls that can be sent, and an error by number for each of the others."""
    refused = {number: error for number, call in enumerate(calls) if (error := _flaw(call))}
    if not refused:
        return tuple(calls), _NONE
    return tuple(call for number, call in enumerate(calls) if number not in refused), refused


def put_back(replies: Sequence[Any], refused: Refused) -> list[Any]:
    """The replies to the sent calls, with the errors of the others in their places."""
    if not refused:
        return list(replies)
    whole = list(replies)
    for number in sorted(refused):
        whole.insert(number, refused[number])
    return whole


def _flaw(call: Call[Any]) -> EncodeError | None:
    """Pack a call, or return why it cannot be sent. Texts are checked while packing, other words before."""
    if call.packed is None:
        if not _are_sendable(call.words):
            for word in call.words:
                if word.__class__ is not str and (flaw := _flaw_of(word)):
                    return _error(call, flaw)
        try:
            object.__setattr__(call, "packed", pack(call.words))
        except UnicodeEncodeError:
            return _error(call, LONE_SURROGATE)
    return None


def _are_sendable(words: Sequence[Word]) -> bool:
    """Whether all words are texts and numbers that can be sent: a fast check that nearly all pass."""
    numbers: list[Any] = [word for word in words if type(word) is not str]
    return _NUMBERS.issuperset(map(type, numbers)) and max(map(abs, numbers), default=0) <= _MAX


def _flaw_of(word: Word) -> str:
    """Why a word cannot be sent, without showing it; '' if it can."""
    if isinstance(word, str):
        try:
            word.encode(errors=ESCAPES)
        except UnicodeEncodeError:
            return LONE_SURROGATE
    elif isinstance(word, bool) or not isinstance(word, int | float):
        return f"a value of type {type(word).__name__}"
    elif isinstance(word, int) and not -_MAX <= word <= _MAX:
        return "a number of more than 19 digits"
    return ""


def _error(call: Call[Any], flaw: str) -> EncodeError:
    return EncodeError(f"{call.place}: {flaw} cannot be sent; the call was not sent", where=call.place)


def outcome(reply: Any) -> Any:
    """The reply to a single call; raises it if it is an error."""
    if isinstance(reply, GlideMQError):
        raise reply
    return reply


PAUSES: Final = (0.05, 0.2, 0.5)
# With each of these errors the server has executed nothing.
_PASSING: Final = frozenset(
    {MOVING, "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "UNBLOCKED", "NOREPLICAS"}
)


def tries(patience: float) -> Iterator[tuple[float, bool]]:
    """The pause before each repeat, and whether only calls for a moving slot are still repeated then.

    Args:
        patience: For how many seconds calls for a moving slot are repeated.
    """
    until = monotonic() + patience
    yield from ((pause, False) for pause in PAUSES)
    for pause in repeat(PAUSES[-1]):
        if monotonic() + pause > until:
            return
        yield pause, True


@dataclass(slots=True)
class Delivered:
    """The result of sending some calls: their replies, or the error that all of them share."""

    replies: list[Any]
    error: GlideMQError | None = None

    def again(self, calls: Sequence[Call[Any]], *, is_known: bool, is_late: bool = False) -> list[int]:
        """The numbers of the calls to send again.

        Args:
            calls: The calls.
            is_known: The server has replied before.
            is_late: Only calls for a moving slot are still sent again.
        """
        if is_late:
            return [number for number, reply in enumerate(self.replies) if is_moving(reply)]
        if self.error is not None:
            is_all = all(_may_repeat(call, self.error) for call in calls)
            return list(range(len(calls))) if is_all and _passes(self.error, is_known=is_known) else []
        return [
            number
            for number, reply in enumerate(self.replies)
            if isinstance(reply, TransportError)
            and _may_repeat(calls[number], reply)
            and _passes(reply, is_known=is_known)
        ]

    def merge(self, numbers: Sequence[int], later: Delivered) -> None:
        """Put the replies to repeated calls in their places."""
        if self.error is not None:
            self.replies, self.error = later.replies, later.error
        elif later.error is None:
            for number, reply in zip(numbers, later.replies, strict=True):
                self.replies[number] = reply

    def outcome(self) -> list[Any]:
        """The replies; raises the error that all of them share."""
        if self.error is not None:
            raise self.error
        return self.replies


def _may_repeat(call: Call[Any], error: GlideMQError) -> bool:
    """Whether a call may be repeated; some of several primaries may have executed it."""
    return call.repeatable or not (isinstance(error, OutcomeUnknown) or is_for_all(call.words))


def is_timeout(error: OutcomeUnknown) -> bool:
    """Whether the server did not reply in time on an open connection."""
    return isinstance(error.__cause__, TimeoutError | RedisTimeoutError)


def _passes(error: GlideMQError, *, is_known: bool) -> bool:
    """Whether an error may pass within a pause, so that a repeat makes sense."""
    if isinstance(error, OutcomeUnknown):
        return not is_timeout(error)
    if isinstance(error, ConnectionFailed):
        return is_known
    return isinstance(error, ServerBusy) and error.code in _PASSING
