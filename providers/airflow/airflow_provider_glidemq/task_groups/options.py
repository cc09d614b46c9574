"""How a job is run: its own options, and what Airflow's parameters of the task say."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from glidemq_orchestrate import FlowNode, FlowSpec, JobOptions
from glidemq_orchestrate.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow.sdk.types import Operator

MAX_PRIORITY: Final = 2048


def carried_over(operator: Operator, pools: Mapping[str, int]) -> dict[str, Any]:
    """The options of a node that follow from Airflow's parameters, in the form of a flow file.

    Args:
        operator: The task.
        pools: How many jobs of a pool of Airflow run at once.

    Raises:
        ConfigurationError: One of them has no counterpart.
    """
    found: dict[str, Any] = {}
    if retries := operator.retries or 0:
        found["attempts"] = retries + 1
        _check_longest(operator)
        found["backoff"] = _backoff(operator)
    if timeout := operator.execution_timeout:
        found["timeout"] = _text(timeout)
    if operator.priority_weight > 1:
        found["priority"] = max(MAX_PRIORITY + 1 - operator.priority_weight, 1)
    if ordering := _ordering(operator, pools):
        found["ordering"] = ordering
    return found


def _ordering(operator: Operator, pools: Mapping[str, int]) -> dict[str, Any] | None:
    limits: list[dict[str, Any]] = []
    if operator.pool != "default_pool":
        if operator.pool not in pools:
            raise ConfigurationError(
                f"how many of pool {operator.pool} may run at once is in Airflow's database: say it here "
                f"too: GlideMQTaskGroup(..., pools={{{operator.pool!r}: 4}})"
            )
        limits.append(_limit(f"pool {operator.pool}", pools[operator.pool]))
    if operator.max_active_tis_per_dag:
        key = f"task {operator.dag_id} {operator.task_id}"
        limits.append(_limit(key, operator.max_active_tis_per_dag))
    if operator.max_active_tis_per_dagrun:
        key = f"task {operator.dag_id} {operator.task_id} {{{{ run_id }}}}"
        limits.append(_limit(key, operator.max_active_tis_per_dagrun))
    if len(limits) > 1:
        raise ConfigurationError("a job has one limit: a pool, or one max_active_tis_per_dag or _dagrun")
    return limits[0] if limits else None


def _backoff(operator: Operator) -> dict[str, Any]:
    factor = operator.retry_exponential_backoff
    if factor not in (False, True, 0, 1, 2):
        raise ConfigurationError(f"retry_exponential_backoff={factor}: a job's backoff doubles, use 2")
    kind = "exponential" if factor in (True, 2) else "fixed"
    return {"kind": kind, "delay": _text(operator.retry_delay)}


def _check_longest(operator: Operator) -> None:
    """Refuse a limit of the delay that a retry would reach."""
    longest, delay = operator.max_retry_delay, operator.retry_delay
    if longest is None:
        return
    limit = longest if isinstance(longest, timedelta) else timedelta(seconds=longest)
    doublings = (operator.retries or 0) - 1 if operator.retry_exponential_backoff else 0
    if delay.total_seconds() * 2.0 ** min(doublings, 40) > limit.total_seconds():
        raise ConfigurationError(
            f"max_retry_delay={limit} cannot be carried over: a job's backoff has no limit below seven days, "
            f"and the last of {operator.retries} retries would come later"
        )


def _text(duration: timedelta) -> float:
    return duration.total_seconds()


def _limit(key: str, most: int) -> dict[str, Any]:
    return {"key": f"airflow {key}", "concurrency": most}


def options_of(own: Any, carried: Mapping[str, Any]) -> Any:
    """The options of a job: its own, and where it has none, those that follow from Airflow's parameters.

    Its attempts and Airflow's retries multiply, as they do outside of a group.

    Raises:
        ConfigurationError: They cannot be put together.
    """
    if isinstance(own, JobOptions):
        spec = FlowSpec("options", [FlowNode("n", queue="q", job="j", options=own)])
        own = spec.to_dict()["nodes"][0].get("options")
    if own is None:
        return dict(carried)
    if not isinstance(own, Mapping):
        if carried:
            raise ConfigurationError(
                f"options must be a dict or JobOptions where {', '.join(carried)} follow from Airflow's "
                "parameters"
            )
        return own
    attempts = own.get("attempts")
    if attempts is not None and "attempts" in carried:
        if not isinstance(attempts, int):
            raise ConfigurationError("attempts is a template, and retries multiply it: set retries=0")
        return {**carried, **own, "attempts": attempts * carried["attempts"]}
    return {**carried, **own}
