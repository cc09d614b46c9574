"""Reads of queues for which there is no public method, as nothing but the page asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from glidemq_orchestrate.clients.facade import AsyncFacade
from glidemq_orchestrate.errors import ProtocolError
from glidemq_orchestrate.jobs import pages
from glidemq_orchestrate.jobs.job_hash import JobField
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.queues import limits, listing
from glidemq_orchestrate.queues.failure_groups import portable_node
from glidemq_orchestrate.queues.ordering import OrderingKeys, ordering_keys
from glidemq_orchestrate.wire.call import Op, ask, ask_all, command
from glidemq_orchestrate.wire.keys import QueueKeys, read_generation
from glidemq_orchestrate.wire.stored import number

MAX_FAILED: Final = 10_000
"""Among so many failed jobs, nodes of flows are looked for."""
_FAILED_FIELDS: Final[tuple[JobField, ...]] = ("state", "gmo:flow", "opts")


@dataclass(frozen=True, slots=True)
class FailedJobs:
    """The failed jobs of a queue.

    Attributes:
        jobs: Those that a retry of the queue runs again.
        nodes: Nodes of flows, which it leaves as they are.
        flows: The ids of these flows.
        total: How many there are, also beyond those that were looked at.
        is_partial: Not all were looked at.
    """

    jobs: int
    nodes: int
    flows: list[str]
    total: int
    is_partial: bool

    @property
    def looked(self) -> int:
        """How many were looked at."""
        return self.jobs + self.nodes


class Reader(AsyncFacade):
    """Reads queues, with connections of its own."""

    async def is_there(self) -> None:
        """Return when the server has answered."""
        await self._run(ask(command("TIME", decode=list)))

    async def ordering_keys(self, queue: str) -> OrderingKeys:
        """The ordering keys of a queue, in a few calls however many there are."""
        return await self._run(self._ordering_keys(queue))

    async def started(self, queue: str) -> int:
        """How many jobs have started in the present window of the rate limit of a queue."""
        return await self._run(self._started(queue))

    async def failed(self, queue: str) -> FailedJobs:
        """The failed jobs of a queue: those that a retry of the queue runs again, and nodes of flows."""
        return await self._run(self._failed(queue))

    def _failed(self, queue: str) -> Op[FailedJobs]:
        members = yield from self._members(queue)
        jobs, nodes, total, flows = 0, 0, 0, dict[str, None]()
        left, is_partial = MAX_FAILED, False
        for keys in members:
            at: int | None = 0
            total += yield from ask(pages.length(keys, "failed"))
            while at is not None and left > 0:
                ids, at = yield from listing.sorted_step(keys, "failed", at, newest_first=False)
                left -= max(len(ids), listing.EMPTY_PAGE)
                for head in (yield from listing.each(pages.heads(keys, ids, _FAILED_FIELDS))):
                    if isinstance(head, ProtocolError) or head[0] != JobState.FAILED:
                        continue
                    flow = head[1] or portable_node(head[2] or "")[0]
                    jobs, nodes = jobs + (not flow), nodes + bool(flow)
                    if flow:
                        flows[read_generation(flow)[0]] = None
            is_partial = is_partial or at is not None
        return FailedJobs(jobs, nodes, list(flows), total, is_partial)

    def _members(self, queue: str) -> Op[Sequence[QueueKeys]]:
        keys = QueueKeys(self._prefix, queue)
        shards = yield from self._known_shards().of_one(keys, self._clock)
        return [keys] if shards is None else shards.members()

    def _ordering_keys(self, queue: str) -> Op[OrderingKeys]:
        members = yield from self._members(queue)
        return (yield from ordering_keys(members, self._clock.now_ms()))

    def _started(self, queue: str) -> Op[int]:
        members = yield from self._members(queue)
        rows = yield from ask_all([limits.rate_window(keys) for keys in members])
        lengths = yield from ask_all([limits.meta(keys, "rateLimitDuration") for keys in members])
        now_ms = self._clock.now_ms()
        return sum(
            number(count)
            for (began, count), (length,) in zip(rows, lengths, strict=True)
            if now_ms - number(began) < number(length)
        )
