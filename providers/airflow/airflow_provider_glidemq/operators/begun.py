"""What the log of a task says about the flow that it has begun, or waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_glidemq.exceptions import RESTART_ADVICE
from airflow_provider_glidemq.task_attempt import begun_by
from glidemq_orchestrate import FlowState, runs

if TYPE_CHECKING:
    from glidemq_orchestrate import Flow
    from glidemq_orchestrate.runs import Beginning


def log_begun(log: Any, begun: Beginning | None, flow: Flow, nodes: int) -> None:
    """Log which flow runs, how to watch it, and why nothing or only a part of it may run."""
    if begun is None:
        return
    how, state = begun.on_existing, begun.former
    is_attached = begun.decision is runs.Decision.JOIN and how == "attach" and not begun.repairs
    if is_attached and begun.last is not None and begun.last.state.is_terminal:
        log.warning(
            "Flow %s had ended before (%s), and was begun by %s: nothing runs. If each DAG run is to "
            "run it, put {{ run_id }} into flow_id. on_existing='restart' runs it again",
            flow.id, begun.last.state.value, begun_by(begun.last),
        )  # fmt: skip
    log.info(
        "Flow %s: %d nodes, home queue %s, %s%s. Watch it with: glidemq flow watch %s",
        flow.id, nodes, flow.home, "new" if state is None else f"was {state.value}",
        ", restarted" if how == "restart" and state else "", flow.id,
    )  # fmt: skip
    if how == "retry_failed" and begun.last and state in (FlowState.FAILED, FlowState.CANCELLED):
        log.info(
            "%d of %d nodes had completed: they keep their results, except changed nodes and those after "
            "them. The others run again. %s",
            begun.last.completed, begun.last.total, RESTART_ADVICE.format(flow.id),
        )  # fmt: skip
