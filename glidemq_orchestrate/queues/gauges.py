"""What monitoring asks of a queue beyond its counts, in a few calls however many jobs it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from glidemq_orchestrate.broadcasts import subscriptions
from glidemq_orchestrate.jobs.pages import stream_page
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.queues.removal import ENDED
from glidemq_orchestrate.schedules import entries
from glidemq_orchestrate.schedules.entries import HASHES, StoredSchedule
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, fields_of, side_by_side
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import number

LATE_MS: Final = 30_000
"""A schedule is late if it was not fired this long after it was due; workers look every two seconds."""
MAX_LATE: Final = 1_000
MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class QueueGauges:
    """What monitoring asks of a queue.

    Attributes:
        oldest_ms: For how long the first job in order of arrival has been ready; 0 if none waits. Nothing
            says since when jobs with a priority, in LIFO order, and elements of arrays are ready.
        late_schedules: How many schedules are late, at most 1,000.
        ended: How many jobs ended in the last full minute, those of Node workers included, by state.
    """

    oldest_ms: int
    late_schedules: int
    ended: Mapping[JobState, int]


def gauges(queues: Sequence[QueueKeys], now_ms: int) -> Op[QueueGauges]:
    """Read them, over all these queues."""
    every = yield from side_by_side([_of_one(queue, now_ms) for queue in queues])
    ended = Counter[JobState]()
    for one in every:
        ended.update(one.ended)
    late = sum(one.late_schedules for one in every)
    return QueueGauges(max(one.oldest_ms for one in every), late, ended)


def _of_one(queue: QueueKeys, now_ms: int) -> Op[QueueGauges]:
    groups = yield from subscriptions.groups(queue)
    delivered = [group.last for group in subscriptions.of(groups) or groups]
    start = f"({min(delivered, key=_place)}" if delivered else "-"
    minute = f"m:{now_ms // MINUTE_MS * MINUTE_MS - MINUTE_MS}:c"
    calls: list[Call[Any]] = [
        stream_page(queue, start, 1),
        entries.due_by(queue, now_ms - LATE_MS, MAX_LATE),
        *(fields_of(queue.metrics(name), minute) for name in ENDED.values()),
    ]
    first, due, *counts = yield from ask_all(calls)
    since = _place(first[0][0])[0] if first else now_ms
    late = 0
    for where in HASHES:
        names = [name for place, name in map(entries.place, due) if place == where]
        if names:  # a Node worker may have fired it, which does not change the index
            texts = yield from ask(fields_of(queue.key(where), *names))
            late += sum(_is_late(text, now_ms) for text in texts)
    ended = {state: number(count) for state, (count,) in zip(ENDED, counts, strict=True)}
    return QueueGauges(max(now_ms - since, 0), late, ended)


def _place(entry_id: str) -> tuple[int, int]:
    """An id of an entry of a stream, in the order of the stream."""
    at, _, place = entry_id.partition("-")
    return number(at), number(place)


def _is_late(text: str | None, now_ms: int) -> bool:
    stored = StoredSchedule.parse(text or "")
    return stored is not None and 0 < stored.number("nextRun") <= now_ms - LATE_MS and not stored.is_over
