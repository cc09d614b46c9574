"""Decides what an attempt of a task does with an existing flow. Pure: no server, no orchestrator.

Orchestrators run a task several times: after a retry, a clear or a rerun, and an abandoned process may still
be running. All these attempts use the same flow id. ``decide`` and ``beginning`` choose the action of an
attempt from the status of each generation of that id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, Protocol

from glidemq_orchestrate.errors import Superseded
from glidemq_orchestrate.flows.status import FlowState, FlowStatus, OnExisting


class Overtaken(Superseded):
    """A later run of the task has restarted ``flow_id``. This attempt ends without changing the flow."""

    def __init__(self, flow_id: str) -> None:
        self.flow_id = flow_id
        super().__init__(f"a later run has restarted flow {flow_id}, so this run no longer waits for it")


class Decision(Enum):
    """What an attempt of a task does with the flow of its id."""

    SUBMIT = auto()  # no flow exists
    REPAIR = auto()  # begun by an attempt that this attempt continues: rerun the nodes that did not complete
    RESTART = auto()  # begun by another run of the task: rerun all nodes
    SHARE = auto()  # begun by another task of the same orchestrator: wait for it, as a further owner
    JOIN = auto()  # begun by another client: wait for it without owning it
    YIELD = auto()  # begun by a later run of the task: end without changing it


@dataclass(frozen=True, slots=True)
class Origin:
    """The attempt that began a generation.

    Attributes:
        task: Its task, as ``TaskAttempt.task``.
        detail: A value of the orchestrator for comparison with other attempts.
    """

    task: str
    detail: Any = None


class TaskAttempt(Protocol):
    """The facts that an orchestrator has about an attempt of a task. ``CountedAttempt`` is a simple version.

    The last three methods have defaults, for subclasses of this protocol.
    """

    @property
    def task(self) -> str:
        """The task: the same for all of its attempts."""

    @property
    def request(self) -> str:
        """The idempotency token of this run of the task: a retry keeps it, a clear changes it."""

    @property
    def own_request(self) -> str:
        """The token of this attempt alone."""

    @property
    def is_repeat(self) -> bool:
        """Whether it is not the first attempt of the task."""

    def origin(self, status: FlowStatus) -> Origin | None:
        """The attempt that began a generation; None if it was not of this orchestrator."""

    def is_overtaken_by(self, origin: Origin) -> bool:
        """Whether another attempt of the same task belongs to a later run of the task."""

    def continues(self, origin: Origin, begun: FlowStatus, current: FlowStatus) -> bool:
        """Whether this attempt continues the work of an earlier attempt of the same task.

        Args:
            origin: The earlier attempt.
            begun: The generation that it began.
            current: The last generation, which a user may have begun since.
        """

    def with_others(self, origin: Origin, current: FlowStatus) -> Decision:  # noqa: ARG002
        """What to do with a flow of another task of this orchestrator; by default, join it."""
        return Decision.JOIN

    def note(self, status: FlowStatus, *, is_shown: bool) -> str | None:  # noqa: ARG002
        """The note to store with a generation that this attempt continues or has shown; None: no note.

        Args:
            status: The generation.
            is_shown: Whether the task has succeeded with it.
        """
        return None

    def is_replaced_in(self, status: FlowStatus) -> bool:  # noqa: ARG002
        """Whether a later attempt waits for a generation, so the orchestrator has abandoned this attempt."""
        return False


@dataclass(frozen=True, slots=True)
class Beginning:
    """How an attempt begins.

    Attributes:
        decision: What the attempt does.
        on_existing: The argument of ``submit``.
        request: The idempotency key of ``submit``.
        is_own: Whether the attempt may own the flow, and end it.
        needs_workers: Whether any node must run.
        repairs: Whether to run again afterwards what did not complete.
        last: The existing generation; None: no flow existed.
    """

    decision: Decision
    on_existing: OnExisting
    request: str
    is_own: bool
    needs_workers: bool
    repairs: bool
    last: FlowStatus | None

    @property
    def former(self) -> FlowState | None:
        """The state of the existing flow; None: no flow existed."""
        return None if self.last is None else self.last.state

    @property
    def is_new(self) -> bool:
        """Whether a generation begins: no flow exists, or all nodes run again."""
        return self.former is None or self.on_existing == "restart"


_HOW: Final[dict[Decision, OnExisting]] = {Decision.REPAIR: "retry_failed", Decision.RESTART: "restart"}


def decide(attempt: TaskAttempt, history: Sequence[FlowStatus]) -> Decision:
    """What an attempt does with a flow, from the status of each of its generations, oldest first."""
    if not history:
        return Decision.SUBMIT
    known = [(origin, status) for status in history if (origin := attempt.origin(status))]
    if not known:
        return Decision.JOIN
    origin, status = known[-1]
    if origin.task != attempt.task:
        return attempt.with_others(origin, history[-1])
    if is_overtaken(attempt, (one for one, _ in known)):
        return Decision.YIELD
    return Decision.REPAIR if attempt.continues(origin, status, history[-1]) else Decision.RESTART


def is_overtaken(attempt: TaskAttempt, origins: Iterable[Origin | None]) -> bool:
    """Whether a later run of the task has begun one of these generations."""
    return any(
        origin is not None and origin.task == attempt.task and attempt.is_overtaken_by(origin)
        for origin in origins
    )


def beginning(
    attempt: TaskAttempt, history: Sequence[FlowStatus], on_existing: OnExisting | None = None
) -> Beginning:
    """How an attempt begins; ``on_existing``: what to do with an existing flow, if the user has chosen."""
    decision = decide(attempt, history)
    last = history[-1] if history else None
    former = None if last is None else last.state
    how = on_existing or _HOW.get(decision, "attach")
    if how == "retry_failed" and decision is Decision.RESTART and former is FlowState.COMPLETED:
        how = "restart"  # there is nothing to repair
    request, restarts = attempt.request, how == "restart"
    if restarts and (on_existing or any(one.idempotency_key == request for one in history)):
        request = attempt.own_request
    is_joined = decision in (Decision.JOIN, Decision.SHARE)
    return Beginning(
        decision,
        how,
        request,
        is_own=decision is not Decision.JOIN or restarts,
        needs_workers=restarts or former is not FlowState.COMPLETED,
        repairs=is_joined and on_existing is None and attempt.is_repeat,
        last=last,
    )


def derived_id(prefix: str, *parts: str) -> str:
    """The flow id of a task: ``prefix`` and 33 characters, the same for the same parts.

    Do not pass numbers of attempts: each attempt must find the flow of the previous attempt.
    """
    return f"{prefix}-{hashlib.sha256(chr(0x1F).join(parts).encode()).hexdigest()[:32]}"


@dataclass(frozen=True, slots=True)
class CountedAttempt:
    """An attempt in an orchestrator that counts the runs of a task, and the tries of each run.

    A retry is another try of the same run, and repairs the flow. A clear is another run, and begins a
    generation.

    Attributes:
        orchestrator: Its name, without ``:``.
        task: The task, without ``/``: the same for all runs and tries, such as a ``derived_id``.
        run: The number of the run; each clear increases it.
        number: The number of the try; it never decreases.
    """

    orchestrator: str
    task: str
    run: int
    number: int = 1

    @property
    def request(self) -> str:
        """The token of this run of the task."""
        return f"{self.orchestrator}:{self.task}/{self.run}"

    @property
    def own_request(self) -> str:
        """The token of this try alone."""
        return f"{self.request}/{self.number}"

    @property
    def is_repeat(self) -> bool:
        """Whether it is not the first attempt of the task."""
        return self.number > 1

    def origin(self, status: FlowStatus) -> Origin | None:
        """The attempt that began a generation; its detail is the number of the run."""
        name, _, rest = status.idempotency_key.partition(":")
        task, _, run = rest.partition("/")
        run = run.partition("/")[0]
        return Origin(task, int(run)) if name == self.orchestrator and run.isdecimal() else None

    def is_overtaken_by(self, origin: Origin) -> bool:
        """Whether the other attempt belongs to a later run."""
        return bool(origin.detail > self.run)

    def continues(self, origin: Origin, begun: FlowStatus, current: FlowStatus) -> bool:  # noqa: ARG002
        """Whether both belong to the same run."""
        return bool(origin.detail == self.run)

    def with_others(self, origin: Origin, current: FlowStatus) -> Decision:  # noqa: ARG002
        """Join the flow of another task."""
        return Decision.JOIN

    def note(self, status: FlowStatus, *, is_shown: bool) -> str | None:  # noqa: ARG002
        """The number of the try that waits for a generation."""
        return self.own_request

    def is_replaced_in(self, status: FlowStatus) -> bool:
        """Whether a later try of the same run waits for a generation."""
        number = status.note.removeprefix(f"{self.request}/")
        return number != status.note and number.isdecimal() and int(number) > self.number
