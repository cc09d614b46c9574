"""Groups in DAG files as people have them: default_args of every kind."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator, task
from airflow_provider_glidemq.task_groups import attributes
from airflow_provider_glidemq.task_groups import glidemq as module
from airflow_provider_glidemq.task_groups.attributes import rule_of
from airflow_provider_glidemq.task_groups.glidemq import GlideMQTaskGroup

from glidemq_orchestrate.errors import ConfigurationError
from tests.providers.airflow.task_groups.groups import clean, job, load, outside

NODE = {
    "retries", "retry_delay", "retry_exponential_backoff", "max_retry_delay", "execution_timeout",
    "priority_weight", "pool", "max_active_tis_per_dag", "max_active_tis_per_dagrun", "trigger_rule",
}  # fmt: skip
"""What becomes an option of the node."""
WITHOUT_EFFECT = {
    "ignore_first_depends_on_past", "wait_for_past_depends_before_skipping", "weight_rule", "sla",
    "resources", "logger_name", "allow_nested_operators", "render_template_as_native_obj",
}  # fmt: skip
"""What changes nothing about a task that a worker runs; launch has it from default_args."""
PLACE = {"task_id", "dag", "task_group", "default_args", "params", "kwargs", "self"}


pytestmark = pytest.mark.filterwarnings("ignore:Setting email")


def told(*_: Any) -> None:
    """A callback."""


def built(default_args: dict[str, Any], *, on: str = "dag", **options: Any) -> DAG:
    with DAG("d", schedule=None, default_args=default_args if on == "dag" else {}) as dag:
        first = outside("first")
        own = default_args if on == "group" else {}
        with GlideMQTaskGroup("etl", queue_name="etl", default_args=own, **options):
            first >> load() >> job()
            clean.partial(rows=1).expand(month=[1, 2])
    return dag


def test_every_parameter_of_an_operator_has_its_place() -> None:
    carried, refused = set(module._CARRIED), {name for name, _, _ in attributes._REFUSED}
    known = NODE | carried | refused | WITHOUT_EFFECT | PLACE | set(module._PLAIN)
    assert set(inspect.signature(BaseOperator.__init__).parameters) <= known


REPEATED_TASKS: list[dict[str, Any]] = [
    {"email": ["a@example.com"], "email_on_failure": False, "email_on_retry": False},
    {"email": "a@example.com"},
    {"owner": "ada", "depends_on_past": False, "wait_for_downstream": False, "retries": 2},
    {"retries": 3, "retry_delay": timedelta(minutes=1), "max_retry_delay": timedelta(minutes=30),
     "retry_exponential_backoff": True},
    {"on_execute_callback": told, "on_retry_callback": told, "on_failure_callback": told},
    {"on_retry_callback": [told], "executor": "LocalExecutor", "executor_config": {"a": 1}},
    {"on_success_callback": told, "on_skipped_callback": [told]},
    {"start_date": datetime(2026, 1, 1, tzinfo=UTC), "end_date": datetime(2027, 1, 1, tzinfo=UTC)},
    {"trigger_rule": "all_done"},
    {"trigger_rule": "none_failed", "queue": "celery", "priority_weight": 5, "weight_rule": "absolute"},
    {"execution_timeout": timedelta(hours=1), "max_active_tis_per_dag": 2, "do_xcom_push": False},
    {"params": {"x": 1}, "doc_md": "Text.", "map_index_template": "{{ x }}", "unknown_to_all": 1},
    {"ignore_first_depends_on_past": True, "wait_for_past_depends_before_skipping": True},
]  # fmt: skip


def test_they_are_no_import_error(subtests: pytest.Subtests) -> None:
    for on in ("dag", "group"):
        for default_args in REPEATED_TASKS:
            with subtests.test(on=on, default_args=default_args):
                dag = built(default_args, on=on)
                assert set(dag.task_ids) == {"first", "etl.launch", "etl.load", "etl.job", "etl.clean"}


def test_what_changes_what_a_task_does_is_still_refused() -> None:
    for given in ({"depends_on_past": True}, {"run_as_user": "x"}, {"pool_slots": 2}):
        with pytest.raises(ConfigurationError, match="cannot be carried over"):
            built(given)


def test_a_rule_of_default_args_is_that_of_launch() -> None:
    dag = built({"trigger_rule": "all_done"})
    assert [rule_of(dag.get_task(one)) for one in ("etl.launch", "etl.job")] == ["all_done"] * 2
    nodes: Any = dag.get_task("etl.launch")
    assert [one["rule"] for one in nodes.tasks] == ["all_success", "all_done", "all_success"]


def test_mails_and_callbacks_of_failures_need_a_worker_for_failures() -> None:
    for given, tells in (
        ({"email": "a@example.com"}, True),
        ({"on_failure_callback": told}, True),
        ({"email": "a@example.com", "email_on_failure": False}, False),
        ({}, False),
    ):
        monitor: Any = built(given).get_task("etl.job")
        assert monitor.start_trigger_args.trigger_kwargs["resumes_failed"] is tells
        assert (monitor.email_on_retry, monitor.retries) == (False, 0)


def test_owner_links_of_the_dag_are_there() -> None:
    with DAG("d", schedule=None, owner_links={"ada": "https://example.com"}) as dag:
        outside("first")
        with GlideMQTaskGroup("etl", queue_name="etl", default_args={"owner": "ada"}):
            task(told_by)(1)
    assert "ada" in dag.owner
    assert {dag.get_task(one).owner for one in ("etl.launch", "etl.told_by")} == {"ada"}


def told_by(number: int) -> int:
    """A function of the group."""
    return number
