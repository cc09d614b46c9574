"""The ends of jobs that the bridge has handed over, as its events, entries and results show them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from glidemq_orchestrate.chasquimq import events, handed_over
from glidemq_orchestrate.chasquimq.dead_letters import ChasquiDeadLetter, DeadReason, latest
from glidemq_orchestrate.chasquimq.events import ChasquiEvent, ChasquiEventKind
from glidemq_orchestrate.chasquimq.keys import ChasquiKeys
from glidemq_orchestrate.chasquimq.msgpack import from_word, unpack
from glidemq_orchestrate.errors import DecodeError, ProtocolError
from glidemq_orchestrate.wire.call import Run, ask, command
from glidemq_orchestrate.worker.handlers.signals import Unrecoverable

WAIT_MS: Final = 500
SOON_MS: Final = 20
CHECKED_TOGETHER: Final = 200
EVENT_SECONDS: Final = 2.0
"""How long an entry may be gone before its end is looked up without an event."""
LAG_SECONDS: Final = 20.0
"""The same while events that may tell its end are still to be read: only they have the error of a handler."""
REMEMBERED: Final = 50_000


class RemoteFailed(Exception):
    """The handler in ChasquiMQ's worker failed; the message is its error."""


class RemoteVanished(Exception):
    """A job is gone from ChasquiMQ, and nothing tells how it ended."""


@dataclass(slots=True, eq=False)
class Remote:
    """A job that was handed over.

    Attributes:
        id: Its id.
        entry_id: Its entry; empty once a worker has scheduled another run.
        ended: Its result, or the error of its handler.
        kind: ``completed`` or ``dlq`` once an event has said so.
        error: The last error of its handler.
        gone_at: When its entry was first missing, by the clock of the loop.
    """

    id: str
    entry_id: str
    ended: asyncio.Future[Any]
    kind: str = ""
    reason: str = ""
    error: str = ""
    gone_at: float | None = None


