"""The operations of Queue and AsyncQueue on what jobs write: logs, output and messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from glidemq_orchestrate.clients.operations.combining import merged
from glidemq_orchestrate.clients.operations.queue import QueueOperationsBase
from glidemq_orchestrate.clients.operations.spread import on_all, with_job
from glidemq_orchestrate.foundation.durations import Duration, duration, milliseconds
from glidemq_orchestrate.jobs import output
from glidemq_orchestrate.jobs.job import JobLogs
from glidemq_orchestrate.jobs.output import AcceptedAttempt, JobMessage, OutputChunk
from glidemq_orchestrate.wire.call import Op


class OutputOperations(QueueOperationsBase):
    """Operations on what jobs write."""

    @with_job
    def add_log(self, job_id: str, line: str) -> Op[None]:
        """Append a line to the log of a job, at most 1 MiB. The log keeps at least its last 10,000 lines.

        Raises:
            JobNotFound: No job has this id.
            PayloadTooLarge: The line is longer; nothing was sent.
        """
        return output.add_log(self._keys, job_id, line)

    @with_job
    def logs(self, job_id: str, *, offset: int = 0, limit: int = 100) -> Op[JobLogs]:
        """Read log lines, oldest first; none for a missing job.

        Args:
            job_id: The job.
            offset: The number of lines to skip; -20: all but the last 20. Removed lines count too.
            limit: The max number of lines.

        Raises:
            ConfigurationError: ``limit`` is negative.
        """
        return output.logs(self._keys, job_id, offset, limit)

    @with_job
    def add_output(self, job_id: str, fields: Mapping[str, str]) -> Op[str]:
        """Append an entry to the output of a job: texts by name, at most 1 MiB. Returns the id of the entry.

        Raises:
            JobNotFound: No job has this id.
            InvalidJob, PayloadTooLarge: The output is not valid or too large; nothing was sent.
        """
        return output.add_output(self._keys, job_id, fields)

    @with_job
    def read_output(
        self, job_id: str, *, after: str | None = None, limit: int = 100, timeout: Duration = 0
    ) -> Op[list[OutputChunk]]:
        """Read the output of a job after an entry (None: from the start).

        Waits at most ``timeout`` for the first entry, to the millisecond; 0: does not wait.

        Raises:
            ConfigurationError: ``limit`` is less than 1, or ``timeout`` is not valid; nothing was sent.
        """
        return output.read_output(
            self._keys, job_id, after, limit, milliseconds(duration("timeout", timeout))
        )

    @with_job
    def messages(self, job_id: str, *, after: str | None = None, limit: int = 1000) -> Op[list[JobMessage]]:
        """Read the messages that attempts of a job wrote by ``ctx.write_message``, oldest first.

        Args:
            job_id: The job.
            after: Only messages after this position, the ``id`` of a message; None: from the start.
            limit: The max number of messages, 1 to 10,000.

        Raises:
            ConfigurationError: The limit is out of bounds, or ``after`` is not a position; nothing was sent.
        """
        return output.messages(self._keys, job_id, after, limit)

    @on_all(merged)
    def accepted_attempts(self, job_ids: Sequence[str]) -> Op[Mapping[str, AcceptedAttempt]]:
        """Read the attempts with accepted results, by job; only those that have written messages.

        A rerun job has none until it has completed again.
        """
        return output.accepted(self._keys, job_ids)
