"""Functions of a DAG file that run on glide-mq workers, which import this file."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task

from glidemq_orchestrate import Context

logger = logging.getLogger(__name__)

SOON: dict[str, Any] = {"retries": 1, "retry_delay": timedelta(0)}


@task.glidemq(queue_name="python", defer_after=0, show_logs=True, logging_interval=1, **SOON)
def rows(day: str, month: int, ctx: Context | None = None) -> dict[str, Any]:
    assert ctx is not None
    ctx.log(f"month {month} of {day}")
    logger.info("as any function logs")
    return {"day": day, "month": month, "rows": month * 10}


@task.glidemq(queue_name="python", defer_after=20, **SOON)
def total(months: list[dict[str, Any]]) -> dict[str, int]:
    return {"rows": sum(month["rows"] for month in months), "months": len(months)}


@task.glidemq(queue_name="python", defer_after=20, multiple_outputs=False, **SOON)
def where(count: int) -> list[Any]:
    return [__name__, count]


with DAG("named", schedule=None, catchup=False):
    sums = total(rows.partial(day="{{ run_id }}").expand(month=[1, 2, 3]))  # type: ignore[arg-type]
    where(sums["months"])  # type: ignore[index]
