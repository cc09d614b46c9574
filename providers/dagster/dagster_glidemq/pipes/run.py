"""One run of a flow for one step, from the submission to the last report.

A kill of this process before the submission leaves only an entry in the event log; a kill after it leaves the
running flow. A re-execution from failure attaches to the flow and reads every message from the start, as
nothing here changes or removes messages. Without a re-execution, the flow is cancelled when the lease of the
step expires.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import dagster as dg
from dagster_pipes import PipesExtras

from dagster_glidemq.checks import about
from dagster_glidemq.flow_run import failure_from
from dagster_glidemq.pipes.log import GlideMQMessageReader, shown_before
from dagster_glidemq.pipes.messages import GlideMQContextInjector, scalars_of, stored_context, with_bootstrap
from dagster_glidemq.pipes.reports import Reportable, Reports, ReportsUnusable
from dagster_glidemq.private import reattach_module
from dagster_glidemq.reexecution import StepContext, flow_id_for
from dagster_glidemq.resource import GlideMQResource
from glidemq_orchestrate import Client, FlowProducer, FlowSpec, FlowState, JobState
from glidemq_orchestrate.errors import FlowExpired, FlowNotFound, GlideMQError, JobNotFound, Superseded
from glidemq_orchestrate.runs import Changes, Patience
from glidemq_orchestrate.worker import Supervisor

T = TypeVar("T")

POLL_SECONDS: Final = 0.1
CLIENT_NAME: Final = "PipesGlideMQClient"


class CompletedInvocation(dg.PipesClientCompletedInvocation):
    """The reports of the jobs of a step.

    Args:
        session: The session of the step.
        metadata: Metadata for every result.
        is_whole: Every node has completed. If a node was skipped, assets without a report do not count as
            materialized.
    """

    def __init__(self, session: dg.PipesSession, metadata: Mapping[str, Any], *, is_whole: bool) -> None:
        super().__init__(session, metadata=metadata)
        self._step, self._is_whole = session.context, is_whole

    def get_results(self, *, implicit_materializations: bool = True) -> Sequence[dg.PipesExecutionResult]:
        """The results, for the step to yield or return.

        Args:
            implicit_materializations: Whether selected assets without a report count as materialized, if
                every node has completed.
        """
        results = super().get_results(implicit_materializations=implicit_materializations and self._is_whole)
        if self._step.has_assets_def:
            self._let_skippable_be_missing(results)
        return results

    def _let_skippable_be_missing(self, results: Sequence[dg.PipesExecutionResult]) -> None:
        """Let outputs of skippable assets be missing, although Dagster demands all selected outputs.

        Withdraw that demand if nothing else is missing: there is no public way.
        """
        given = {result.asset_key for result in results if isinstance(result, dg.MaterializeResult)}
        skippable = {spec.key for spec in self._step.assets_def.specs if spec.skippable}
        checks = {(one.asset_key, one.check_name) for one in results if isinstance(one, dg.AssetCheckResult)}
        wanted = {(key.asset_key, key.name) for key in self._step.selected_asset_check_keys}
        step: Any = self._step.get_step_execution_context()
        if self._step.selected_asset_keys - given <= skippable and wanted <= checks:
            step._requires_typed_event_stream = False  # noqa: SLF001


def record_launch(context: StepContext, flow_id: str, url: str, *, continues: bool) -> None:
    """Record the launch of the flow before it is submitted. Repeatable.

    A kill in between leaves an entry for a flow that does not exist and may still be begun, rather than a
    flow without an entry.

    Args:
        context: The step.
        flow_id: The flow.
        url: The dashboard page of the flow; may be empty.
        continues: An earlier run has begun it.
    """
    reattach = reattach_module()
    if reattach is None:
        return
    step: dg.OpExecutionContext = context.op_execution_context
    handle = reattach.find_latest_launch_handle(step, client_name=CLIENT_NAME) if continues else None
    if handle is not None and handle.external_run_id == flow_id:
        reattach.record_external_reattach(step, handle)
    else:
        reattach.record_external_launch(
            step, client_name=CLIENT_NAME, external_run_id=flow_id, external_run_url=url or None
        )


Events = Generator[dg.PipesExecutionResult, None, CompletedInvocation]


@dataclass(frozen=True, slots=True)
class PipesRun:
    """The flow that a step runs, and how.

    Attributes:
        glidemq: The server.
        context: The step.
        spec: The flow; the Pipes parameters are added to its nodes.
        extras: JSON for the handlers.
        given_id: The flow id that the user has given.
        is_single: The flow is one job.
        patience: Retries calls during outages of the server.
        poll_seconds: Time between reads of the logs of running jobs.
        forward_termination: Whether the flow is cancelled when the step is terminated.
        termination_seconds: How long to wait for the end of the flow then.
        options: More arguments for ``stream_flow``.
    """

    glidemq: GlideMQResource
    context: StepContext
    spec: FlowSpec
    extras: PipesExtras | None
    given_id: str | None
    is_single: bool
    patience: Patience
    poll_seconds: float
    forward_termination: bool
    termination_seconds: float
    options: Mapping[str, Any] = field(default_factory=dict)

    def events(self, *, as_they_come: bool, implicit: bool) -> Events:
        """Run the flow; yield results when their nodes have completed, or all at the end.

        Raises:
            dagster.Failure: The flow did not complete, or a report is unusable.
        """
        with self._failures(), contextlib.ExitStack() as stack:
            client = stack.enter_context(Client(self.glidemq.settings()))
            stored, generation = self._former(client)
            # If only workers in Node run, nothing else would notice the end of a node.
            queue_names = sorted({node.queue for node in self.spec.nodes})
            stack.enter_context(Supervisor(self.glidemq.settings(), queues=queue_names).running())
            record_launch(self.context, self._flow_id, self._link, continues=stored is not None)
            # With the context of an asset, Dagster itself would call deprecated functions.
            step: dg.OpExecutionContext = self.context.op_execution_context
            wanted = Reportable.of(step)
            known = None if self.is_single or wanted.selected is None else wanted.assets()
            injector = GlideMQContextInjector(stored, known)
            reader = GlideMQMessageReader(
                client,
                self._flow_id,
                poll_seconds=self.poll_seconds,
                after_generation=generation,
                is_single=self.is_single,
                shown_before=shown_before(step, lambda: self.patience(client.queue(queue_names[0]).now)),
            )
            session = stack.enter_context(dg.open_pipes_session(step, injector, reader, self.extras))
            reports = Reports(client.queue, reader.log, wanted=wanted, patience=self.patience)
            given = 0
            changes = self._changes(with_bootstrap(self.spec, session.get_bootstrap_params()))
            with self._ended(changes, client.flows):
                for change in changes:
                    reports.collect(change)
                    if as_they_come or change.status.state is FlowState.COMPLETED:
                        reports.hand_over()
                    if as_they_come:
                        found = session.get_results(
                            implicit_materializations=False, metadata=self._metadata()
                        )
                        yield from found[given:]
                        given = len(found)
            invocation = self._completed(session, reports)
        if as_they_come:
            yield from invocation.get_results(implicit_materializations=implicit)[given:]
        return invocation

    @property
    def _flow_id(self) -> str:
        return self.given_id or flow_id_for(self.context, self.spec.name)

    @property
    def _link(self) -> str:
        return self.glidemq.link(flow_id=self._flow_id)

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except GlideMQError as exc:
            retries = self.options.get("allow_retries")
            raise failure_from(exc, self._flow_id, allow_retries=retries) from exc
        except ReportsUnusable as exc:
            metadata = {"glidemq/flow_id": self._flow_id, "glidemq/error": type(exc).__name__}
            raise dg.Failure(str(exc), metadata=metadata, allow_retries=False) from exc

    def _former(self, client: Client) -> tuple[Mapping[str, Any] | None, int]:
        """The stored context of the flow that this step continues, and the number of generations to hide."""
        is_ours = self.glidemq.continues(self.context, self.spec.name, flow_id=self.given_id)
        try:
            flow = self.patience(lambda: client.flows.get(self._flow_id))
        except FlowNotFound:
            return None, -1
        if not is_ours:
            return None, flow.generation

        def data(queue_name: str, job_id: str) -> Any:
            with contextlib.suppress(JobNotFound):
                return client.queue(queue_name).get_job(job_id).data

        try:
            stored = self.patience(lambda: stored_context(flow, data))
        except (FlowExpired, Superseded):
            stored = None
        return stored, flow.generation - 1

    def _changes(self, spec: FlowSpec) -> Generator[Changes, None, None]:
        """The changes of the flow; changes at its completion only once nothing can cancel it any more."""
        changes = self.glidemq.stream_flow(self.context, spec, flow_id=self.given_id, **self.options)
        completed = list[Changes]()
        found: Any = changes if self.forward_termination else apart(changes)
        with contextlib.closing(found):
            for change in found:
                if change.status.state is FlowState.COMPLETED:
                    completed.append(change)
                else:
                    yield change
        yield from completed

    @contextlib.contextmanager
    def _ended(self, changes: Generator[Changes, None, None], flows: FlowProducer) -> Iterator[None]:
        """Close the changes, which cancels an unfinished flow; wait for its end after an interrupt."""
        try:
            with contextlib.closing(changes):
                yield
        except dg.DagsterExecutionInterruptedError:
            if self.forward_termination:
                self._await_end(flows)
            raise

    def _await_end(self, flows: FlowProducer) -> None:
        """Wait for the end of a flow that is being cancelled."""
        until = time.monotonic() + self.termination_seconds
        with contextlib.suppress(GlideMQError):
            while not flows.get(self._flow_id).status().state.is_terminal:
                if time.monotonic() > until:
                    self.context.log.warning(
                        "flow %s has not ended within %s s", self._flow_id, self.termination_seconds
                    )
                    return
                time.sleep(POLL_SECONDS)

    def _completed(self, session: dg.PipesSession, reports: Reports) -> CompletedInvocation:
        metadata = self._metadata()
        nodes = list(reports.nodes.values())
        if self.is_single:
            for node in nodes:
                plain = scalars_of(reports.results.get(node.name))
                metadata = {**plain, **about(node), **metadata}
        is_whole = all(node.state is JobState.COMPLETED for node in nodes)
        return CompletedInvocation(session, metadata, is_whole=is_whole)

    def _metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = {"glidemq/flow_id": dg.MetadataValue.text(self._flow_id)}
        if self._link:
            metadata["glidemq/flow"] = dg.MetadataValue.url(self._link)
        return metadata


def apart(items: Iterator[T]) -> Generator[T, None, None]:
    """Iterate in a separate thread, which an interrupt of this one does not reach.

    If the caller stops early, the thread continues, and ends with the process at the latest.
    """
    ready: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            for item in items:
                ready.put((item, None))
        except BaseException as exc:  # noqa: BLE001  raised where it is awaited
            ready.put((None, exc))
        else:
            ready.put((None, StopIteration()))

    threading.Thread(target=work, daemon=True, name="glidemq-flow").start()
    while True:
        try:
            item, error = ready.get(timeout=POLL_SECONDS)
        except queue.Empty:
            continue
        if isinstance(error, StopIteration):
            return
        if error is not None:
            raise error
        yield item  # type: ignore[misc]  # one of both is None
