"""GlideMQResource: flows for ops and assets. Keeps no connection between calls."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

import dagster as dg
from pydantic import Field

from dagster_glidemq.connection import GlideMQConnection
from dagster_glidemq.errors import failure_from
from dagster_glidemq.identity import Context, flow_id_for, is_retry
from dagster_glidemq.lineage import Decision, Lineage, decide, lineage_of
from dagster_glidemq.watch import Changes, follow
from glidemq_orchestrate import (
    AsyncFlowProducer,
    AsyncQueue,
    EventReader,
    Flow,
    FlowOutcome,
    FlowProducer,
    FlowSpec,
    FlowState,
    FlowStatus,
    NodeStatus,
    Owner,
    Queue,
)
from glidemq_orchestrate.errors import (
    FlowCancelled,
    FlowFailed,
    FlowNotFound,
    GlideMQError,
    Superseded,
    WaitTimeout,
)

LOG_LINES: Final = 25
MOST_OF_A_NAME: Final = 256
OnExisting = Literal["attach", "retry_failed", "restart"]


@dataclass(slots=True)
class _Held:
    """The flow that ends with its step; while it is being submitted the request tells its generation."""

    flow_id: str
    lineage: Lineage
    generation: int | None = None
    owner: Owner | None = None


class GlideMQResource(GlideMQConnection, dg.ConfigurableResource[None]):
    """A server on which ops and assets run flows.

    Example:
        .. code-block:: python

            @dg.op
            def nightly(context: dg.OpExecutionContext, glidemq: GlideMQResource) -> int:
                outcome = glidemq.run_flow(context, FlowSpec("nightly", nodes=[...]))
                return outcome.results["report"]["rows"]

            defs = dg.Definitions(
                jobs=[...], resources={"glidemq": GlideMQResource(url=dg.EnvVar("GLIDEMQ_URL"))}
            )
    """

    poll_interval_seconds: float = Field(
        default=1.0,
        gt=0,
        description="Longest time between two reads of a running flow; its events cause earlier ones.",
    )
    require_workers: bool = Field(
        default=True,
        description=(
            "Fail immediately unless live workers serve every queue and have a handler for every job of the "
            "flow. Turn it off where workers are started on demand."
        ),
    )

    lapse_seconds: float | None = Field(
        default=3_600.0,
        ge=15,
        le=604_800,
        description=(
            "Cancel the flow of a step of which nothing was heard for so long: its process was killed, or "
            "its machine lost. None: let it run on. One that somebody else has begun is never ended so."
        ),
    )

    @contextlib.contextmanager
    def get_client(self) -> Iterator[FlowProducer]:
        """Lend a client for flows; its connections are closed afterwards."""
        with FlowProducer(self.settings()) as producer:
            yield producer

    @contextlib.contextmanager
    def get_queue(self, name: str) -> Iterator[Queue]:
        """Lend a client for the jobs of a queue; its connections are closed afterwards.

        Args:
            name: The queue: 1 to 256 characters, none of ``{ } :``.
        """
        with Queue(name, self.settings()) as queue:
            yield queue

    @contextlib.asynccontextmanager
    async def get_async_client(self) -> AsyncIterator[AsyncFlowProducer]:
        """``get_client`` for ops and assets that are coroutines."""
        async with AsyncFlowProducer(self.settings()) as producer:
            yield producer

    @contextlib.asynccontextmanager
    async def get_async_queue(self, name: str) -> AsyncIterator[AsyncQueue]:
        """``get_queue`` for ops and assets that are coroutines."""
        async with AsyncQueue(name, self.settings()) as queue:
            yield queue

    def run_flow(
        self,
        context: Context,
        spec: FlowSpec,
        *,
        flow_id: str | None = None,
        timeout: timedelta | None = None,
        allow_retries: bool | None = None,
    ) -> FlowOutcome:
        """Run a flow and wait until every node has completed.

        A retry of the step, a re-execution from failure and a run retry go on with the flow: they attach to
        it while it runs, and otherwise run again only what did not complete, what was changed since, and what
        follows. A re-execution of everything, or of a step that had completed, runs all of it anew: what
        still runs is cancelled, and no old result is seen. When the step is terminated, the flow is
        cancelled, unless a later run has begun it anew. A flow that another run or client has begun under
        a ``flow_id`` of yours is joined: never run anew nor changed.

        Args:
            context: The step that waits.
            spec: The flow.
            flow_id: The id of the flow; by default derived from run, step and name of the flow.
            timeout: Time after which the flow is cancelled and the step fails; None: no limit.
            allow_retries: Whether the step's retry policy applies to a failure; None: only when the
                same call may succeed later (no server, no worker). A node's own retries are its
                ``attempts``.

        Raises:
            dagster.Failure: The flow failed or was cancelled, or could not be submitted or watched; the
                metadata has its id and a table of the failed nodes.
        """
        flow = None
        for change in self.stream_flow(
            context, spec, flow_id=flow_id, timeout=timeout, allow_retries=allow_retries
        ):
            flow = change.status.id
        with self._failures(flow or spec.name, allow_retries), self.get_client() as producer:
            return producer.get(str(flow)).outcome()

    def stream_flow(
        self,
        context: Context,
        spec: FlowSpec,
        *,
        flow_id: str | None = None,
        timeout: timedelta | None = None,
        allow_retries: bool | None = None,
    ) -> Iterator[Changes]:
        """``run_flow`` that yields as nodes end; the failure is raised after the last yield.

        Ending the iteration early cancels the flow.
        """
        held = _Held(flow_id or flow_id_for(context, spec.name), lineage_of(context, spec.name))
        with self._failures(held.flow_id, allow_retries), self.get_client() as producer:
            try:
                yield from self._watched(context, producer, spec, held, timeout)
            except WaitTimeout:
                _cancel(context, producer, held, f"Dagster: not completed within {timeout}")
                raise
            except GlideMQError:
                raise  # if it still runs, a retry of the step attaches to it
            except BaseException as exc:
                reason = f"Dagster run {context.run.run_id} ended: {type(exc).__name__}"
                _cancel(context, producer, held, reason)
                raise

    def existing_nodes(self, flow_id: str) -> set[str]:
        """The names of the nodes of a flow that was submitted earlier; empty when there is none."""
        with self.get_client() as producer, contextlib.suppress(FlowNotFound):
            return {node.name for node in producer.get(flow_id).nodes()}
        return set()

    def goes_on(self, context: Context, flow_name: str, *, flow_id: str | None = None) -> bool:
        """Whether ``run_flow`` would go on with a flow that exists, instead of running all of it.

        Args:
            context: The step.
            flow_name: Name of the flow's specification.
            flow_id: As in ``run_flow``.
        """
        lineage = lineage_of(context, flow_name)
        with self.get_client() as producer:
            history = _history(producer, flow_id or lineage.flow_id)
        return decide(lineage, history, context.instance) in {Decision.REPAIR, Decision.JOIN}

    def _watched(
        self,
        context: Context,
        producer: FlowProducer,
        spec: FlowSpec,
        held: _Held,
        timeout: timedelta | None,
    ) -> Iterator[Changes]:
        deadline = None if timeout is None else time.monotonic() + timeout.total_seconds()
        flow = self._submit(context, producer, spec, held)
        context.log.info(
            "flow %s (%s) has %s nodes on queue %s", flow.id, spec.name, len(spec.nodes), flow.home
        )
        while True:
            held.generation = flow.generation
            left = None if deadline is None else timedelta(seconds=max(deadline - time.monotonic(), 0))
            try:
                yield from self._changes(context, flow, held.owner, left)
            except Superseded as exc:
                flow = _next(context, producer, held, exc)
            else:
                return

    def _changes(
        self, context: Context, flow: Flow, owner: Owner | None, timeout: timedelta | None
    ) -> Iterator[Changes]:
        """Follow one generation of a flow.

        Raises:
            FlowFailed, FlowCancelled: It ended so.
            Superseded: Another generation has begun.
        """
        poll = timedelta(seconds=self.poll_interval_seconds)
        with EventReader(flow.home, self.settings()) as reader:
            reader.start()
            lapse = None if owner is None else owner.lapse
            for change in follow(flow, reader, poll=poll, timeout=timeout, lapse=lapse):
                _log(context, change)
                yield change
        _raise_unless_completed(change.status.state, flow)

    def _submit(self, context: Context, producer: FlowProducer, spec: FlowSpec, held: _Held) -> Flow:
        """Submit the flow, go on with it, or begin it anew."""
        history = _history(producer, held.flow_id)
        decision = decide(held.lineage, history, context.instance)
        if decision is Decision.YIELD:
            raise _superseded(held)
        held.owner = None if decision is Decision.JOIN else self._owner(context)
        done = bool(history) and history[-1].state is FlowState.COMPLETED
        if decision is Decision.RESTART:
            context.log.info("flow %s was %s and begins anew", held.flow_id, history[-1].state.value)
        flow = producer.submit(
            spec,
            flow_id=held.flow_id,
            on_existing=_HOW.get(decision, "attach"),
            request=held.lineage.request,
            owner=held.owner,
            require_workers=self.require_workers and (decision is Decision.RESTART or not done),
        )
        held.generation = flow.generation
        if decision is Decision.JOIN and is_retry(context):
            flow.retry_failed()
        return flow

    def _owner(self, context: Context) -> Owner | None:
        """The step as the owner of its flow."""
        if self.lapse_seconds is None:
            return None
        key = context.op_execution_context.get_step_execution_context().step.key
        name = f"Dagster run {context.run.run_id}, step {key}"
        return Owner(name[:MOST_OF_A_NAME], timedelta(seconds=self.lapse_seconds))

    @contextlib.contextmanager
    def _failures(self, flow_id: str, allow_retries: bool | None) -> Iterator[None]:  # noqa: FBT001  three values
        try:
            yield
        except GlideMQError as exc:
            raise failure_from(exc, flow_id, allow_retries=allow_retries) from exc


def _raise_unless_completed(state: FlowState, flow: Flow) -> None:
    if state is not FlowState.COMPLETED:
        outcome = flow.outcome()
        if state is FlowState.CANCELLED:
            raise FlowCancelled(flow.id, outcome.status.reason)
        raise FlowFailed(flow.id, outcome.failed)


_HOW: Final[dict[Decision, OnExisting]] = {Decision.REPAIR: "retry_failed", Decision.RESTART: "restart"}


def _history(producer: FlowProducer, flow_id: str) -> Sequence[FlowStatus]:
    """The status of each generation, oldest first; nothing if there is no such flow."""
    try:
        flow = producer.get(flow_id)
    except FlowNotFound:
        return []
    try:
        return flow.history()
    except FlowNotFound:  # the record of an old one was removed at this moment
        return [flow.status()]


def _next(context: Context, producer: FlowProducer, held: _Held, exc: Superseded) -> Flow:
    """The generation that took the place of the one that the step waited for, unless a later run began it.

    Raises:
        Superseded: A later run of the chain did.
    """
    flow = producer.get(held.flow_id, owner=held.owner)
    if decide(held.lineage, _history(producer, held.flow_id), context.instance) is Decision.YIELD:
        raise _superseded(held) from exc
    context.log.info("%s, which this step waits for now", exc)
    return flow


def _superseded(held: _Held) -> Superseded:
    return Superseded(f"a later run has begun flow {held.flow_id} anew, so this one no longer waits for it")


def _cancel(context: Context, producer: FlowProducer, held: _Held, reason: str) -> None:
    """Cancel the generation of this step, if there is one; never raises: the original error counts."""
    try:
        flow = producer.get(held.flow_id)
        generation = held.generation
        if generation is None and flow.status().request == held.lineage.request:  # it was being submitted
            generation = flow.generation
        if generation is None:
            return
        flow.cancel(reason, generation=generation)
    except FlowNotFound:
        return
    except Superseded as exc:
        context.log.info("flow %s is not cancelled: %s", held.flow_id, exc)
    except GlideMQError as exc:
        context.log.warning("flow %s could not be cancelled: %s", held.flow_id, exc)
    else:
        context.log.info("flow %s has been cancelled", held.flow_id)


def _log(context: Context, change: Changes) -> None:
    """Log a line for each node that ended; a single one when there are many."""
    status = change.status
    counted = f"{status.completed} of {status.total} completed"
    failed = [node for node in change.ended if node.state != "completed"]
    completed = [node for node in change.ended if node.state == "completed"]
    for node in failed[:LOG_LINES]:
        context.log.error("node %s failed: %s", node.name, node.reason)
    if len(completed) <= LOG_LINES:
        for node in completed:
            context.log.info("node %s completed%s (%s)", node.name, _duration(node), counted)
    else:
        context.log.info("%s nodes completed (%s)", len(completed), counted)
    if len(failed) > LOG_LINES:
        context.log.error("%s more nodes failed", len(failed) - LOG_LINES)


def _duration(node: NodeStatus) -> str:
    return "" if node.seconds is None else f" in {node.seconds:.2f} s"
