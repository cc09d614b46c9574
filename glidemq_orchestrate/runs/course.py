"""The course of an attempt that runs a flow, as steps: begin, follow, end. No orchestrator, no driver.

A kill before the submission leaves nothing behind. After a later kill, the next attempt finds the flow by its
id and continues it. Without a further attempt, the lease of its owner expires, and the flow is cancelled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from glidemq_orchestrate.errors import (
    FlowCancelled,
    FlowFailed,
    FlowNotFound,
    GlideMQError,
    Superseded,
)
from glidemq_orchestrate.flows.owner import Owner
from glidemq_orchestrate.flows.status import FlowState, OnExisting
from glidemq_orchestrate.foundation.durations import Duration, optional_duration
from glidemq_orchestrate.runs.following import (
    ChangeBatch,
    Changes,
    Follower,
    NotOwned,
    Unserved,
    check_owned,
    joining,
)
from glidemq_orchestrate.runs.steps import NO_PATIENCE, Patience, Steps, TaskLog
from glidemq_orchestrate.runs.task_attempt import (
    Beginning,
    Decision,
    Overtaken,
    TaskAttempt,
    beginning,
    is_overtaken,
)

if TYPE_CHECKING:
    from glidemq_orchestrate.flows.spec import FlowSpec
    from glidemq_orchestrate.flows.status import FlowStatus


def _reason(exc: BaseException) -> str:
    return str(exc) if isinstance(exc, GlideMQError) else f"its task has ended: {type(exc).__name__}"


def history_of(producer: Any, flow_id: str, patience: Patience = NO_PATIENCE) -> Steps[Sequence[FlowStatus]]:
    """The status of each generation, oldest first; empty if there is no such flow."""
    try:
        flow = yield from patience.steps(lambda: producer.get(flow_id))
    except FlowNotFound:
        return ()
    try:
        found: Sequence[FlowStatus] = yield from patience.steps(flow.history)
    except FlowNotFound:  # the record of an old generation has just been removed
        return ((yield from patience.steps(flow.status)),)
    return found


def cancel_owned(  # noqa: PLR0913  what is cancelled, for whom, and why
    producer: Any,
    flow_id: str,
    generation: int | None,
    reason: str,
    *,
    owner: str,
    counts: Callable[[str], bool] = lambda _: True,
    attempt: TaskAttempt | None = None,
    patience: Patience = NO_PATIENCE,
) -> Steps[FlowStatus]:
    """Cancel a generation that runs only for this owner; returns its earlier status.

    Args:
        producer: A client.
        flow_id: The flow.
        generation: The generation; None: the current one.
        reason: The reason to store with the flow.
        owner: The name of the owner.
        counts: Whether another owner with this name still counts.
        attempt: The attempt of the task; an abandoned attempt cancels nothing.
        patience: How long the server may be unreachable.

    Raises:
        NotOwned: It belongs to a user, another client, another owner, or a later attempt of the task.
        Superseded: It is no longer the current generation.
        FlowNotFound: There is no such flow.
    """
    flow = yield from patience.steps(lambda: producer.get(flow_id))
    status: FlowStatus = yield from patience.steps(flow.status)
    number = flow.generation if generation is None else generation
    if number == flow.generation and not status.state.is_terminal:
        check_owned(flow_id, owner, (yield from patience.steps(flow.owners)), counts)
        if attempt is not None and attempt.is_replaced_in(status):
            raise NotOwned(f"a later try of this task waits for flow {flow_id}")
    yield from patience.steps(lambda: flow.cancel(reason, generation=number))
    return status


@dataclass(slots=True, kw_only=True)
class RunSteps:
    """The common part of ``OrchestratedRun`` and ``AsyncOrchestratedRun``; see there."""

    attempt: TaskAttempt
    flow_id: str
    owner: Owner | None = None
    on_existing: OnExisting | None = None
    require_workers: bool = True
    worker_timeout: Duration | None = None
    patience: Patience = field(default_factory=lambda: Patience(600, first=5))
    last_patience: Patience = field(default_factory=lambda: Patience(30))
    log: TaskLog = field(default_factory=lambda: logging.getLogger("glidemq_orchestrate.runs"))
    counts: Callable[[str], bool] = lambda _: True
    reason: Callable[[BaseException], str] = _reason
    generation: int | None = field(init=False, default=None)
    begun: Beginning | None = field(init=False, default=None)

    @property
    def is_owned(self) -> bool:
        """Whether the task owns its flow, so that the flow does not outlive the task."""
        return self.owner is not None and (self.begun is None or self.begun.is_own)

    def _owner_in(self, status: FlowStatus | None) -> Owner | None:
        """The task as the owner of a generation; None: it does not own the generation."""
        if self.owner is None or not self.is_owned:
            return None
        is_begun_here = status is None or self.attempt.origin(status) is not None
        return joining(self.owner, is_begun_here=is_begun_here)

    def begin_steps(self, producer: Any, spec: FlowSpec) -> Steps[Any]:
        """Submit the flow, continue it, or begin a generation."""
        history = yield from history_of(producer, self.flow_id, self.patience)
        begun = self.begun = beginning(self.attempt, history, self.on_existing)
        if begun.decision is Decision.YIELD and self.on_existing is None:
            raise Overtaken(self.flow_id)
        owner = self._owner_in(history[-1] if history and not begun.is_new else None)
        flow = yield from self.patience.steps(
            lambda: producer.submit(
                spec,
                flow_id=self.flow_id,
                on_existing=begun.on_existing,
                idempotency_key=begun.request,
                owner=owner,
                require_workers=self.require_workers and begun.needs_workers,
            )
        )
        self.generation = flow.generation
        if begun.repairs:
            yield from self.patience.steps(flow.retry_failed)
        elif begun.decision is not Decision.JOIN and not begun.is_new:
            status = yield from self.patience.steps(flow.status)
            yield from self.note_steps(flow, status, is_shown=False)
        return flow

    def note_steps(self, flow: Any, status: FlowStatus, *, is_shown: bool) -> Steps[None]:
        """Store a note with a generation: this attempt continues it, or has shown it."""
        text = self.attempt.note(status, is_shown=is_shown)
        if text is not None:
            yield from self.patience.steps(lambda: flow.note(text))

    def current_steps(self, producer: Any) -> Steps[Any]:
        """Find the current generation; raise ``Overtaken`` if it belongs to a later run of the task."""
        history = yield from history_of(producer, self.flow_id, self.patience)
        if is_overtaken(self.attempt, map(self.attempt.origin, history)):
            raise Overtaken(self.flow_id)
        owner = self._owner_in(history[-1] if history else None)
        flow = yield from self.patience.steps(lambda: producer.get(self.flow_id, owner=owner))
        self.generation = flow.generation
        return flow

    def cancel_steps(self, producer: Any, reason: str) -> Steps[FlowStatus | None]:
        """Cancel the generation of this attempt, if the attempt owns it."""
        flow_id, generation = self.flow_id, self.generation
        if generation is None:  # a submission without a reply may have begun one
            if self.begun is None:
                return None
            flow = yield from self.last_patience.steps(lambda: producer.get(flow_id))
            status = yield from self.last_patience.steps(flow.status)
            if status.idempotency_key != self.begun.request:
                return None
            generation = flow.generation
        name = "" if self.owner is None or not self.is_owned else self.owner.name
        return (
            yield from cancel_owned(
                producer,
                flow_id,
                generation,
                reason,
                owner=name,
                counts=self.counts,
                attempt=self.attempt,
                patience=self.last_patience,
            )
        )

    def end_steps(self, producer: Any, reason: str) -> Steps[None]:
        """Cancel the flow because its task ends; never fails."""
        try:
            status = yield from self.cancel_steps(producer, reason)
        except FlowNotFound:
            return
        except (Superseded, NotOwned) as exc:
            self.log.info("Flow %s is not cancelled: %s", self.flow_id, exc)
        except GlideMQError as exc:
            self.log.warning("Flow %s could not be cancelled: %s", self.flow_id, exc)
        else:
            if status is not None and not status.state.is_terminal:
                was = status.state.value
                self.log.info("Flow %s was %s and is cancelled: %s", self.flow_id, was, reason)


@dataclass(slots=True)
class Course:
    """The course of a run after its beginning, over all generations.

    Attributes:
        run: The run.
        producer: A client.
        spec: The flow.
        timeout: The max duration; None: no limit.
        on_begin: Called with the flow when it has begun.
        on_poll: Called at least once a second.
        read: Reads results of nodes of a flow.
    """

    run: RunSteps
    producer: Any
    spec: FlowSpec
    timeout: Duration | None
    on_begin: Callable[[Any], Any]
    on_poll: Callable[[], Any]
    read: Callable[[Any, Sequence[str]], Any]
    _flow: Any = None
    _parts: tuple[Follower, Unserved] | None = None
    _last: FlowStatus | None = None

    def advance(self) -> Steps[Changes | None]:
        """The next changes; None when the flow has completed.

        Raises:
            FlowFailed, FlowCancelled, WaitTimeout, WorkersMissing, Overtaken: As ``OrchestratedRun.changes``.
        """
        run = self.run
        if self._parts is None:
            flow = yield from run.begin_steps(self.producer, self.spec)
            yield partial(self.on_begin, flow)
            self._parts = self._follow(flow)
        while self._last is None:
            try:
                found = yield from self._step(*self._parts)
            except Superseded as exc:
                flow = yield from run.current_steps(self.producer)
                run.log.info("%s, which this task waits for now", exc)
                self._parts = self._follow(flow)
            else:
                if found is not None:
                    self._last = found.status if self._parts[0].is_over else None
                    return found
        yield from self._raise_unless_completed(self._last)
        return None

    def close(self) -> Steps[None]:
        """Stop following the flow."""
        if self._parts is not None:
            yield self._parts[0].close

    def _follow(self, flow: Any) -> tuple[Follower, Unserved]:
        run, self._flow = self.run, flow
        timeout = optional_duration("timeout", self.timeout)
        follower = Follower(flow, run.patience, timeout, partial(self.read, flow))
        limit = optional_duration("worker_timeout", run.worker_timeout)
        return follower, Unserved(self.producer, flow, limit=limit, log=run.log, patience=run.patience)

    def _step(self, follower: Follower, unserved: Unserved) -> Steps[Changes | None]:
        batch: ChangeBatch = yield from follower.batch()
        yield self.on_poll
        yield from unserved.check(batch)
        return (yield from follower.changes(batch))

    def _raise_unless_completed(self, status: FlowStatus) -> Steps[None]:
        if status.state is FlowState.CANCELLED:
            raise FlowCancelled(self._flow.id, status.reason)
        if status.state is not FlowState.COMPLETED:
            outcome = yield from self.run.patience.steps(self._flow.outcome)
            raise FlowFailed(self._flow.id, outcome.failed)
