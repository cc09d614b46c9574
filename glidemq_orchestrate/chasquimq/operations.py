"""The operations of ChasquiQueue and AsyncChasquiQueue, written once for both."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from glidemq_orchestrate.chasquimq import adding, dead_letters, events, schedules
from glidemq_orchestrate.chasquimq.adding import ChasquiJob, Producer
from glidemq_orchestrate.chasquimq.dead_letters import ChasquiDeadLetter
from glidemq_orchestrate.chasquimq.envelope import ChasquiBackoff
from glidemq_orchestrate.chasquimq.events import EventStream
from glidemq_orchestrate.chasquimq.keys import GROUP, ChasquiKeys, check_job_id
from glidemq_orchestrate.chasquimq.msgpack import Packable, from_word, unpack
from glidemq_orchestrate.chasquimq.profile import Profile, server_profile
from glidemq_orchestrate.chasquimq.schedules import ChasquiSchedule
from glidemq_orchestrate.chasquimq.times import pattern_of
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import Duration, milliseconds, optional_duration
from glidemq_orchestrate.foundation.values import whole
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, ask_each, command, parts

MAX_LISTED: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ChasquiCounts:
    """How much there is in a queue.

    Attributes:
        waiting: Jobs that no worker has fetched.
        active: Jobs that workers have fetched; they run, or are about to.
        delayed: Jobs that wait for their time, and failed ones that wait for their next run.
        dead: Dead letters.
        schedules: Repeating jobs.
    """

    waiting: int
    active: int
    delayed: int
    dead: int
    schedules: int


class ChasquiOperations:
    """Operations on one queue.

    Attributes:
        profile: What the server can do; the less of several servers. Known once the client is connected.
    """

    def __init__(
        self,
        keys: ChasquiKeys,
        clock: Clock,
        *,
        max_waiting: int | None,
        max_delay: Duration,
        require_chasquimq: bool,
    ) -> None:
        if max_waiting is not None:
            whole("max_waiting", max_waiting, 1)
        self._keys, self._clock, self._max_waiting = keys, clock, max_waiting
        self._producer = Producer(keys, str(uuid.uuid4()), max_waiting, milliseconds(max_delay))
        self._require_chasquimq = require_chasquimq
        self.profile = Profile.FULL

    def check_server(self) -> Op[None]:
        """Read the profile of the server.

        Raises:
            ConfigurationError: ChasquiMQ's own workers cannot run there, and the user requires that.
        """
        if (yield from server_profile(require_chasquimq=self._require_chasquimq)) is Profile.OWN:
            self.profile = Profile.OWN

    def serves_chasquimq(self) -> Op[bool]:
        """Whether ChasquiMQ's own workers and producers can use this server: a Redis 8.6 or newer."""
        yield from ()  # known since the connection was opened
        return self.profile is Profile.FULL

    def add(  # noqa: PLR0913  what a job has
        self,
        name: str,
        data: Packable = None,
        *,
        job_id: str | None = None,
        delay: Duration = 0,
        attempts: int | None = None,
        backoff: ChasquiBackoff | None = None,
    ) -> Op[str]:
        """Add a job and return its id.

        An id is a guard against repeats, not against a second job. Without a delay, this client adds the same
        id once within 100 seconds (as long as at most 100 newer ids were added), another client adds it
        again. With a delay, no client adds it again until an hour after it is due; the first data and time
        remain. In both cases the id is returned.

        Args:
            name: Decides which code runs it; at most 256 bytes, may be empty.
            data: None, numbers, texts, bytes, lists, and maps whose keys are texts; as an envelope at most
                1 MiB.
            job_id: An id of your own, not blank. By default a new one. Only a delayed job with an id can be
                cancelled.
            delay: How long it waits before workers may run it.
            attempts: The max number of runs; by default what the worker uses.
            backoff: The pauses between runs; by default what the worker uses.

        Raises:
            InvalidJob: A value is not valid, or the delay is longer than ``max_delay``; nothing was sent.
            EncodeError, PayloadTooLarge: The data cannot be packed, or is too long; nothing was sent.
            ServerBusy: The server's memory is full; nothing was added.
            OutcomeUnknown: The connection broke. Repeat the call only with a ``job_id``.
        """
        job = ChasquiJob(name, data, job_id, delay, attempts, backoff)
        ids = yield from self.add_many([job])
        return ids[0]

    def add_many(self, jobs: Iterable[ChasquiJob]) -> Op[list[str]]:
        """Add many jobs, in their order, up to 1,000 per round trip; returns their ids. See ``add``.

        Not all or nothing: if a call fails, some of the jobs may have been added. With ids, repeat it.

        Raises:
            InvalidJob, EncodeError, PayloadTooLarge: A job is not valid; nothing was sent.
            ServerBusy: The server's memory is full; some may have been added.
        """
        made = self._producer.pack(jobs, self._clock.now_ms())
        for part in adding.trips(made):
            yield from ask_all(self._producer.calls(part, self.profile))
        return [one.job_id for one in made]

    def cancel(self, job_id: str) -> Op[bool]:
        """Cancel a delayed job that was added with an id; its id is free again.

        Returns:
            True: it will not run. False: it is already in the queue, was added without an id, waits for
            another run, or is unknown.
        """
        return (yield from ask(adding.cancel(self._keys, check_job_id(job_id))))

    def result(self, job_id: str) -> Op[Any]:
        """Read what the handler of a job returned.

        None: the job has not completed, or its worker stores no results, or the handler returned None, or
        the result has expired (by default after an hour).

        Raises:
            DecodeError: The stored result is not msgpack.
        """
        return (yield from self.results([job_id]))[0]

    def results(self, job_ids: Sequence[str]) -> Op[list[Any]]:
        """Read the results of many jobs, in this order, 200 per round trip; see ``result``.

        Raises:
            DecodeError: A stored result is not msgpack.
        """
        found: list[Any] = []
        for part in parts(job_ids):
            stored = yield from ask(
                command("MGET", *(self._keys.result(job_id) for job_id in part), decode=list)
            )
            found += [_result(job_id, text) for job_id, text in zip(part, stored, strict=True)]
        return found

    def counts(self, *, group: str = GROUP) -> Op[ChasquiCounts]:
        """Count what is in the queue.

        Args:
            group: The consumer group of the workers.
        """
        calls: list[Call[int]] = [
            command("XLEN", self._keys.key("stream"), decode=replies.integer),
            command("XPENDING", self._keys.key("stream"), group, decode=lambda reply: int(reply[0])),
            command("ZCARD", self._keys.key("delayed"), decode=replies.integer),
            command("XLEN", self._keys.key("dlq"), decode=replies.integer),
            command("ZCARD", self._keys.key("repeat"), decode=replies.integer),
        ]
        found: list[int] = []
        for count in (yield from ask_each(calls)):
            if isinstance(count, GlideMQError):
                if count.code != "NOGROUP":  # no worker has ever served the queue
                    raise count
                found.append(0)
            else:
                found.append(count)
        stored, active, delayed, dead, repeating = found
        return ChasquiCounts(max(stored - active, 0), active, delayed, dead, repeating)

    def dead_letters(self, limit: int = 20) -> Op[list[ChasquiDeadLetter]]:
        """List the dead letters, oldest first."""
        whole("limit", limit, 0, MAX_LISTED)
        return dead_letters.dead_letters(self._keys, limit)

    def replay_dead_letters(self, limit: int = 100) -> Op[int]:
        """Add dead letters to the queue again, oldest first, and delete the letters; returns how many moved.

        Their runs are counted from zero. Letters without a readable envelope remain; they count towards the
        limit, and ``remove_dead_letter`` deletes them. Safe to repeat: no letter moves twice.

        Args:
            limit: How many of the oldest dead letters to examine.
        """
        whole("limit", limit, 0, MAX_LISTED)
        return dead_letters.replay(self._keys, limit, self._max_waiting)

    def remove_dead_letter(self, letter_id: str) -> Op[None]:
        """Delete a dead letter.

        Raises:
            JobNotFound: The queue has no dead letter with this id.
        """
        return dead_letters.remove(self._keys, letter_id)

    def upsert_schedule(  # noqa: PLR0913  what a schedule has
        self,
        name: str,
        data: Packable = None,
        *,
        every: Duration | None = None,
        cron: str | None = None,
        time_zone: str | None = None,
        limit: int | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        catch_up: int = 0,
    ) -> Op[str]:
        """Write a repeating job and return its key, which name and times make. Safe to repeat.

        The next run is computed anew, from now on or from ``start``; the number of runs so far remains. Live
        workers add the jobs, each with a new id.

        Args:
            name: The name of its jobs.
            data: Their data.
            every: A fixed interval; the first job is added after one.
            cron: Minute, hour, day of month, month, day of week; with six fields, seconds come first. If
                neither day field is ``*``, one of them must match.
            time_zone: The zone of ``cron``: an IANA name, or an offset such as ``+02:00``. By default UTC.
            limit: The total number of jobs.
            start: No job before this time.
            end: No job after this time.
            catch_up: How many runs that were missed while no worker was alive are made up for; 0: none.

        Raises:
            ConfigurationError, InvalidJob, EncodeError: A value is not valid, or there is no run before the
                end. Nothing was written.
        """
        pattern = pattern_of(every, cron, time_zone)
        spec = schedules.spec_of(name, data, pattern, limit=limit, start=start, end=end, catch_up=catch_up)
        return (yield from schedules.upsert(self._keys, spec, self._clock.now_ms()))

    def get_schedules(self, limit: int = 100) -> Op[list[ChasquiSchedule]]:
        """List the repeating jobs by their next run; one that cannot be read has ``broken`` set."""
        whole("limit", limit, 0, MAX_LISTED)
        return schedules.find_all(self._keys, limit)

    def remove_schedule(self, key: str) -> Op[bool]:
        """Remove a repeating job by its key; False if there was none. Jobs that it has added remain."""
        return (yield from ask(schedules.remove(self._keys, key)))

    def events(self, position: str | None = None, *, idle_timeout: Duration | None = None) -> EventStream:
        """Yield the events of the queue, in order.

        An event is a sign that something happened. Workers write events after the fact, drop those that
        cannot be written, and keep about the newest 100,000.

        Args:
            position: Continue after the event with this ``id``. None: only events from now on. ``0-0``: from
                the oldest event still stored.
            idle_timeout: End after this long without an event. None: never.

        Raises:
            ConfigurationError: The position is not valid.
            TransportError: The server is unreachable. Continue after the last event.
        """
        idle = optional_duration("idle_timeout", idle_timeout)
        return events.stream(self._keys, self._clock, position, None if idle is None else milliseconds(idle))


def _result(job_id: str, text: str | None) -> Any:
    return None if text is None else unpack(from_word(text), where=f"the result of job {job_id}")
