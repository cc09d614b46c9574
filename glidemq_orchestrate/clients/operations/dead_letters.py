"""The operations of Queue and AsyncQueue on dead letters."""

from __future__ import annotations

from contextlib import suppress
from typing import Self, TypeVar

from glidemq_orchestrate.attempts import dead_letters as dead_letters_ops
from glidemq_orchestrate.clients.operations.combining import in_rotation, nothing
from glidemq_orchestrate.clients.operations.queue import QueueOperationsBase
from glidemq_orchestrate.clients.operations.spread import (
    Method,
    P,
    T,
    at_member,
    in_pages,
    on_all,
)
from glidemq_orchestrate.errors import JobNotFound
from glidemq_orchestrate.jobs.job import JobId
from glidemq_orchestrate.queues import dead_letters
from glidemq_orchestrate.queues.dead_letters import DeadLetter
from glidemq_orchestrate.wire.call import Op


class _Letters(QueueOperationsBase):
    """Finds dead letters."""

    def of_letter(self, letter_id: str) -> Op[Self]:
        """The member with this dead letter; the queue itself if there is no such letter."""
        members = yield from self._members()
        for one in members:
            with suppress(JobNotFound):
                yield from dead_letters.get(one.keys, letter_id)
                return one
        return members[0] if members else self


L = TypeVar("L", bound=_Letters)


def _with_letter(make: Method[L, P, T]) -> Method[L, P, T]:
    """Run the operation on the member whose job the letter is about."""
    return at_member(make, _Letters.of_letter)


class DeadLetterOperations(_Letters):
    """Operations on dead letters."""

    @on_all(nothing, fresh=True)
    def set_dead_letter_queue(self, name: str | None) -> Op[None]:
        """Set the queue to which workers copy permanently failed jobs; None: no queue. Repeatable.

        While workers of this package serve the queue, this covers every cause of failure: the handler, an
        expired time to live, workers lost to the job. Not covered: nodes that end because of other nodes, and
        jobs revoked before they ran. The job is copied once, within seconds, even if the worker dies.

        Raises:
            ConfigurationError: The name is not valid, or it is this queue; nothing was sent.
        """
        return dead_letters.set_queue(self._keys, name)

    def dead_letter_queue(self) -> Op[str | None]:
        """Read the name of the dead-letter queue; None if none is set."""
        return dead_letters_ops.queue_of(self._keys)

    @in_pages(in_rotation)
    def dead_letters(self, *, offset: int = 0, limit: int = 100) -> Op[list[DeadLetter]]:
        """List the dead letters of this queue, oldest first."""
        return dead_letters.dead_letters(self._keys, offset, limit)

    @_with_letter
    def get_dead_letter(self, letter_id: str) -> Op[DeadLetter]:
        """Read one dead letter.

        Raises:
            JobNotFound: This queue has no dead letter with this id.
        """
        return dead_letters.get(self._keys, letter_id)

    @_with_letter
    def remove_dead_letter(self, letter_id: str) -> Op[None]:
        """Delete a dead letter; the failed job remains.

        Raises:
            JobNotFound: This queue has no dead letter with this id, as after an earlier call.
        """
        yield from dead_letters.remove(self._keys, letter_id, self._clock.now_ms())

    @_with_letter
    def replay_dead_letter(self, letter_id: str) -> Op[JobId]:
        """Rerun the failed job, so that its dependents can continue, and delete the letter.

        Returns:
            The id of the job; a new one if the failed job was removed and had to be added again.

        Raises:
            JobNotFound: This queue has no dead letter with this id.
            JobStateConflict: The job is no longer failed, or it is a node of a flow; the letter remains.
        """
        return (yield from dead_letters.replay(self._keys, letter_id, self._clock.now_ms()))
