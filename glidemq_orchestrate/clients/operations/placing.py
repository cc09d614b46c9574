"""Where the jobs of a queue with shards are added."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from glidemq_orchestrate.jobs.adding import CHUNK_JOBS, NewJob, member_with
from glidemq_orchestrate.jobs.job import job_exists
from glidemq_orchestrate.jobs.option_values import JobRef
from glidemq_orchestrate.shards import NUMBERS, Shards, places, split_shard
from glidemq_orchestrate.wire.call import Call, Op, ask_all, command
from glidemq_orchestrate.wire.keys import KeyName, QueueKeys


class _Keyed(NamedTuple):
    """What places a job: its ordering key, or else its deduplication id, or else its own id."""

    table: KeyName | None
    key: str

    def is_in(self, keys: QueueKeys) -> Call[bool]:
        """Whether there are jobs with it in a member."""
        if self.table is None:
            return job_exists(keys, self.key)
        return command("HEXISTS", keys.key(self.table), self.key, decode=bool)


def places_of(
    jobs: Sequence[NewJob], shards: Shards, turn: int, now_ms: int
) -> Op[list[tuple[QueueKeys, NewJob]]]:
    """Where to add each job, and the job as it is there.

    Children go to the shard of their parent. Jobs with an ordering key, a deduplication id or an id of their
    own go where earlier ones with it are, else to the shard that follows from it. All others are spread
    evenly, in runs that a call can add.
    """
    count = shards.count(now_ms)
    size = min(max(-(-len(jobs) // max(count, 1)), 1), CHUNK_JOBS)
    even = [shards.one((turn + at // size) % count) if count else shards.queue for at in range(len(jobs))]
    placed = list(zip(even, jobs, strict=True))
    for at, keys in (yield from _by_key(jobs, shards, now_ms)).items():
        placed[at] = (keys, jobs[at])
    for at, place in (yield from _by_parent(jobs, shards)).items():
        placed[at] = place
    return placed


def _by_key(jobs: Sequence[NewJob], shards: Shards, now_ms: int) -> Op[dict[int, QueueKeys]]:
    keyed = {at: one for at, job in enumerate(jobs) if (one := _keyed(job)) is not None}
    options = {at: _options(one, shards, now_ms) for at, one in keyed.items()}
    asked = [(at, place) for at, several in options.items() for place in several[1:]]
    there = yield from ask_all([keyed[at].is_in(place) for at, place in asked])
    found = {at: several[0] for at, several in options.items()}
    for (at, place), hit in zip(asked, there, strict=True):
        if hit:
            found[at] = place
    return found


def _options(keyed: _Keyed, shards: Shards, now_ms: int) -> list[QueueKeys]:
    """Where to add a job with a key, and where earlier ones may be.

    A number as an id goes where the server may have given it to a job.
    """
    found = places(shards, keyed.key, now_ms)
    if keyed.table is not None or not re.fullmatch("[1-9][0-9]{0,15}", keyed.key):
        return found
    index = int(keyed.key) // NUMBERS - 1
    return list(dict.fromkeys([shards.one(index), *found])) if 0 <= index < shards.total else found


def _keyed(job: NewJob) -> _Keyed | None:
    options = job.options
    if options.ordering is not None:
        return _Keyed("ordering", options.ordering.key)
    if options.deduplication is not None:
        return _Keyed("dedup", options.deduplication.id)
    return None if options.job_id is None else _Keyed(None, options.job_id)


def _child(job: NewJob, parent: JobRef) -> NewJob:
    return NewJob(job.name, job.data, options=replace(job.options, parent=parent))


def _by_parent(jobs: Sequence[NewJob], shards: Shards) -> Op[dict[int, tuple[QueueKeys, NewJob]]]:
    """The place of children, which name the member that has their parent."""
    parents = {at: job.options.parent for at, job in enumerate(jobs) if job.options.parent is not None}
    found: dict[int, tuple[QueueKeys, NewJob]] = {}
    for at, named in parents.items():
        parent = named
        if split_shard(named.queue)[1] is None:  # adding it refuses a missing parent
            parent = (yield from member_with(shards.queue.prefix, named)) or named
        index = split_shard(parent.queue)[1]
        place = shards.queue if index is None or index >= shards.total else shards.one(index)
        found[at] = (place, _child(jobs[at], parent))
    return found
