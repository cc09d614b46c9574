"""How runs end, by ChasquiMQ's rules for workers: many of them, with events, in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from glidemq_orchestrate.chasquimq.consuming import Arrived, Consumer, Refused, read
from glidemq_orchestrate.chasquimq.delayed import DelayedMember
from glidemq_orchestrate.chasquimq.envelope import Envelope
from glidemq_orchestrate.chasquimq.keys import ChasquiKeys
from glidemq_orchestrate.chasquimq.msgpack import to_word
from glidemq_orchestrate.chasquimq.scripts import END, known_script, script
from glidemq_orchestrate.errors import GlideMQError, ProtocolError
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, Word, ask_each
from glidemq_orchestrate.wire.codec import readable

MAX_DEAD: Final = 100_000

Event = Sequence[Word]
Verdict = bool | GlideMQError
"""Whether a run still held its job, or why it could not end."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of one run.

    Attributes:
        target: The key that its action writes.
        words: The arguments of the script for it.
        size: About how many characters they have.
    """

    target: str
    words: Sequence[Word]
    size: int


def event(kind: str, job_id: str, name: str, now_ms: int, **fields: Word) -> list[Word]:
    """The words of an event."""
    words: list[Word] = ["e", kind, "id", job_id, "ts", now_ms, *(["n", name] if name else [])]
    for field, value in fields.items():
        words += [field, value]
    return words


def write_event(keys: ChasquiKeys, words: Event) -> Call[None]:
    """Write an event that no end of a run brings."""
    call = ("XADD", keys.key("events"), "MAXLEN", "~", 100_000, "*", *words)
    return Call(call, replies.anything, confirms=False)


def settle(keys: ChasquiKeys, entry_id: str, result: tuple[str, bytes, int] | None, *events: Event) -> Ending:
    """End a run well; ``result``: its key, its bytes, and for how many seconds it is kept."""
    if result is None:
        return _ending(entry_id, ("settle", "", ""), keys.result(""), (), events)
    key, data, seconds = result
    return _ending(entry_id, ("store", seconds, to_word(data)), key, (), events)


def reschedule(
    keys: ChasquiKeys, entry_id: str, name: str, envelope: Envelope, run_at: int, *events: Event
) -> Ending:
    """End a run that is followed by another one."""
    member = to_word(DelayedMember(readable(name), envelope.packed).packed)
    return _ending(entry_id, ("delay", run_at, member), keys.key("delayed"), (), events)


def bury(keys: ChasquiKeys, refused: Refused, *events: Event) -> Ending:
    """Move an entry to the dead letters."""
    letter: list[Word] = ["d", to_word(refused.payload), *(["n", refused.name] if refused.name else [])]
    letter += ["source_id", refused.entry_id, "reason", refused.reason.value]
    letter += ["detail", refused.detail] if refused.detail else []
    return _ending(refused.entry_id, ("bury", MAX_DEAD, ""), keys.key("dlq"), letter, events)


def dead_event(refused: Refused, now_ms: int) -> list[Word]:
    """The event of a dead letter."""
    fields: dict[str, Word] = {"attempt": refused.runs, "reason": refused.reason.value}
    return event("dlq", refused.job_id, refused.name, now_ms, **fields)


def _ending(
    entry_id: str,
    action: tuple[str, Word, Word],
    target: str,
    letter: Sequence[Word],
    events: Sequence[Event],
) -> Ending:
    words: list[Word] = [entry_id, *action, len(letter), *letter, len(events), *_counted(events)]
    return Ending(target, words, sum(len(word) for word in words if isinstance(word, str)))


def _counted(events: Iterable[Event]) -> list[Word]:
    return [word for one in events for word in (len(one), *one)]


def exchange(
    consumer: Consumer, events: Sequence[Event], endings: Sequence[Ending], wanted: int
) -> Op[tuple[Sequence[Verdict] | GlideMQError, Sequence[Arrived | Refused] | GlideMQError]]:
    """Write events and end runs in one call, and fetch up to ``wanted`` jobs in the same trip.

    Returns:
        What came of each end, and the jobs; an error in the place of either if its call failed.
    """
    keys = [consumer.keys.key("stream"), consumer.keys.key("events"), *(one.target for one in endings)]
    words: list[Word] = [consumer.group, consumer.name, len(events), *_counted(events)]
    for one in endings:
        words += one.words
    calls: list[Call[Any]] = [known_script(END, keys, words, _verdicts(len(endings)))]
    calls += [read(consumer, wanted, 0)] if wanted else []
    verdicts, *fetched = yield from ask_each(calls)
    if isinstance(verdicts, GlideMQError) and verdicts.code == "NOSCRIPT":  # the server has restarted
        (verdicts,) = yield from ask_each([script(END, keys, words, _verdicts(len(endings)))])
    return verdicts, fetched[0] if fetched else []


def _verdicts(count: int) -> Callable[[Any], list[Verdict]]:
    def decode(reply: Any) -> list[Verdict]:
        if not isinstance(reply, list) or len(reply) != count:
            raise ProtocolError(f"expected {count} verdicts")
        return [replies.error_from(one) if isinstance(one, str) else one == 1 for one in reply]

    return decode