@dataclass(slots=True)
class Remotes:
    """The jobs of one queue that a bridge waits for.

    Attributes:
        run: Drives operations on the server of ChasquiMQ.
        keys: The keys of the queue.
        position: The last event that was read.
        jobs: The jobs by id.
        earlier: Events of jobs that nobody waits for yet, such as those of a bridge that was killed.
        read_until: Every event until then was read, by the clock.
    """

    run: Run
    keys: ChasquiKeys
    position: str
    clock: Callable[[], float]
    jobs: dict[str, Remote] = field(default_factory=dict)
    earlier: dict[str, list[ChasquiEvent]] = field(default_factory=dict)
    read_until: float = -math.inf

    def expect(self, job_id: str, entry_id: str) -> Remote:
        """Wait for a job from now on."""
        remote = Remote(job_id, entry_id, asyncio.get_running_loop().create_future())
        self.jobs[job_id] = remote
        for event in self.earlier.pop(job_id, ()):
            _note(remote, event)
        return remote

    def forget(self, remote: Remote) -> None:
        """Wait no longer."""
        if self.jobs.get(remote.id) is remote:
            del self.jobs[remote.id]

    async def read_events(self) -> None:
        """Read the next events, and look up the jobs that have ended by them."""
        settling = [one for one in self.jobs.values() if one.kind and not one.ended.done()]
        began = self.clock()
        try:
            found = await self.run(
                ask(events.read(self.keys, self.position, SOON_MS if settling else WAIT_MS))
            )
        except ProtocolError:  # the key holds something else, so there are no events
            self.read_until = began
            raise
        touched = {remote.id: remote for remote in settling}
        for entry_id, fields in found:
            event = events.event_of(entry_id, fields)
            if event.job_id is None or not event.job_id.startswith(handed_over.PREFIX):
                continue
            if (remote := self.jobs.get(event.job_id)) is not None:
                _note(remote, event)
                touched[remote.id] = remote
            elif event.kind in _NOTED:
                self.earlier.setdefault(event.job_id, []).append(event)
                if len(self.earlier) > REMEMBERED:
                    del self.earlier[next(iter(self.earlier))]
        if found:
            self.position = found[-1][0]
        if len(found) < events.COUNT:
            self.read_until = began
        await self.check([remote for remote in touched.values() if remote.kind])

    async def check_all(self) -> None:
        """Look up every job: events may be missing."""
        await self.check(list(self.jobs.values()))

    async def check(self, remotes: list[Remote]) -> None:
        """Look up whether jobs have ended."""
        for first in range(0, len(remotes), CHECKED_TOGETHER):
            part = [one for one in remotes[first : first + CHECKED_TOGETHER] if not one.ended.done()]
            entries = [one.entry_id or "0-1" for one in part]
            here = await self.run(ask(handed_over.present(self.keys, entries))) if part else []
            gone: list[Remote] = []
            for remote, is_here in zip(part, here, strict=True):
                if remote.kind == ChasquiEventKind.DLQ:
                    _fail(remote, remote.reason, remote.error)
                elif is_here:
                    remote.gone_at = None
                else:
                    gone.append(remote)
            await self._end(gone)

    async def _end(self, gone: Sequence[Remote]) -> None:
        """End jobs whose entries are gone; a worker reports a completion before that."""
        untold = [remote for remote in gone if not remote.kind and self._is_overdue(remote)]
        letters: list[ChasquiDeadLetter] = await self.run(ask(latest(self.keys))) if untold else []
        reasons = {letter.source_id: letter.reason for letter in letters}
        for remote in untold:
            if remote.entry_id in reasons:
                _fail(remote, reasons[remote.entry_id], remote.error)
        await self._complete([one for one in gone if one.kind or one in untold])

    def _is_overdue(self, remote: Remote) -> bool:
        """Whether no event will tell the end of a job whose entry is gone."""
        if not remote.entry_id:
            return False
        now = self.clock()
        gone_at = remote.gone_at = now if remote.gone_at is None else remote.gone_at
        return now - gone_at >= (EVENT_SECONDS if self.read_until >= gone_at else LAG_SECONDS)

    async def _complete(self, remotes: Sequence[Remote]) -> None:
        """End jobs with their results. Without a result, one that no event tells of was lost."""
        remotes = [one for one in remotes if not one.ended.done()]
        names = [self.keys.result(remote.id) for remote in remotes]
        found: list[str | None] = await self.run(ask(command("MGET", *names, decode=list))) if names else []
        for remote, stored in zip(remotes, found, strict=True):
            if not remote.ended.done():
                self._settle(remote, stored)

    def _settle(self, remote: Remote, stored: str | None) -> None:
        if stored is None and not remote.kind:
            remote.ended.set_exception(RemoteVanished(_VANISHED.format(remote.id, self.keys.queue)))
            return
        try:
            where = f"the result of job {remote.id}"
            remote.ended.set_result(None if stored is None else unpack(from_word(stored), where=where))
        except DecodeError as exc:
            remote.ended.set_exception(exc)


_VANISHED: Final = (
    "job {} is gone from queue {} of ChasquiMQ without an event, a dead letter or a result: the queue was "
    "trimmed or deleted, or its workers write no events. Fix: events_enabled=True and store_results=True "
    "there, and fewer waiting jobs than max_waiting"
)
_NOTED: Final = (ChasquiEventKind.COMPLETED, ChasquiEventKind.FAILED, ChasquiEventKind.DLQ)


def _note(remote: Remote, event: ChasquiEvent) -> None:
    match event.kind:
        case ChasquiEventKind.FAILED:
            remote.error = event.reason or ""
        case ChasquiEventKind.COMPLETED:
            remote.kind = event.kind
        case ChasquiEventKind.DLQ:
            remote.kind, remote.reason = event.kind, event.reason or ""
        case (
            ChasquiEventKind.RETRY_SCHEDULED
        ):  # by a worker that gave the run back: it has another entry then
            remote.entry_id = ""


def _fail(remote: Remote, reason: str, error: str) -> None:
    if remote.ended.done():
        return
    text = error or f"the job became a dead letter of ChasquiMQ: {reason or 'without a reason'}"
    is_final = reason not in ("", DeadReason.RETRIES_EXHAUSTED)
    remote.ended.set_exception(Unrecoverable(text) if is_final else RemoteFailed(text))
