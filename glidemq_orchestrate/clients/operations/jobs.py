"""What Queue and AsyncQueue do: for a single job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from glidemq_orchestrate.clients.operations.queue_base import QueueOperationsBase
from glidemq_orchestrate.foundation.durations import Duration, duration, milliseconds
from glidemq_orchestrate.jobs import changes, job, output
from glidemq_orchestrate.jobs.bounds import lasting
from glidemq_orchestrate.jobs.changes import SuspendInfo
from glidemq_orchestrate.jobs.job import JobLogs
from glidemq_orchestrate.jobs.option_values import JobRef
from glidemq_orchestrate.jobs.output import AcceptedAttempt, JobMessage, OutputChunk
from glidemq_orchestrate.queues import removal
from glidemq_orchestrate.queues.removal import Revoked
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.codec import Json, JsonLike


class JobOperations(QueueOperationsBase):
    """Calls for a single job."""

    def retry(self, job_id: str) -> Op[None]:
        """Run a failed job again, immediately, whatever its delay was; its attempts count from zero.

        Raises:
            JobNotFound: There is none with this id.
            JobStateConflict: It has not failed, or it is a node of a flow, which is retried as a whole.
        """
        yield from changes.retry(self._keys, job_id, self._clock.now_ms())

    def revoke(self, job_id: str) -> Op[Revoked]:
        """End a job that does not run yet; ask a running one to stop.

        Returns:
            ``revoked``: it has failed, with that reason. ``flagged``: it is running, and its worker is
            notified; it may still complete.

        Raises:
            JobNotFound: There is none with this id.
            JobStateConflict: It has ended; nothing was changed.
        """
        return removal.revoke(self._keys, job_id, self._clock)

    def remove(self, job_id: str) -> Op[None]:
        """Delete a job with its logs, its output and its place in the queue.

        A job that waited for it waits no longer. Whatever a running attempt sends later is refused.

        Raises:
            JobNotFound: There is none with this id. A repeat raises this.
            JobStateConflict: It is a node of a flow that has not ended: cancel the flow.
        """
        yield from removal.remove(self._keys, job_id, self._clock.now_ms())

    def change_priority(self, job_id: str, priority: int) -> Op[None]:
        """Change the priority of a job that does not run yet, 0 to 2048. Repeatable.

        Raises:
            InvalidJob: The priority is out of bounds; nothing was sent.
            JobNotFound: There is none with this id.
            JobStateConflict: It runs or has ended, or is already in the priority or LIFO list.
        """
        return changes.change_priority(self._keys, job_id, priority)

    def change_delay(self, job_id: str, delay: Duration) -> Op[None]:
        """Let a job that does not run yet start ``delay`` from now; zero: as soon as a worker is free.

        Raises:
            InvalidJob: The delay is negative or too long; nothing was sent.
            JobNotFound: There is none with this id.
            JobStateConflict: It runs or has ended, or is already in the priority or LIFO list.
        """
        span = lasting("delay", delay)
        return self._now(lambda now_ms: changes.change_delay(self._keys, job_id, span, now_ms))

    def promote(self, job_id: str) -> Op[None]:
        """Make a delayed job ready now.

        Raises:
            JobNotFound: There is none with this id.
            JobStateConflict: It is not delayed.
        """
        return changes.promote(self._keys, job_id)

    def add_log(self, job_id: str, line: str) -> Op[None]:
        """Append a line to the log of a job, at most 1 MiB. The log keeps at least its last 10,000 lines.

        Raises:
            JobNotFound: There is none with this id.
            PayloadTooLarge: The line is longer; nothing was sent.
        """
        return output.add_log(self._keys, job_id, line)

    def logs(self, job_id: str, *, offset: int = 0, limit: int = 100) -> Op[JobLogs]:
        """Read log lines, the oldest first; none for a job that does not exist.

        Args:
            job_id: The job.
            offset: How many lines to leave out; -20: all but the last 20. Lines that are gone count as well.
            limit: The most lines.

        Raises:
            ConfigurationError: ``limit`` is negative.
        """
        return output.logs(self._keys, job_id, offset, limit)

    def set_progress(self, job_id: str, progress: JsonLike) -> Op[None]:
        """Store the progress of a job, JSON of at most 1 MiB, and emit an event. Repeatable.

        Raises:
            JobNotFound: There is none with this id.
            EncodeError, PayloadTooLarge: The progress is not valid JSON or too large; nothing was sent.
        """
        yield from changes.update(self._keys, job_id, "progress", progress, self._clock.now_ms())

    def update_data(self, job_id: str, data: JsonLike) -> Op[None]:
        """Replace the data of a job; a running attempt keeps the old data. Repeatable.

        Raises:
            JobNotFound: There is none with this id.
            EncodeError, PayloadTooLarge: The data is not valid JSON or too large; nothing was sent.
        """
        yield from changes.update(self._keys, job_id, "data", data, self._clock.now_ms())

    def report_tokens(self, job_id: str, tokens: int) -> Op[None]:
        """Report how many tokens a job used, for the rate limit by tokens. Repeatable.

        Raises:
            InvalidJob: The number is negative; nothing was sent.
            JobNotFound: There is none with this id.
        """
        yield from changes.report_tokens(self._keys, job_id, tokens, self._clock.now_ms())

    def children_values(self, job_id: str) -> Op[dict[JobRef, Json]]:
        """The results of the completed jobs that a job waits or waited for, in any queue.

        Raises:
            ChildrenFailed: Some have ended without a result: failed, expired, revoked or removed. It has the
                reasons, and the results of the others.
            DecodeError: A result is not valid JSON.
        """
        return job.children_values(self._keys, job_id)

    def parents(self, job_id: str) -> Op[list[JobRef]]:
        """The jobs that wait for a job, in any queue; in a DAG these are its dependents.

        Raises:
            JobNotFound: There is none with this id.
        """
        return job.parents(self._keys, job_id)

    def suspend_info(self, job_id: str) -> Op[SuspendInfo | None]:
        """Why, since when and until when a job is suspended; None if it is not.

        Raises:
            JobNotFound: There is none with this id.
        """
        return changes.suspend_info(self._keys, job_id)

    def signal(self, job_id: str, name: str, data: JsonLike = None) -> Op[bool]:
        """Send a signal to a suspended job, which then runs again and sees it. False if it is not suspended.

        Raises:
            InvalidJob: The name is empty; nothing was sent.
            EncodeError, PayloadTooLarge: The data is not valid JSON or too large; nothing was sent.
        """
        return (yield from changes.signal(self._keys, job_id, name, data, self._clock.now_ms()))

    def add_output(self, job_id: str, fields: Mapping[str, str]) -> Op[str]:
        """Append to the output stream of a job: texts by name, at most 1 MiB. Returns the entry's id.

        Raises:
            JobNotFound: There is none with this id.
            InvalidJob, PayloadTooLarge: The output is not valid or too large; nothing was sent.
        """
        return output.add_output(self._keys, job_id, fields)

    def read_output(
        self, job_id: str, *, after: str | None = None, limit: int = 100, timeout: Duration = 0
    ) -> Op[list[OutputChunk]]:
        """Read the output of a job after an entry (None: from the start).

        Waits at most ``timeout`` for the first entry, to the millisecond; without one it does not wait.
        """
        return output.read_output(
            self._keys, job_id, after, limit, milliseconds(duration("timeout", timeout))
        )

    def messages(self, job_id: str, *, after: str | None = None, limit: int = 1000) -> Op[list[JobMessage]]:
        """Read what the attempts of a job have written by ``ctx.write_message``, the oldest first.

        Args:
            job_id: The job.
            after: Only those after this position, the ``id`` of a message; None: from the start.
            limit: At most so many, 1 to 10,000.

        Raises:
            ConfigurationError: The limit is out of bounds, or ``after`` no position; nothing was sent.
        """
        return output.messages(self._keys, job_id, after, limit)

    def accepted_attempts(self, job_ids: Sequence[str]) -> Op[Mapping[str, AcceptedAttempt]]:
        """The attempts whose results were accepted, by job; only of those that have written messages.

        A job that runs again has none until it has completed again.
        """
        return output.accepted(self._keys, job_ids)
