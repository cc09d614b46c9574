"""A night of orders: functions on workers, the same as a task group, and what happens when steps fail.

Workers import the functions of this file, so the folder of DAGs is on their path and
Airflow is installed there:

    export PYTHONPATH=dags/airflow
    glidemq worker --app glidemq_orchestrate.python --queue orders --allow-import orders

``orders_functions`` runs each call as a job of its own, behind a task of its own. ``orders_group`` runs all
of them as one flow, for when there are thousands, and shows the same tasks. ``orders_troubles`` has a job
that succeeds at its second attempt, one that is skipped, one that fails for good and one that takes too long;
it ends as failed.
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
    """The orders of a region; the same in every attempt."""
    chance = random.Random(f"{day} {region}")  # noqa: S311  made up, and the same each time
    return {"region": region, "amounts": [chance.randint(1, 100) for _ in range(chance.randint(5, 20))]}


@task.glidemq(options={"attempts": 3})
def summed(orders: dict[str, Any]) -> dict[str, Any]:
    """What they are worth."""
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
        """A task of Airflow, after the group."""
        return max(totals, key=lambda region: totals[region])

    largest(whole)


@task.glidemq(options={"attempts": 2})
def flaky(ctx: Any = None) -> Any:
    """Succeeds at the second attempt, which costs Airflow nothing."""
    if ctx.attempt == 1:
        raise RuntimeError("not the first time")
    return ctx.attempt


@task.glidemq
def holiday() -> None:
    """Skips its task, and what follows."""
    raise AirflowSkipException("nothing is sold today")


@task.glidemq(options={"attempts": 3})
def broken() -> None:
    """Fails for good: no further attempt."""
    raise AirflowFailException("month 13 does not exist")


@task.glidemq(execution_timeout=timedelta(seconds=20), retries=0)
def slow(ctx: Any = None) -> None:
    """Is cancelled by the time-out of its task."""
    while not ctx.cancelled.wait(0.1):
        pass


def tell(context: Any) -> None:
    """What has failed, in the log of the task."""
    failure = context["exception"]
    logger.warning("%s failed: %s", failure.flow_id, ", ".join(node.reason for node in failure.failed))


with DAG("orders_troubles", schedule=None, catchup=False, default_args=DEFAULTS, doc_md=__doc__):
    flaky() >> holiday() >> flaky.override(task_id="not_on_a_holiday")()
    broken.override(retries=0, on_failure_callback=tell)()
    slow()
