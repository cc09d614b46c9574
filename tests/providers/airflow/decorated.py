"""Functions that the tests run on workers."""

from __future__ import annotations

from typing import Any

from airflow.sdk import task

from glidemq_orchestrate import Context


@task.glidemq(queue_name="airflow-tests", deferrable=False, retries=3)
def clean(month: int, *, scale: int = 1, ctx: Context | None = None) -> int:
    """Clean one month."""
    assert ctx is not None
    ctx.log(f"month {month} of {ctx.flow_id}")
    return month * scale


@task.glidemq(queue_name="airflow-tests", deferrable=False)
def count(names: list[str]) -> dict[str, Any]:
    return {"rows": len(names), "names": names}


@task.glidemq(queue_name="airflow-tests", deferrable=False, multiple_outputs=False)
def same(value: Any) -> Any:
    return value


@task.glidemq(queue_name="airflow-tests", deferrable=False)
def skips() -> None:
    from airflow_provider_glidemq.version_compat import AirflowSkipException  # noqa: PLC0415  as users do

    raise AirflowSkipException("nothing to do")


@task.glidemq(queue_name="airflow-tests", deferrable=False)
async def later(month: int) -> int:
    return month + 1


@task.glidemq(queue_name="airflow-tests", deferrable=False)
def dated(ds: str) -> str:
    return ds


@task.glidemq_spark(queue_name="airflow-tests", deferrable=False, require_workers=False)
def step(spark: Any, ctx: Context, month: int, *, scale: int = 1) -> int:
    return month * scale


def plain(month: int) -> int:
    return month * 10
