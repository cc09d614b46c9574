"""The dead letters of a queue of ChasquiMQ: jobs that failed for good, and entries that are no jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from glidemq_orchestrate.chasquimq.envelope import Envelope
from glidemq_orchestrate.chasquimq.keys import ChasquiKeys
from glidemq_orchestrate.chasquimq.msgpack import from_word, to_word
from glidemq_orchestrate.chasquimq.scripts import REPLAY, script
from glidemq_orchestrate.errors import DecodeError, JobNotFound
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, Word, ask, command
from glidemq_orchestrate.wire.codec import readable

PAGE: Final = 20
LATEST: Final = 500
_ENTRY: Final = re.compile(r"[0-9]{1,19}-[0-9]{1,19}", re.ASCII)


class DeadReason(StrEnum):
    """Why an entry is a dead letter. Other reasons are plain strings."""

    RETRIES_EXHAUSTED = "retries_exhausted"
    UNRECOVERABLE = "unrecoverable"
    DECODE_FAILED = "decode_failed"
    MALFORMED = "malformed"
    OVERSIZE_PAYLOAD = "oversize_payload"


@dataclass(frozen=True, slots=True)
class ChasquiDeadLetter:
    """A job that failed for good, or an entry that is no job.

    The error of the handler is not stored here, but in the event ``failed``.

    Attributes:
        id: Its position among the dead letters.
        source_id: The position of the entry in the stream of the queue.
        reason: A value of ``DeadReason``, or another string.
        detail: More about the reason, for entries without an envelope.
        stored_name: The name of the job as stored; empty if it has none. See ``name``.
        payload: The envelope as stored, possibly no envelope.
    """

    id: str
    source_id: str
    reason: str
    detail: str
    stored_name: str
    payload: bytes

    @property
    def name(self) -> str:
        """The name of the job, printable."""
        return readable(self.stored_name)

    @property
    def job_id(self) -> str | None:
        """The id of the job; None if the envelope cannot be read."""
        return None if (envelope := self.envelope) is None else envelope.job_id

    @property
    def attempts_made(self) -> int | None:
        """How many runs had failed before the last one; None if the envelope cannot be read."""
        return None if (envelope := self.envelope) is None else envelope.attempt

    @property
    def data(self) -> Any:
        """The data of the job.

        Raises:
            DecodeError: It cannot be read.
        """
        return Envelope.read(self.payload).data

    @property
    def envelope(self) -> Envelope | None:
        """The envelope; None if it cannot be read."""
        try:
            return Envelope.read(self.payload)
        except DecodeError:
            return None


def _letter(entry_id: str, fields: Mapping[str, str]) -> ChasquiDeadLetter:
    source, reason, detail = (readable(fields.get(name, "")) for name in ("source_id", "reason", "detail"))
    payload = from_word(fields.get("d", ""))
    return ChasquiDeadLetter(entry_id, source, reason, detail, fields.get("n", ""), payload)


def page(keys: ChasquiKeys, after: str | None, count: int) -> Call[list[ChasquiDeadLetter]]:
    """The next dead letters, oldest first."""

    def decode(reply: Any) -> list[ChasquiDeadLetter]:
        return [_letter(entry_id, replies.pairs(fields or [])) for entry_id, fields in reply]

    start = "-" if after is None else f"({after}"
    return command("XRANGE", keys.key("dlq"), start, "+", "COUNT", count, decode=decode)


def latest(keys: ChasquiKeys) -> Call[list[ChasquiDeadLetter]]:
    """The newest dead letters, without their payloads being decoded."""

    def decode(reply: Any) -> list[ChasquiDeadLetter]:
        return [_letter(entry_id, replies.pairs(fields or [])) for entry_id, fields in reply]

    return command("XREVRANGE", keys.key("dlq"), "+", "-", "COUNT", LATEST, decode=decode)


def dead_letters(keys: ChasquiKeys, limit: int) -> Op[list[ChasquiDeadLetter]]:
    """The oldest dead letters, in pages."""
    found: list[ChasquiDeadLetter] = []
    while len(found) < limit:
        count = min(PAGE, limit - len(found))
        part = yield from ask(page(keys, found[-1].id if found else None, count))
        found += part
        if len(part) < count:
            break
    return found


def replay(keys: ChasquiKeys, limit: int, max_waiting: int | None) -> Op[int]:
    """Add the oldest dead letters to the queue again; returns how many moved."""
    moved, examined, last = 0, 0, None
    while examined < limit:
        count = min(PAGE, limit - examined)
        part = yield from ask(page(keys, last, count))
        readable_part = [(letter, envelope) for letter in part if (envelope := letter.envelope) is not None]
        if readable_part:
            moved += yield from ask(_move(keys, readable_part, max_waiting))
        if len(part) < count:
            break
        examined, last = examined + count, part[-1].id
    return moved


def _move(
    keys: ChasquiKeys, letters: Sequence[tuple[ChasquiDeadLetter, Envelope]], max_waiting: int | None
) -> Call[int]:
    words: list[Word] = ["" if max_waiting is None else max_waiting]
    for letter, envelope in letters:
        words += [letter.id, to_word(envelope.afresh().packed), letter.stored_name]
    return script(REPLAY, [keys.key("dlq"), keys.key("stream")], words, replies.integer)


def remove(keys: ChasquiKeys, letter_id: str) -> Op[None]:
    """Delete one dead letter.

    Raises:
        JobNotFound: The queue has no dead letter with this id.
    """
    is_id = _ENTRY.fullmatch(letter_id) is not None
    if not is_id or not (yield from ask(command("XDEL", keys.key("dlq"), letter_id, decode=replies.integer))):
        raise JobNotFound(f"queue {keys.queue} of ChasquiMQ has no dead letter {described(letter_id)}")
