"""GlideMQResource: flows and queues for ops and assets. Keeps no connection between calls."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Final

import dagster as dg
from pydantic import Field

from dagster_glidemq.connection import GlideMQConnection
from dagster_glidemq.durations import ConfigDuration, OptionalConfigDuration, in_seconds
from dagster_glidemq.flow_run import FlowRun, failure_from
from dagster_glidemq.reexecution import StepContext, flow_id_for, reexecution_of
from glidemq_orchestrate import AsyncFlowProducer, AsyncQueue, FlowProducer, FlowSpec, Queue
from glidemq_orchestrate.errors import FlowNotFound, GlideMQError
from glidemq_orchestrate.flows import FlowOutcome
from glidemq_orchestrate.runs import Changes, Decision, Duration, Patience, decide, drive, history_of

FIRST_SECONDS: Final = 5.0


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

    require_workers: bool = Field(
        default=True,
        description=(
            "Fail immediately unless live workers serve every queue and have a handler for every job of the "
            "flow. Turn it off if workers are started on demand: then worker_timeout applies."
        ),
    )
    worker_timeout: OptionalConfigDuration = Field(
        default=600.0,
        description=(
            "How long a flow may wait while no live worker serves a queue, or has the handler of a job, that "
            "it needs now. A warning is logged after 10 seconds; in the end the flow is cancelled, and the "
            "step fails. Waiting behind other jobs of a live worker does not count. Seconds, or a text such "
            "as 10m; None: no limit."
        ),
    )
    lease: OptionalConfigDuration = Field(
        default=3_600.0,
        description=(
            "Cancel the flow of a step that has not renewed its lease for this long: its process was killed, "
            "or its machine was lost. Seconds, or a text such as 1h, from 15s to 7d; None: the flow keeps "
            "running. This never ends a flow that was not begun by a Dagster run."
        ),
    )
    cancel_patience: ConfigDuration = Field(
        default=30.0,
        description=(
            "How long a terminated step tries to cancel its flow while the server is unreachable. After "
            "that, build_glidemq_cancellation_sensor does it, or lease ends it."
        ),
    )

    def get_client(self) -> FlowProducer:
        """A client for flows. Use it in ``with``, which closes its connections afterwards."""
        return FlowProducer(self.settings())

    def get_queue(self, name: str) -> Queue:
        """A client for the jobs of a queue. Use it in ``with``, which closes its connections afterwards.

        Args:
            name: The queue: 1 to 256 characters, none of ``{ } :``.
        """
        return Queue(name, self.settings())

    def get_async_client(self) -> AsyncFlowProducer:
        """``get_client`` for ops and assets that are coroutines. Use it in ``async with``."""
        return AsyncFlowProducer(self.settings())

    def get_async_queue(self, name: str) -> AsyncQueue:
        """``get_queue`` for ops and assets that are coroutines. Use it in ``async with``."""
        return AsyncQueue(name, self.settings())

    def run_flow(  # noqa: PLR0913  keyword-only, with defaults
        self,
        context: StepContext,
        spec: FlowSpec,
        *,
        flow_id: str | None = None,
        timeout: Duration | None = None,
        allow_retries: bool | None = None,
        checks: Iterable[str] = (),
    ) -> FlowOutcome:
        """Run a flow and wait until every node has completed.

        A retry of the step, a re-execution from failure and a run retry continue the flow: they attach to it
        while it runs. Otherwise they run again only the nodes that did not complete, the nodes that have
        changed since then, and their dependents. A re-execution of everything, or of a step that had
        completed, runs the whole flow again: nodes that still run are cancelled, and no old result is reused.
        When the step is terminated, the flow is cancelled, unless a later run has restarted it, or another
        run waits for it too.

        With your own ``flow_id``, the flow may exist already. If another Dagster run has begun it, this call
        waits while it runs, and restarts it if it has ended. If another client has begun it, this call only
        waits for it or returns its results: it never restarts, changes or cancels such a flow, but a
        re-execution repairs it if it has failed.

        Args:
            context: The step that waits.
            spec: The flow. It gets labels with run, job and step: ``dagster_run``, ``dagster_root_run``,
                ``dagster_job``, ``dagster_step``.
            flow_id: The id of the flow; by default derived from run, step and name of the flow.
            timeout: Time after which the flow is cancelled and the step fails; None: no limit.
            allow_retries: Whether the step's retry policy applies to a failure; None: only if the same call
                may succeed later (no server, no worker). The retries of a node are its ``attempts``.
            checks: Nodes whose results are checks, as described for ``JobOptions.must_pass``. A check that
                has completed without passing runs again in a retry or re-execution from failure, with all its
                dependents.

        Raises:
            dagster.Failure: The flow failed or was cancelled, or could not be submitted or watched; the
                metadata has its id and a table of the failed nodes.
        """
        flow_id = flow_id or flow_id_for(context, spec.name)
        for _ in self.stream_flow(
            context, spec, flow_id=flow_id, timeout=timeout, allow_retries=allow_retries, checks=checks
        ):
            pass
        with self._failures(flow_id, allow_retries), self.get_client() as producer:
            return self._patience()(lambda: producer.get(flow_id).outcome())

    def stream_flow(  # noqa: PLR0913  keyword-only, with defaults
        self,
        context: StepContext,
        spec: FlowSpec,
        *,
        flow_id: str | None = None,
        timeout: Duration | None = None,
        allow_retries: bool | None = None,
        checks: Iterable[str] = (),
    ) -> Iterator[Changes]:
        """``run_flow`` as an iterator that yields as nodes end; a failure is raised after the last yield.

        Ending the iteration early cancels the flow.
        """
        flow_id = flow_id or flow_id_for(context, spec.name)
        with self._failures(flow_id, allow_retries), self.get_client() as producer:
            run = FlowRun(
                context=context,
                producer=producer,
                spec=spec,
                flow_id=flow_id,
                lease=_span("lease", self.lease),
                link=self.link(flow_id=flow_id),
                checks=tuple(checks),
                options={
                    "require_workers": self.require_workers,
                    "worker_timeout": _span("worker_timeout", self.worker_timeout),
                    "patience": self._patience_from_start(),
                    "last_patience": Patience(in_seconds("cancel_patience", self.cancel_patience)),
                },
            )
            yield from run.changes(timeout)

    def continued_nodes(self, context: StepContext, flow_name: str, *, flow_id: str) -> set[str]:
        """The nodes of the flow that ``run_flow`` would continue; empty if it would run the whole flow."""
        if not self.continues(context, flow_name, flow_id=flow_id):
            return set()
        with self.get_client() as producer, contextlib.suppress(FlowNotFound):
            return {node.name for node in self._patience()(lambda: producer.get(flow_id).nodes())}
        return set()

    def continues(self, context: StepContext, flow_name: str, *, flow_id: str | None = None) -> bool:
        """Whether ``run_flow`` would continue an existing flow, instead of running the whole flow.

        Args:
            context: The step.
            flow_name: Name of the flow's specification.
            flow_id: As in ``run_flow``.
        """
        reexecution = reexecution_of(context, flow_name)
        with self.get_client() as producer:
            history = drive(history_of(producer, flow_id or reexecution.flow_id, self._patience_from_start()))
        return decide(reexecution, history) in {Decision.REPAIR, Decision.SHARE, Decision.JOIN}

    def _patience(self) -> Patience:
        return Patience(in_seconds("patience", self.patience))

    def _patience_from_start(self) -> Patience:
        """The patience at the start of a step, when there may be no server at all."""
        patience = in_seconds("patience", self.patience)
        return Patience(patience, first=min(patience, FIRST_SECONDS))

    @contextlib.contextmanager
    def _failures(self, flow_id: str, allow_retries: bool | None) -> Iterator[None]:  # noqa: FBT001  three values
        try:
            yield
        except GlideMQError as exc:
            raise failure_from(exc, flow_id, allow_retries=allow_retries) from exc


def _span(name: str, value: OptionalConfigDuration) -> timedelta | None:
    return None if value is None else timedelta(seconds=in_seconds(name, value))
