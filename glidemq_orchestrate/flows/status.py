"""The status of flows and nodes as users read it: states, outcomes, waits and critical path. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Literal, NewType, Protocol

from glidemq_orchestrate.errors import FailedNode, FlowCancelled, FlowFailed, Superseded
from glidemq_orchestrate.foundation.importing import importing
from glidemq_orchestrate.jobs.states import JobState

FlowId = NewType("FlowId", str)
OnExisting = Literal["attach", "retry_failed", "restart"]
"""What a submission does with a flow that exists under its id."""
SILENT: Final = timedelta(seconds=12)


class FlowState(StrEnum):
    """The state of a flow."""

    STAGING = "staging"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"
    """The stored state is none of these; the flow is marked ``broken``."""

    @property
    def is_terminal(self) -> bool:
        """Whether the flow has ended."""
        return self in (FlowState.COMPLETED, FlowState.FAILED, FlowState.CANCELLED)


BROKEN: Final = (FlowState.FAILED, FlowState.CANCELLED)


@dataclass(frozen=True, slots=True)
class FlowStatus:
    """The state of a flow, read in one call whose cost does not depend on the size of the flow.

    Attributes:
        total: The number of nodes, of which ``completed``, ``failed`` and ``skipped`` have ended. Cancelled
            nodes, and nodes that could not run because a dependency failed, count as failed.
        reason: The first failure that is not ignored, or why the flow was cancelled.
        generation: 0 for the first generation of the flow id.
        broken: Parts of the stored record cannot be read; here they are empty, 0 or ``UNKNOWN``.
        superseded_by: The generation that replaced it, or None.
        idempotency_key: The key of the ``submit`` or ``restart`` that began the generation, or ''.
        times_reopened: How often this generation continued after its end, by a retry or a rerun of nodes.
        note: The last text of ``Flow.note``, or ''.
    """

    id: FlowId
    name: str
    state: FlowState
    home: str
    total: int
    completed: int
    failed: int
    reason: str
    labels: Mapping[str, str]
    created_at: datetime | None
    finished_at: datetime | None
    skipped: int = 0
    generation: int = 0
    broken: bool = False
    superseded_by: int | None = None
    idempotency_key: str = ""
    times_reopened: int = 0
    note: str = ""
    stored_as: str = field(default="", repr=False)

    @property
    def open(self) -> int:
        """The number of nodes that have not ended."""
        return self.total - self.completed - self.failed - self.skipped

    @property
    def queue(self) -> str:
        """The queue of the flow: ``home``, or the queue of which that is a shard."""
        with importing():
            from glidemq_orchestrate.shards import split_shard  # noqa: PLC0415  DAG files do without it

        return split_shard(self.home)[0]


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The state of one node of a flow when it was read.

    Attributes:
        attempts: The number of attempts started since it last started over.
        broken: Its row in the flow or its state cannot be read; such fields are empty or ``UNKNOWN``.
        reruns: How often the node has started over: by a retry, a rerun, or another end set manually.
        worker: The worker of this package that runs it or ran it last, as in ``Queue.workers``; or None.
        renewed_at: When that worker last renewed its lease; None while the node is not active.
        lost_attempts: The number of attempts lost with their workers since the last one that ended. They do
            not count as attempts.
        removed: Its job and result were removed; the state is that of its end.
        ignored: It has failed, and the flow does not fail because of it: its ``on_failure`` is ``ignore``.
    """

    name: str
    queue: str
    job_id: str
    job: str
    after: tuple[str, ...]
    state: JobState
    attempts: int
    reason: str
    progress: Any
    started_at: datetime | None
    finished_at: datetime | None
    broken: bool = False
    reruns: int = 0
    worker: str | None = None
    renewed_at: datetime | None = None
    lost_attempts: int = 0
    removed: bool = False
    ignored: bool = False

    def silent_for(self, now: datetime) -> timedelta | None:
        """The time since the last heartbeat of its worker, if that is too long; otherwise None.

        Another worker will soon run the node. Workers of this package send a heartbeat every second; for
        other workers, and while the node is not active, the result is None.
        """
        if self.renewed_at is None or self.worker is None or now - self.renewed_at < SILENT:
            return None
        return now - self.renewed_at

    @property
    def seconds(self) -> float | None:
        """The duration of the last run; None if it has not ended or the node has not run.

        It counts from the moment when a worker received the job. If the worker then held it back, since after
        a loss suspects run one at a time, the handler ran for less.
        """
        if self.started_at is None or self.finished_at is None or self.finished_at < self.started_at:
            return None
        return (self.finished_at - self.started_at).total_seconds()


