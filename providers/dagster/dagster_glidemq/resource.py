"""GlideMQResource: flows for ops and assets. Keeps no connection between calls."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

import dagster as dg
from pydantic import Field

from dagster_glidemq.errors import failure_from
from dagster_glidemq.identity import Context, flow_id_for, is_retry
from dagster_glidemq.watch import Changes, follow
from glidemq_orchestrate import EventReader, Flow, FlowOutcome, FlowProducer, FlowSpec, FlowState, NodeStatus
from glidemq_orchestrate.errors import FlowCancelled, FlowFailed, FlowNotFound, GlideMQError, WaitTimeout
from glidemq_orchestrate.keys import DEFAULT_PREFIX

LOG_LINES: Final = 25


class GlideMQResource(dg.ConfigurableResource[None]):
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

    url: str = Field(
        repr=False,
        description=(
            "The server: valkey://HOST:PORT/DB or redis://, with TLS valkeys:// or rediss://, or unix:// and "
            'the path of a socket. Use EnvVar("GLIDEMQ_URL") if it has a password.'
        ),
    )
    prefix: str = Field(
        default=DEFAULT_PREFIX, description="First part of every key; workers must use the same one."
    )
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

    @contextlib.contextmanager
    def get_client(self) -> Iterator[FlowProducer]:
        """Lend a client; its connections are closed afterwards."""
        with FlowProducer(self.url, prefix=self.prefix) as producer:
            yield producer

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

        The flow is the same in every re-execution of the run and in every retry of the step: they attach to
        it while it runs, and otherwise run again only what did not complete. When the step is
        terminated, the flow is cancelled.

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
        name = flow_id or flow_id_for(context, spec.name)
        with self._failures(name, allow_retries), self.get_client() as producer:
            try:
                yield from self._watched(context, producer, spec, name, timeout)
            except WaitTimeout:
                _cancel(context, producer, name, f"Dagster: not completed within {timeout}")
                raise
            except GlideMQError:
                raise  # if it still runs, a retry of the step attaches to it
            except BaseException as exc:
                _cancel(
                    context, producer, name, f"Dagster run {context.run.run_id} ended: {type(exc).__name__}"
                )
                raise

    def existing_nodes(self, flow_id: str) -> set[str]:
        """The names of the nodes of a flow that was submitted earlier; empty when there is none."""
        with self.get_client() as producer, contextlib.suppress(FlowNotFound):
            return {node.name for node in producer.get(flow_id).nodes()}
        return set()

    def _watched(
        self,
        context: Context,
        producer: FlowProducer,
        spec: FlowSpec,
        flow_id: str,
        timeout: timedelta | None,
    ) -> Iterator[Changes]:
        flow = self._submit(context, producer, spec, flow_id)
        context.log.info(
            "flow %s (%s) has %s nodes on queue %s", flow.id, spec.name, len(spec.nodes), flow.home
        )
        poll = timedelta(seconds=self.poll_interval_seconds)
        with EventReader(flow.home, self.url, prefix=self.prefix) as reader:
            reader.start()
            for change in follow(flow, reader, poll=poll, timeout=timeout):
                _log(context, change)
                yield change
        _raise_unless_completed(change.status.state, flow)

    def _submit(self, context: Context, producer: FlowProducer, spec: FlowSpec, flow_id: str) -> Flow:
        again = is_retry(context)
        done = False
        if again and self.require_workers:
            with contextlib.suppress(FlowNotFound):
                done = producer.get(flow_id).status().state is FlowState.COMPLETED
        return producer.submit(
            spec,
            flow_id=flow_id,
            on_existing="retry_failed" if again else "attach",
            require_workers=self.require_workers and not done,
        )

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


def _cancel(context: Context, producer: FlowProducer, flow_id: str, reason: str) -> None:
    """Cancel a flow that may not exist; never raises, so that the original error is reported."""
    try:
        producer.get(flow_id).cancel(reason)
    except FlowNotFound:
        return
    except GlideMQError as exc:
        context.log.warning("flow %s could not be cancelled: %s", flow_id, exc)
    else:
        context.log.info("flow %s has been cancelled", flow_id)


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
