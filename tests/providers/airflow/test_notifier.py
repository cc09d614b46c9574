"""A job for each notification."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from airflow_provider_glidemq.notifications.glidemq import GlideMQNotifier, context_data

from glidemq_orchestrate import JobOptions, JobState, Queue
from glidemq_orchestrate.errors import GlideMQError
from tests.providers.airflow.builders import QUEUE, FakeTask

WRONG_ARGUMENTS: list[dict[str, Any]] = [
    {"queue_name": "a:b"},
    {"job": ""},
    {"data": object()},
    {"options": {"atempts": 3}},
    {"options": 3},
    {"once": ""},
    {"once": 3},
]


def jobs(queue: Queue) -> list[tuple[str, Any]]:
    return [(job.name, job.data) for job in queue.get_jobs(JobState.WAITING)]


def failed(**more: Any) -> Any:
    ti = SimpleNamespace(**vars(FakeTask()), state="failed")
    run = SimpleNamespace(dag_id="d", run_id=ti.run_id)
    return {"ti": ti, "dag_run": run, "run_id": ti.run_id, "exception": ValueError("month 13"), **more}


def test_a_failed_task_adds_a_job_that_tells_all_that_is_known(queue: Queue) -> None:
    GlideMQNotifier(queue_name=QUEUE, job="alert")(failed())
    assert jobs(queue) == [
        (
            "alert",
            {
                "dag_id": "d",
                "task_id": "t",
                "run_id": "manual__2026-01-01T00:00:00+00:00",
                "try_number": 1,
                "state": "failed",
                "exception": "ValueError: month 13",
            },
        )
    ]


def test_its_fields_are_templated(queue: Queue) -> None:
    made = GlideMQNotifier(
        queue_name="{{ params.queue }}",
        job="{{ ti.task_id }}-failed",
        data={"run": "{{ run_id }}", "why": ["{{ exception }}"]},
        options={"priority": "{{ ti.try_number }}"},
    )
    made(failed(params={"queue": QUEUE}))
    (found,) = queue.get_jobs(JobState.WAITING) + queue.get_jobs(JobState.PRIORITIZED)
    assert (found.name, found.priority) == ("t-failed", 1)
    assert found.data == {"run": "manual__2026-01-01T00:00:00+00:00", "why": ["month 13"]}


def test_a_notification_that_is_sent_twice_adds_one_job(queue: Queue) -> None:
    for _ in range(2):
        GlideMQNotifier(queue_name=QUEUE, job="alert", once="{{ run_id }}")(failed())
    GlideMQNotifier(queue_name=QUEUE, job="alert", once="{{ run_id }}")(failed(run_id="another"))
    GlideMQNotifier(queue_name=QUEUE, job="alert", options=JobOptions(attempts=2))(failed())
    assert len(jobs(queue)) == 3


async def test_it_may_be_awaited(queue: Queue) -> None:
    """As a triggerer does it, for the alert of a deadline."""
    made = GlideMQNotifier(queue_name=QUEUE, job="late", data="{{ dag_run.run_id }}", once="x")
    for _ in range(2):
        made.context = {"dag_run": {"dag_id": "d", "run_id": "r"}}  # type: ignore[typeddict-item]
        await made.async_notify(made.context)
    assert [name for name, _ in jobs(queue)] == ["late"]


def late(run_id: str) -> Any:
    """What Airflow tells the alert of a deadline: what its API answers about the run, and no more."""
    run = {"dag_id": "d", "dag_run_id": run_id, "logical_date": "2026-01-02T03:00:00Z", "conf": {}}
    return {"dag_run": run, "deadline": {"id": "1", "deadline_time": "2026-01-02T04:00:00Z"}}


@pytest.mark.parametrize("awaited", [True, False])
async def test_the_alert_of_a_deadline_has_the_names_of_all_callbacks(queue: Queue, *, awaited: bool) -> None:
    for run_id in ("r1", "r2", "r2"):
        made = GlideMQNotifier(
            queue_name=QUEUE, job="{{ dag.dag_id }} is late", once="{{ dag.dag_id }} {{ run_id }} {{ ds }}"
        )
        if awaited:
            made.context = late(run_id)
            await made
        else:
            await asyncio.to_thread(made, late(run_id))
    found = await asyncio.to_thread(jobs, queue)
    assert sorted(found, key=str) == [
        ("d is late", {"dag_id": "d", "run_id": "r1"}),
        ("d is late", {"dag_id": "d", "run_id": "r2"}),
    ]


def test_an_empty_rendered_name_makes_no_two_notifications_one(queue: Queue) -> None:
    for _ in range(2):
        GlideMQNotifier(queue_name=QUEUE, job="alert", once="{{ nobody_knows }}")(failed())
    assert len(jobs(queue)) == 2


def test_what_a_dag_and_a_deadline_are_told() -> None:
    dag = SimpleNamespace(dag_id="d")
    assert context_data({"dag": dag, "run_id": "r", "reason": "task_failure"}) == {
        "dag_id": "d",
        "run_id": "r",
        "reason": "task_failure",
    }
    assert context_data({"dag_run": {"dag_id": "d", "run_id": "r", "conf": {}}}) == {
        "dag_id": "d",
        "run_id": "r",
    }
    assert context_data({}) == {}
    assert len(context_data({"exception": "x" * 5000})["exception"]) == 1000


def test_what_cannot_be_right_is_refused_while_the_dag_is_parsed(subtests: pytest.Subtests) -> None:
    for kwargs in WRONG_ARGUMENTS:
        with subtests.test(kwargs=kwargs), pytest.raises((GlideMQError, TypeError)):
            GlideMQNotifier(**{"queue_name": QUEUE, "job": "alert", **kwargs})