@dataclass(frozen=True, slots=True)
class FlowOutcome:
    """How a flow ended.

    Attributes:
        status: The status at the end.
        results: The result of each completed node, by name, in no particular order.
        failed: The failed nodes: causes, then failures that the flow ignores, then consequences.
        removed: The completed nodes of a failed or cancelled flow whose jobs and results were removed.
    """

    status: FlowStatus
    results: Mapping[str, Any]
    failed: Sequence[FailedNode]
    removed: Sequence[str] = ()

    @property
    def state(self) -> FlowState:
        """The state in which the flow ended."""
        return self.status.state


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a node waits.

    Attributes:
        reason: Human-readable.
        until: The latest time when that ends by itself; None if unknown.
        is_turn: Whether it only waits for its turn: workers serve its queue, but other jobs come first, or a
            rate limit delays it.
    """

    reason: str
    until: datetime | None = None
    is_turn: bool = False

    def __str__(self) -> str:
        """Human-readable, in local time: ``until 14:05:30: for its next attempt (attempt 1 of 3 failed)``."""
        if self.until is None:
            return self.reason
        at = self.until.astimezone()
        is_today = at.date() == datetime.now(at.tzinfo).date()
        return f"until {at:{'%H:%M:%S' if is_today else '%Y-%m-%d %H:%M:%S'}}: {self.reason}"


class Timed(Protocol):
    """The status of a node, as far as the critical path depends on it."""

    @property
    def name(self) -> str:
        """Unique in the flow."""

    @property
    def after(self) -> Sequence[str]:
        """Names of its dependencies."""

    @property
    def started_at(self) -> datetime | int | None:
        """When its last run began; for all nodes as a time, or for all in ms."""

    @property
    def finished_at(self) -> datetime | int | None:
        """When it ended."""


def critical_path(nodes: Iterable[Timed]) -> list[str]:
    """The chain of nodes that decided when the flow ended: names from the first to the last.

    The chain ends with the node that ran and ended last or, while nodes run, with the running node that
    started first. Each node is preceded by its dependency that ended last, which it had to wait for; if that
    never ran, as a skipped node, by what that one had to wait for. Ties go to the first in the order of the
    flow, but to the last at the end of the chain. Empty if no node has started.
    """
    known = {node.name: node for node in nodes}
    last = _last(known)
    path: dict[str, None] = {}
    while last is not None and last not in path:
        path[last] = None
        ended = [
            (node.finished_at, name)
            for name in known[last].after
            if (node := known.get(name)) is not None and node.finished_at is not None
        ]
        last = max(ended, key=lambda pair: pair[0])[1] if ended else None
    return [name for name in reversed(path) if known[name].started_at is not None]


def _last(known: Mapping[str, Timed]) -> str | None:
    """The end of the path: the running node that started first, else the node that ended last."""
    running = [
        (node.started_at, name)
        for name, node in known.items()
        if node.started_at is not None and node.finished_at is None
    ]
    if running:
        return min(running, key=lambda pair: pair[0])[1]
    ended = [
        (node.finished_at, name)
        for name, node in known.items()
        if node.started_at is not None and node.finished_at is not None
    ]
    # Times are whole milliseconds: on a tie, the last in the order of the flow, as dependents end later.
    return max(reversed(ended), key=lambda pair: pair[0])[1] if ended else None


def raise_if_superseded(state: FlowStatus) -> None:
    """Refuse to continue with a superseded generation.

    Raises:
        Superseded: Another generation has begun.
    """
    if state.superseded_by is not None:
        raise Superseded(
            f"generation {state.generation} of flow {state.id} was superseded "
            f"by generation {state.superseded_by}"
        )


def raise_unless_completed(ended: FlowOutcome) -> None:
    """Raise the error for a caller that needs the results of a flow that did not complete."""
    state = ended.status
    if state.state is FlowState.FAILED:
        failure = FlowFailed(state.id, ended.failed)
        failure.add_note(
            f"Fix: to rerun what did not complete: flow.retry_failed(), or glidemq flow retry {state.id}. "
            f"With a corrected flow file: glidemq flow submit FILE --id {state.id} --retry-failed. "
            "To rerun all of it: flow.restart(), or glidemq flow restart"
        )
        raise failure
    if state.state is FlowState.CANCELLED:
        raise FlowCancelled(state.id, state.reason)
