"""What an attempt of a task does with the flow that is there. Pure: no server, no orchestrator.

Orchestrators run a task several times: they retry it, a user clears it or runs all of it again, and a process
that was given up may still be running. All these attempts find the same flow id. ``decide`` and ``beginning``
choose what one of them does, from the status of each generation of that id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, Literal, Protocol

from glidemq_orchestrate.errors import Superseded
from glidemq_orchestrate.flows.status import FlowState, FlowStatus

OnExisting = Literal["attach", "retry_failed", "restart"]


class Overtaken(Superseded):
    """A later run of the task has begun ``flow_id``. This attempt ends, and leaves the flow alone."""

    def __init__(self, flow_id: str) -> None:
        self.flow_id = flow_id
        super().__init__(f"a later run has begun flow {flow_id} again, so this one no longer waits for it")


class Decision(Enum):
    """What an attempt of a task does with the flow of its id."""

    SUBMIT = auto()  # there is none
    REPAIR = auto()  # an attempt that this one continues has begun it: run what did not complete
    RESTART = auto()  # another run of the task has begun it: run all of it
    SHARE = auto()  # another task of the same orchestrator has begun it: wait for it, as an owner too
    JOIN = auto()  # somebody else has begun it: wait for it, and leave it alone
    YIELD = auto()  # a later run of the task has begun it: leave it alone, and end


@dataclass(frozen=True, slots=True)
class Origin:
    """The attempt that began a generation.

    Attributes:
        task: Its task, as ``Attempt.task``.
        detail: What the orchestrator needs to compare it with other attempts.
    """

    task: str
    detail: Any = None


class Attempt(Protocol):
    """An attempt of a task: the facts that an orchestrator has about it. ``CountedAttempt`` is a simple one.

    The last three methods have defaults for classes that name this one as their base.
    """

    @property
    def task(self) -> str:
        """The task: the same for all of its attempts."""

    @property
    def request(self) -> str:
        """The idempotency token of this run of the task: the same for a retry, another for a clear."""

    @property
    def own_request(self) -> str:
        """The token of this attempt alone."""

    @property
    def is_repeat(self) -> bool:
        """Whether it is not the first attempt of the task."""

    def origin(self, status: FlowStatus) -> Origin | None:
        """Who began a generation; None: nobody from this orchestrator."""

    def is_overtaken_by(self, origin: Origin) -> bool:
        """Whether another attempt of the same task belongs to a later run of the task."""

    def continues(self, origin: Origin, begun: FlowStatus, current: FlowStatus) -> bool:
        """Whether this attempt continues what an earlier one of the same task did.

        Args:
            origin: The earlier attempt.
            begun: The generation that it began.
            current: The last generation: another one, if a person has begun it since.
        """

    def with_others(self, origin: Origin, current: FlowStatus) -> Decision:  # noqa: ARG002
        """What to do with a flow that another task of this orchestrator has begun; by default, join it."""
        return Decision.JOIN

    def note(self, status: FlowStatus, *, is_shown: bool) -> str | None:  # noqa: ARG002
        """What to store with a generation that this attempt continues or has shown; None: nothing.

        Args:
            status: The generation.
            is_shown: The task has succeeded with it.
        """
        return None

    def is_replaced_in(self, status: FlowStatus) -> bool:  # noqa: ARG002
        """Whether a later attempt waits for a generation by now, so this one was given up."""
        return False


@dataclass(frozen=True, slots=True)
class Beginning:
    """How an attempt begins.

    Attributes:
        decision: What it does.
        on_existing: The argument of ``submit``.
        request: The idempotency key of ``submit``.
        is_own: Whether the attempt may own the flow, and end it.
        needs_workers: Whether anything has to run.
        repairs: Whether to run again afterwards what did not complete.
        last: The generation that was found; None: there was no flow.
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
        """The state in which the flow was found; None: there was none."""
        return None if self.last is None else self.last.state

    @property
    def is_new(self) -> bool:
        """Whether a generation begins: there is no flow, or all of it runs again."""
        return self.former is None or self.on_existing == "restart"


_HOW: Final[dict[Decision, OnExisting]] = {Decision.REPAIR: "retry_failed", Decision.RESTART: "restart"}


def decide(attempt: Attempt, history: Sequence[FlowStatus]) -> Decision:
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


def is_overtaken(attempt: Attempt, origins: Iterable[Origin | None]) -> bool:
    """Whether a later run of the task has begun one of these generations."""
    return any(
        origin is not None and origin.task == attempt.task and attempt.is_overtaken_by(origin)
        for origin in origins
    )


def beginning(
    attempt: Attempt, history: Sequence[FlowStatus], on_existing: OnExisting | None = None
) -> Beginning:
    """How an attempt begins; ``on_existing``: what the user has chosen to do with any flow that is there."""
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

    Leave numbers of attempts out: each attempt has to find the flow of the one before.
    """
    return f"{prefix}-{hashlib.sha256(chr(0x1F).join(parts).encode()).hexdigest()[:32]}"


@dataclass(frozen=True, slots=True)
class CountedAttempt:
    """An attempt in an orchestrator that counts the runs of a task, and the tries in each of them.

    A retry is another try of the same run, and repairs. A clear is another run, and begins a generation.

    Attributes:
        orchestrator: Its name, without ``:``.
        task: The task, without ``/``: the same for all runs and tries, such as a ``derived_id``.
        run: Grows when the task is cleared.
        number: The try; it never falls.
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
        """Who began a generation; its detail is the number of the run."""
        name, _, rest = status.idempotency_key.partition(":")
        task, _, run = rest.partition("/")
        run = run.partition("/")[0]
        return Origin(task, int(run)) if name == self.orchestrator and run.isdecimal() else None

    def is_overtaken_by(self, origin: Origin) -> bool:
        """Whether the other one belongs to a later run."""
        return bool(origin.detail > self.run)

    def continues(self, origin: Origin, begun: FlowStatus, current: FlowStatus) -> bool:  # noqa: ARG002
        """Whether both belong to the same run."""
        return bool(origin.detail == self.run)

    def with_others(self, origin: Origin, current: FlowStatus) -> Decision:  # noqa: ARG002
        """Wait for it, and leave it alone."""
        return Decision.JOIN

    def note(self, status: FlowStatus, *, is_shown: bool) -> str | None:  # noqa: ARG002
        """The number of the try that waits for a generation."""
        return self.own_request

    def is_replaced_in(self, status: FlowStatus) -> bool:
        """Whether a later try of the same run waits for a generation."""
        number = status.note.removeprefix(f"{self.request}/")
        return number != status.note and number.isdecimal() and int(number) > self.number
