"""How a task ends its flow: killed, out of time, or unable to wait. Only what it has begun itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

from airflow_provider_glidemq.attempt import Attempt, is_waited_for_by_later
from airflow_provider_glidemq.exceptions import GlideMQFlowSuperseded, GlideMQFlowTimeout, again
from airflow_provider_glidemq.operators.lineage import LineageTask
from airflow_provider_glidemq.ownership import NotOwned, check_owned
from glidemq_orchestrate import FlowState, Owner
from glidemq_orchestrate.errors import FlowNotFound, GlideMQError, Superseded

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_glidemq.callbacks import Kind
    from glidemq_orchestrate import Flow, FlowProducer, FlowStatus


@dataclass(frozen=True, slots=True)
class Held:
    """The flow that a kill cancels; while it is being submitted its generation is known by the request."""

    flow_id: str
    request: str
    generation: int | None = None


class EndingTask(LineageTask):
    """A task that cancels the flow that it has begun."""

    cancel_on_kill: bool
    _owner: Owner | None = None
    _try: Attempt | None = None

    def _find(self, context: Context, producer: FlowProducer, flow_id: str) -> Flow:
        """The current generation, unless a later try of this task has begun it."""
        raise NotImplementedError

    def _tell(self, kind: Kind, context: Context, status: FlowStatus, failed: Sequence[str] = ()) -> None:
        """Tell the callbacks."""
        raise NotImplementedError

    def _time_out(self, context: Context, flow_id: str) -> NoReturn:
        reason = "the Airflow task's execution_timeout has passed"
        try:
            status = self._cancel_own(context, flow_id, reason) if self.cancel_on_kill else None
        except NotOwned as exc:
            raise GlideMQFlowTimeout(flow_id, f". It goes on: {exc}") from exc
        if status is not None:
            self._tell("end", context, replace(status, state=FlowState.CANCELLED, reason=reason))
        progress = f": {status.completed} of {status.total} nodes had completed" if status else ""
        raise GlideMQFlowTimeout(flow_id, progress, again(flow_id))

    def _cancel_own(self, context: Context, flow_id: str, reason: str) -> FlowStatus | None:
        """Cancel the current generation; returns the status before.

        Raises:
            NotOwned: It does not run for this task.
        """
        with self._ending(flow_id, NotOwned), self._producer() as producer:
            flow = self._find(context, producer, flow_id)
            return self._cancel_generation(flow, flow.generation, reason)

    def _cancel(self, held: Held, reason: str) -> None:
        """Cancel the generation of this try; of one that is being submitted, if it has begun."""
        with self._ending(held.flow_id), self._producer() as producer:
            flow = producer.get(held.flow_id)
            if held.generation is not None:
                self._cancel_generation(flow, held.generation, reason)
            elif flow.status().request == held.request:
                self._cancel_generation(flow, flow.generation, reason)

    def _cancel_generation(self, flow: Flow, generation: int, reason: str) -> FlowStatus:
        """Cancel it, for this task; returns the status before.

        Raises:
            NotOwned: It was begun, or set running again, by somebody else; or a later try of the task waits
                for it: this process was silent for so long that Airflow has given it up.
        """
        status = flow.status()
        if not status.state.is_terminal:
            check_owned(flow.id, "" if self._owner is None else self._owner.name, flow.owners())
            if self._try is not None and is_waited_for_by_later(status, self._try):
                raise NotOwned(f"a later try of this task waits for flow {flow.id}")
        flow.cancel(reason, generation=generation)
        self.log.info("Flow %s was %s and is cancelled: %s", flow.id, status.state.value, reason)
        return status

    @contextlib.contextmanager
    def _ending(self, flow_id: str, *raised: type[Exception]) -> Iterator[None]:
        """Log why a flow was not cancelled, but for what is ``raised``; the task is ending anyway."""
        try:
            yield
        except raised:
            raise
        except FlowNotFound:
            pass
        except (Superseded, GlideMQFlowSuperseded, NotOwned) as exc:
            self.log.info("Flow %s is not cancelled: %s", flow_id, exc)
        except GlideMQError:
            self.log.exception(
                "Flow %s could not be cancelled; cancel it with: glidemq flow cancel %s", flow_id, flow_id
            )
