"""The part of Queue and AsyncQueue for a single job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from glidemq_orchestrate.clients.parts.part import AsyncQueueBase, QueueBase
from glidemq_orchestrate.jobs import changes as ops
from glidemq_orchestrate.jobs import children, output, suspension
from glidemq_orchestrate.jobs import messages as message_ops
from glidemq_orchestrate.jobs.bounds import milliseconds
from glidemq_orchestrate.jobs.job import JobLogs
from glidemq_orchestrate.jobs.messages import AcceptedAttempt, JobMessage
from glidemq_orchestrate.jobs.options import JobRef
from glidemq_orchestrate.jobs.output import OutputChunk
from glidemq_orchestrate.jobs.suspension import SuspendInfo
from glidemq_orchestrate.queues import removal
from glidemq_orchestrate.queues.removal import Revoked
from glidemq_orchestrate.wire.codec import Json, JsonLike


class JobCalls(QueueBase):
    """Calls for a single job."""

    def retry(self, job_id: str) -> None:
        """Run a failed job again, immediately, whatever its delay was; its attempts count from zero.

        Raises:
            JobNotFound: There is none with this id.
            JobStateConflict: It has not failed, or it is a node of a flow, which is retried as a whole.
        """
        self._run(ops.retry(self._keys, job_id, self._now()))

    def revoke(self, job_id: str) -> Revoked:
        """End a job that does not run yet; ask a running one to stop.

        Returns:
            ``revoked``: it has failed, with that reason. ``flagged``: it is running, and its worker is
            notified; it may still complete.

        Raises:
            JobNotFound: There is none with this id.
            JobStateConflict: It has ended; nothing was changed.
        """
        return self._run(removal.revoke(self._keys, job_id, self._clock))

    def remove(self, job_id: str) -> None:
        """Delete a job with its logs, its output and its place in the queue.

        A job that waited for it waits no longer. Whatever a running attempt sends later is refused.

        Raises:
            JobNotFound: There is none with this id. A repeat raises this.
            JobStateConflict: It is a node of a flow that has not ended: cancel the flow.
        """
        self._run(removal.remove(self._keys, job_id, self._now()))

    def change_priority(self, job_id: str, priority: int) -> None:
        """Change the priority of a job that does not run yet, 0 to 2048. Repeatable.

        Raises:
            InvalidJob: The priority is out of bounds; nothing was sent.
            JobNotFound: There is none with this id.
            JobStateConflict: It runs or has ended, or is already in the priority or LIFO list.
        """
        self._run(ops.change_priority(self._keys, job_id, priority))

    def change_delay(self, job_id: str, delay: timedelta) -> None:
        """Let a job that does not run yet start ``delay`` from now; zero: as soon as a worker is free.

        Raises:
            InvalidJob: The delay is negative or too long; nothing was sent.
            JobNotFound: There is none with this id.
            JobStateConflict: It runs or has ended, or is already in the priority or LIFO list.
        """
        self._run(ops.change_delay(self._keys, job_id, delay, self._now()))

    def promote(self, job_id: str) -> None:
        """Make a delayed job ready now.

        Raises:
            JobNotFound: There is none with this id.
            JobStateConflict: It is not delayed.
        """
        self._run(ops.promote(self._keys, job_id))

    def add_log(self, job_id: str, line: str) -> None:
        """Append a line to the log of a job, at most 1 MiB. The log keeps at least its last 10,000 lines.

        Raises:
            JobNotFound: There is none with this id.
            PayloadTooLarge: The line is longer; nothing was sent.
        """
        self._run(ops.add_log(self._keys, job_id, line))

    def logs(self, job_id: str, *, offset: int = 0, limit: int = 100) -> JobLogs:
        """Read log lines, the oldest first; none for a job that does not exist.

        Args:
            job_id: The job.
            offset: How many lines to leave out; -20: all but the last 20. Lines that are gone count as well.
            limit: The most lines.

        Raises:
            ConfigurationError: ``limit`` is negative.
        """
        return self._run(ops.logs(self._keys, job_id, offset, limit))

    def set_progress(self, job_id: str, progress: JsonLike) -> None:
        """Store the progress of a job, JSON of at most 1 MiB, and emit an event. Repeatable.

        Raises:
            JobNotFound: There is none with this id.
            EncodeError, PayloadTooLarge: The progress is not valid JSON or too large; nothing was sent.
        """
        self._run(ops.update(self._keys, job_id, "progress", progress, self._now()))

    def update_data(self, job_id: str, data: JsonLike) -> None:
        """Replace the data of a job; a running attempt keeps the old data. Repeatable.

        Raises:
            JobNotFound: There is none with this id.
            EncodeError, PayloadTooLarge: The data is not valid JSON or too large; nothing was sent.
        """
        self._run(ops.update(self._keys, job_id, "data", data, self._now()))

    def report_tokens(self, job_id: str, tokens: int) -> None:
        """Report how many tokens a job used, for the rate limit by tokens. Repeatable.

        Raises:
            InvalidJob: The number is negative; nothing was sent.
            JobNotFound: There is none with this id.
        """
        self._run(ops.report_tokens(self._keys, job_id, tokens, self._now()))

    def children_values(self, job_id: str) -> dict[JobRef, Json]:
        """The results of the completed jobs that a job waits or waited for, in any queue.

        Raises:
            ChildrenFailed: Some have ended without a result: failed, expired, revoked or removed. It has the
                reasons, and the results of the others.
            DecodeError: A result is not valid JSON.
        """
        return self._run(children.children_values(self._keys, job_id))

    def parents(self, job_id: str) -> list[JobRef]:
        """The jobs that wait for a job, in any queue; in a DAG these are its dependents.

        Raises:
            JobNotFound: There is none with this id.
        """
        return self._run(children.parents(self._keys, job_id))

    def suspend_info(self, job_id: str) -> SuspendInfo | None:
        """Why, since when and until when a job is suspended; None if it is not.

        Raises:
            JobNotFound: There is none with this id.
        """
        return self._run(suspension.suspend_info(self._keys, job_id))

    def signal(self, job_id: str, name: str, data: JsonLike = None) -> bool:
        """Send a signal to a suspended job, which then runs again and sees it. False if it is not suspended.

        Raises:
            InvalidJob: The name is empty; nothing was sent.
            EncodeError, PayloadTooLarge: The data is not valid JSON or too large; nothing was sent.
        """
        return self._run(suspension.signal(self._keys, job_id, name, data, self._now()))

    def add_output(self, job_id: str, fields: Mapping[str, str]) -> str:
        """Append to the output stream of a job: texts by name, at most 1 MiB. Returns the entry's id.

        Raises:
            JobNotFound: There is none with this id.
            InvalidJob, PayloadTooLarge: The output is not valid or too large; nothing was sent.
        """
        return self._run(output.add_output(self._keys, job_id, fields))

    def read_output(
        self, job_id: str, *, after: str | None = None, limit: int = 100, timeout: timedelta = timedelta(0)
    ) -> list[OutputChunk]:
        """Read the output of a job after an entry (None: from the start).

        Waits at most ``timeout`` for the first entry, to the millisecond; without one it does not wait.
        """
        return self._run(output.read_output(self._keys, job_id, after, limit, milliseconds(timeout)))

    def messages(self, job_id: str, *, after: str | None = None, limit: int = 1000) -> list[JobMessage]:
        """Read what the attempts of a job have written by ``ctx.write_message``, the oldest first.

        Args:
            job_id: The job.
            after: Only those after this position, the ``id`` of a message; None: from the start.
            limit: At most so many, 1 to 10,000.

        Raises:
            ConfigurationError: The limit is out of bounds, or ``after`` no position; nothing was sent.
        """
        return self._run(message_ops.messages(self._keys, job_id, after, limit))

    def accepted_attempts(self, job_ids: Sequence[str]) -> Mapping[str, AcceptedAttempt]:
        """The attempts whose results were accepted, by job; only of those that have written messages.

        A job that runs again has none until it has completed again.
        """
        return self._run(message_ops.accepted(self._keys, job_ids))


class AsyncJobCalls(AsyncQueueBase):
    """``JobCalls`` with awaitable calls; same arguments, same errors."""

    async def retry(self, job_id: str) -> None:
        """See ``Queue.retry``."""
        await self._run(ops.retry(self._keys, job_id, await self._now()))

    async def revoke(self, job_id: str) -> Revoked:
        """See ``Queue.revoke``."""
        return await self._run(removal.revoke(self._keys, job_id, self._clock))

    async def remove(self, job_id: str) -> None:
        """See ``Queue.remove``."""
        await self._run(removal.remove(self._keys, job_id, await self._now()))

    async def change_priority(self, job_id: str, priority: int) -> None:
        """See ``Queue.change_priority``."""
        await self._run(ops.change_priority(self._keys, job_id, priority))

    async def change_delay(self, job_id: str, delay: timedelta) -> None:
        """See ``Queue.change_delay``."""
        await self._run(ops.change_delay(self._keys, job_id, delay, await self._now()))

    async def promote(self, job_id: str) -> None:
        """See ``Queue.promote``."""
        await self._run(ops.promote(self._keys, job_id))

    async def add_log(self, job_id: str, line: str) -> None:
        """See ``Queue.add_log``."""
        await self._run(ops.add_log(self._keys, job_id, line))

    async def logs(self, job_id: str, *, offset: int = 0, limit: int = 100) -> JobLogs:
        """See ``Queue.logs``."""
        return await self._run(ops.logs(self._keys, job_id, offset, limit))

    async def set_progress(self, job_id: str, progress: JsonLike) -> None:
        """See ``Queue.set_progress``."""
        await self._run(ops.update(self._keys, job_id, "progress", progress, await self._now()))

    async def update_data(self, job_id: str, data: JsonLike) -> None:
        """See ``Queue.update_data``."""
        await self._run(ops.update(self._keys, job_id, "data", data, await self._now()))

    async def report_tokens(self, job_id: str, tokens: int) -> None:
        """See ``Queue.report_tokens``."""
        await self._run(ops.report_tokens(self._keys, job_id, tokens, await self._now()))

    async def children_values(self, job_id: str) -> dict[JobRef, Json]:
        """See ``Queue.children_values``."""
        return await self._run(children.children_values(self._keys, job_id))

    async def parents(self, job_id: str) -> list[JobRef]:
        """See ``Queue.parents``."""
        return await self._run(children.parents(self._keys, job_id))

    async def suspend_info(self, job_id: str) -> SuspendInfo | None:
        """See ``Queue.suspend_info``."""
        return await self._run(suspension.suspend_info(self._keys, job_id))

    async def signal(self, job_id: str, name: str, data: JsonLike = None) -> bool:
        """See ``Queue.signal``."""
        return await self._run(suspension.signal(self._keys, job_id, name, data, await self._now()))

    async def add_output(self, job_id: str, fields: Mapping[str, str]) -> str:
        """See ``Queue.add_output``."""
        return await self._run(output.add_output(self._keys, job_id, fields))

    async def read_output(
        self,
        job_id: str,
        *,
        after: str | None = None,
        limit: int = 100,
        timeout: timedelta = timedelta(0),  # noqa: ASYNC109  the server waits
    ) -> list[OutputChunk]:
        """See ``Queue.read_output``."""
        return await self._run(output.read_output(self._keys, job_id, after, limit, milliseconds(timeout)))

    async def messages(self, job_id: str, *, after: str | None = None, limit: int = 1000) -> list[JobMessage]:
        """See ``Queue.messages``."""
        return await self._run(message_ops.messages(self._keys, job_id, after, limit))

    async def accepted_attempts(self, job_ids: Sequence[str]) -> Mapping[str, AcceptedAttempt]:
        """See ``Queue.accepted_attempts``."""
        return await self._run(message_ops.accepted(self._keys, job_ids))
