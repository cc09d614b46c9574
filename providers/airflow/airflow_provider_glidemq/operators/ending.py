"""How a task ends its flow: killed, timed out, or unable to wait. It ends only flows that it has begun."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from airflow_provider_glidemq.exceptions import GlideMQFlowTimeout, again
from airflow_provider_glidemq.links.glidemq import Linked
from glidemq_orchestrate import FlowState, runs
from glidemq_orchestrate.errors import FlowNotFound, GlideMQError, Superseded

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_glidemq.callbacks import Kind
    from glidemq_orchestrate import FlowProducer, FlowStatus
    from glidemq_orchestrate.runs import OrchestratedRun


class EndingTask(Linked):
    """A task that cancels the flow that it has begun."""

    cancel_on_kill: bool

    def _run_of(self, context: Context) -> OrchestratedRun:
        """The run of the flow in this try."""
        raise NotImplementedError

    def _notify(self, kind: Kind, context: Context, status: FlowStatus, failed: Sequence[str] = ()) -> None:
        """Call the callbacks."""
        raise NotImplementedError

    def _time_out(self, context: Context, flow_id: str) -> NoReturn:
        reason = "the Airflow task's execution_timeout has passed"
        try:
            status = self._cancel_own(self._run_of(context), reason) if self.cancel_on_kill else None
        except runs.NotOwned as exc:
            raise GlideMQFlowTimeout(flow_id, f". It continues: {exc}") from exc
        if status is not None:
            self._notify("end", context, replace(status, state=FlowState.CANCELLED, reason=reason))
        progress = f": {status.completed} of {status.total} nodes had completed" if status else ""
        raise GlideMQFlowTimeout(flow_id, progress, again(flow_id))

    def _cancel_own(self, run: OrchestratedRun, reason: str) -> FlowStatus | None:
        """Cancel the current generation; returns the status before.

        Raises:
            NotOwned: The generation does not run for this task.
        """
        with self._ending(run.flow_id, runs.NotOwned), self._producer() as producer:
            run.current(producer)
            return self._cancelled(run, producer, reason)

    def _cancel_begun(self, run: OrchestratedRun, reason: str) -> None:
        """Cancel the generation of this try, also one that is being submitted."""
        with self._ending(run.flow_id), self._producer() as producer:
            self._cancelled(run, producer, reason)

    def _cancelled(self, run: OrchestratedRun, producer: FlowProducer, reason: str) -> FlowStatus | None:
        status = run.cancel(producer, reason)
        if status is not None:
            was = status.state.value
            self.log.info("Flow %s was %s and is cancelled: %s", run.flow_id, was, reason)
        return status

    @contextlib.contextmanager
    def _ending(self, flow_id: str, *raised: type[Exception]) -> Iterator[None]:
        """Log why a flow was not cancelled, except errors in ``raised``; the task is ending anyway."""
        try:
            yield
        except raised:
            raise
        except FlowNotFound:
            pass
        except (Superseded, runs.NotOwned) as exc:
            self.log.info("Flow %s is not cancelled: %s", flow_id, exc)
        except GlideMQError:
            self.log.exception(
                "Flow %s could not be cancelled; cancel it with: glidemq flow cancel %s", flow_id, flow_id
            )
