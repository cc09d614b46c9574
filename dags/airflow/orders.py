"""A night of orders: functions on workers, the same functions as a task group, and steps that fail.

Workers import the functions of this file, so the DAG folder must be on their path and Airflow must be
installed there:

    export PYTHONPATH=dags/airflow
    glidemq worker --app glidemq_orchestrate.python --queue orders --allow-import orders

``orders_functions`` runs each call as a separate job, behind a separate task. ``orders_group`` runs all calls
as one flow, which suits thousands of them, and shows the same tasks. ``orders_troubles`` has a job that
succeeds on its second attempt, a job that is skipped, a job that fails permanently, and a job that takes too
long; the run fails.
"""

from __future__ import annotations

import logging
import random
from datetime import timedelta
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from airflow.sdk import DAG, task
from airflow_provider_glidemq.task_groups.glidemq import GlideMQTaskGroup

logger = logging.getLogger(__name__)

QUEUE = "orders"
REGIONS = ["north", "east", "south", "west"]
DEFAULTS = {"queue_name": QUEUE, "retries": 1, "retry_delay": timedelta(seconds=10)}


@task.glidemq
def load(day: str, region: str) -> dict[str, Any]:
    """The orders of a region; every attempt returns the same."""
    chance = random.Random(f"{day} {region}")  # noqa: S311  made up, and the same each time
    return {"region": region, "amounts": [chance.randint(1, 100) for _ in range(chance.randint(5, 20))]}


@task.glidemq(options={"attempts": 3})
def summed(orders: dict[str, Any]) -> dict[str, Any]:
    """The total value of the orders."""
    return {"region": orders["region"], "total": sum(orders["amounts"])}


@task.glidemq
def report(totals: Any, ctx: Any = None) -> dict[str, int]:
    """The totals by region."""
    ctx.log(f"{len(totals)} regions")
    return {one["region"]: one["total"] for one in totals}


with DAG("orders_functions", schedule=None, catchup=False, default_args=DEFAULTS, doc_md=__doc__):
    loaded = load.partial(day="{{ dag_run.run_after | ds }}").expand(region=REGIONS)
    report(summed.expand(orders=loaded))


with DAG("orders_group", schedule=None, catchup=False, default_args=DEFAULTS, doc_md=__doc__):
    with GlideMQTaskGroup("night", queue_name=QUEUE):
        parts = load.partial(day="{{ dag_run.run_after | ds }}").expand(region=REGIONS)
        whole = report(summed.expand(orders=parts))

    @task
    def largest(totals: Any) -> Any:
        """An ordinary Airflow task, after the group."""
        return max(totals, key=lambda region: totals[region])

    largest(whole)


@task.glidemq(options={"attempts": 2})
def flaky(ctx: Any = None) -> Any:
    """Succeeds on the second attempt, which costs Airflow nothing."""
    if ctx.attempt == 1:
        raise RuntimeError("not the first time")
    return ctx.attempt


@task.glidemq
def holiday() -> None:
    """Skips its task, and the tasks after it."""
    raise AirflowSkipException("nothing is sold today")


@task.glidemq(options={"attempts": 3})
def broken() -> None:
    """Fails permanently: no further attempt."""
    raise AirflowFailException("month 13 does not exist")


@task.glidemq(execution_timeout=timedelta(seconds=20), retries=0)
def slow(ctx: Any = None) -> None:
    """Is cancelled by the timeout of its task."""
    while not ctx.cancelled.wait(0.1):
        pass


def tell(context: Any) -> None:
    """Logs the failed nodes in the log of the task."""
    failure = context["exception"]
    logger.warning("%s failed: %s", failure.flow_id, ", ".join(node.reason for node in failure.failed))


with DAG("orders_troubles", schedule=None, catchup=False, default_args=DEFAULTS, doc_md=__doc__):
    flaky() >> holiday() >> flaky.override(task_id="not_on_a_holiday")()
    broken.override(retries=0, on_failure_callback=tell)()
    slow()
