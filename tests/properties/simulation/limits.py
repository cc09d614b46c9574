"""When deadlines, queue timeouts and retention may end something, and by when they must have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from glidemq_orchestrate.flows.status import FlowStatus, NodeStatus
from glidemq_orchestrate.foundation.durations import milliseconds
from tests.properties.simulation.ledger import ServerLedger
from tests.properties.simulation.plan import Path, Plan
from tests.rule_oracle import EARLY

# Upkeep and supervision come every two seconds, and take turns. Of a portable flow they open gates, see
# a node wait, and end it, in turns of their own.
LATENESS_MS: Final[Mapping[Path, int]] = {"staged": 5_000, "portable": 9_000}
QUEUE_TIMEOUT: Final = "queue timeout: "
DEADLINE: Final = "deadline: "


def in_ms(moment: datetime | None) -> int:
    """A time in ms since the epoch."""
    assert moment is not None
    return round(moment.timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class Limits:
    """Times of a plan, compared with those that the server recorded.

    Attributes:
        plan: What was drawn.
        ledger: When rounds and attempts began.
        disturbed_ms: For how long, at most, faults kept everybody from working.
    """

    plan: Plan
    ledger: ServerLedger
    disturbed_ms: int

    @property
    def lateness(self) -> int:
        """How much later than due something may happen."""
        return LATENESS_MS[self.plan.path] + self.disturbed_ms

    def problems(self, status: FlowStatus, found: Mapping[str, NodeStatus]) -> Iterator[str]:
        """What ended too early, too late, or for a limit that it does not have."""
        yield from self._deadline(status, found)
        for node in found.values():
            yield from self._queue_timeout(node, found)

    @property
    def may_end_differently(self) -> bool:
        """Whether time decides how a node ends, so that a repeat may decide otherwise."""
        spec = self.plan.spec
        limits = [spec.deadline, spec.queue_timeout, *(node.queue_timeout for node in spec.nodes)]
        return any(limit is not None for limit in limits)

    def was_stopped(self, status: FlowStatus) -> bool:
        """Whether the deadline has ended the flow."""
        return status.reason.startswith(DEADLINE)

    def _deadline(self, status: FlowStatus, found: Mapping[str, NodeStatus]) -> Iterator[str]:
        limit = self.plan.spec.deadline
        stopped = [node for node in found.values() if node.reason.startswith(f"cancelled: {DEADLINE}")]
        if limit is None:
            if stopped or self.was_stopped(status):
                yield f"the flow has no deadline, and ended by it: {status.reason}"
            return
        if self.ledger.round not in self.ledger.started:  # cancelled before it began
            return
        due, ended = self.ledger.started[self.ledger.round] + milliseconds(limit), in_ms(status.finished_at)
        if self.was_stopped(status) and (status.state != "failed" or ended < due):
            yield f"the deadline made the flow {status.state}, {due - ended} ms before its time"
        if early := [node.name for node in stopped if in_ms(node.finished_at) < due]:
            yield f"ended before the deadline because of it: {early}"
        if ended > due + self.lateness and not any(what == "extend" for _, what in self.plan.steps):
            yield f"the flow ended {ended - due} ms after its deadline; {self.lateness} ms may be"

    def _queue_timeout(self, node: NodeStatus, found: Mapping[str, NodeStatus]) -> Iterator[str]:
        spec = self.ledger.nodes[node.name]
        is_added = all(node.name != spec.name for node in self.plan.spec.nodes)
        limit = spec.queue_timeout or (None if is_added else self.plan.spec.queue_timeout)
        began = self.ledger.first.get((self.ledger.round, node.name))
        is_late = node.reason.startswith(QUEUE_TIMEOUT)
        if limit is None:
            if is_late:
                yield f"{node.name} has no queue timeout, and ended by it"
            return
        if is_late and began is not None:
            yield f"{node.name} ended by its queue timeout, but an attempt began {began}: {node.reason}"
        start = self.ledger.started.get(self.ledger.round)
        if start is None:
            return
        waits = milliseconds(limit) + milliseconds(spec.options.delay)
        before = [in_ms(found[str(name)].finished_at) for name in spec.after]
        due = (start if spec.rule in EARLY else max([start, *before])) + waits
        if is_late and in_ms(node.finished_at) < due:
            yield f"{node.name} ended {due - in_ms(node.finished_at)} ms before its queue timeout"
        moment = in_ms(node.finished_at) if is_late else began
        due = max([start, *before]) + waits
        if moment is not None and moment > due + self.lateness:
            yield f"{node.name} waited {moment - due} ms longer than its queue timeout"
