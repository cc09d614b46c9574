"""The elements of open arrays in a queue: how many wait and run, and the slices that workers hold."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, command, parts
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import number, parsed_object

MAX_ARRAYS: Final = 1_000
COUNTS: Final = ("elements", "completed", "failed", "skipped", "running")
_CALLS_PER_TRIP: Final = 500


@dataclass(frozen=True, slots=True)
class ElementCounts:
    """The elements of the arrays that are open in a queue: those whose dependencies have ended.

    Attributes:
        waiting: Those that have not ended, do not run and are no jobs, which are counted as jobs.
        ready: Of these, those that could run now: not those of an array that waits for its delay or the next
            attempts of its elements, and no more than ``max_running`` of an array allows.
        running: Those that run now, on any worker.
        is_partial: There are more than 1,000 open arrays, and only so many were counted.
        arrays: How many arrays are open. Their own jobs are in no other count.
    """

    waiting: int = 0
    ready: int = 0
    running: int = 0
    is_partial: bool = False
    arrays: int = 0


OpenArray = tuple[str, float]
"""The job id of an array, and from when on an element can run, ms."""


def open_arrays(queue: QueueKeys) -> Call[list[OpenArray]]:
    """The open arrays of a queue: at most one more than are counted."""
    words = ("ZRANGE", f"{queue.base}:gmo:arrays", 0, MAX_ARRAYS, "WITHSCORES")
    return command(*words, decode=_open)


def _open(reply: Sequence[str]) -> list[OpenArray]:
    return [(job_id, float(since)) for job_id, since in zip(reply[::2], reply[1::2], strict=True)]


def count_elements(queue: QueueKeys, arrays: Sequence[OpenArray], now_ms: int) -> Op[ElementCounts]:
    """Add up the elements of these arrays. Without arrays, there is no call."""
    waiting = ready = running = 0
    counted = arrays[:MAX_ARRAYS]
    calls: list[Call[Any]] = []
    for job_id, _ in counted:
        calls.append(job_hash.get(queue, job_id, "gmo:array", parsed_object))
        calls.append(command("HMGET", queue.array(job_id), *_COUNTED, decode=_numbers))
        calls.append(command("SCARD", f"{queue.array(job_id)}:jobs", decode=int))
    replies = yield from _in_trips(calls)
    rows = zip(counted, replies[::3], replies[1::3], replies[2::3], strict=True)
    for (_, since), definition, counts, jobs in rows:
        left = max(_left(definition, counts) - jobs, 0)
        waiting, running = waiting + left, running + counts[-1]
        if since <= now_ms:
            ready += _room(definition, counts[-1], left)
    return ElementCounts(waiting, ready, running, len(arrays) > MAX_ARRAYS, sum(map(bool, replies[::3])))


def counts_of_arrays(
    queues: Sequence[QueueKeys], job_ids: Container[str]
) -> Op[dict[str, Mapping[str, int]]]:
    """Of the open arrays among these jobs, how many elements there are, have ended and run, by job id."""
    opened = yield from ask_all(map(open_arrays, queues))
    arrays = [
        (queue, job_id)
        for queue, found in zip(queues, opened, strict=True)
        for job_id, _ in found
        if job_id in job_ids
    ]
    calls: list[Call[Any]] = []
    for queue, job_id in arrays:
        calls.append(job_hash.get(queue, job_id, "gmo:array", parsed_object))
        calls.append(command("HMGET", queue.array(job_id), *_COUNTED, decode=_numbers))
        calls.append(command("SMEMBERS", f"{queue.array(job_id)}:jobs", decode=list))
    replies = yield from _in_trips(calls)
    found: dict[str, Mapping[str, int]] = {}
    rows = zip(arrays, replies[::3], replies[1::3], replies[2::3], strict=True)
    for (queue, job_id), definition, (appended, *ended, running), jobs in rows:
        size = number(definition.get("size")) + appended
        counts = (size, *ended, running + (yield from _active(queue, jobs)))
        found[job_id] = dict(zip(COUNTS, counts, strict=True))
    return found


def _active(queue: QueueKeys, jobs: Sequence[str]) -> Op[int]:
    """How many of these jobs run: the elements of some arrays are jobs, at most 200 at once."""
    if not jobs:
        return 0
    calls = [job_hash.get(queue, job_id, "state", lambda state: state == JobState.ACTIVE) for job_id in jobs]
    return sum((yield from ask_all(calls)))


def idle_arrays(queue: QueueKeys, job_ids: Container[str]) -> Op[list[OpenArray]]:
    """The arrays among these that are open, and of which no element runs or is a job."""
    arrays = [one for one in (yield from ask(open_arrays(queue))) if one[0] in job_ids]
    calls: list[Call[Any]] = []
    for job_id, _ in arrays:
        calls.append(command("HGET", queue.array(job_id), "running", decode=number))
        calls.append(command("SCARD", f"{queue.array(job_id)}:jobs", decode=int))
    replies = yield from _in_trips(calls)
    rows = zip(arrays, replies[::2], replies[1::2], strict=True)
    return [one for one, running, jobs in rows if not running and not jobs]


def _in_trips(calls: Sequence[Call[Any]]) -> Op[list[Any]]:
    """The replies to any number of calls."""
    replies: list[Any] = []
    for trip in parts(calls, _CALLS_PER_TRIP):
        replies += yield from ask_all(trip)
    return replies


def slice_ids(queue: QueueKeys) -> Op[list[str]]:
    """The job ids of the slices of open arrays that workers hold."""
    arrays = (yield from ask(open_arrays(queue)))[:MAX_ARRAYS]
    keys = [f"{queue.array(job_id)}:slices" for job_id, _ in arrays]
    found = yield from _in_trips([command("SMEMBERS", key, decode=list) for key in keys])
    return sorted(chain.from_iterable(found))


_COUNTED: Final = ("appended", "completed", "failed", "skipped", "running")


def _numbers(reply: Sequence[str | None]) -> list[int]:
    return [number(text) for text in reply]


def _left(definition: Mapping[str, Any], counts: Sequence[int]) -> int:
    """The elements that wait; none if another client has removed the array."""
    appended, *ended_or_running = counts
    return max(number(definition.get("size")) + appended - sum(ended_or_running), 0)


def _room(definition: Mapping[str, Any], running: int, left: int) -> int:
    limit = number(definition.get("running"))
    return min(left, max(limit - running, 0)) if limit else left
