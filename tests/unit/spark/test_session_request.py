"""Which session a step wants, by its payload."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.spark.setup.request import SessionRequest
from glidemq_orchestrate.spark.setup.spark_settings import Limits
from glidemq_orchestrate.worker.handlers.named_call import InvalidCall

WITHOUT_SETTINGS: list[Any] = [None, {}, {"conf": None}, {"conf": {"spark.sql.ansi.enabled": True, "a": 1}}]

SETTINGS_THAT_RUN_CODE: list[str] = [
    "spark.jars.packages",
    "spark.driver.extraJavaOptions",
    "spark.plugins",
    "spark.master",
    "spark.jars",
]

NO_SETTINGS: list[Any] = [[], "x", {"spark.driver.memory": ["1g"]}, {"spark.driver.memory": None}]

WRONG_LIMITS: list[tuple[str, str]] = [
    ("S", "0"),
    ("S", "many"),
    ("_STEPS", "-1"),
    ("_AGE", "old"),
    ("_MEMORY", "6"),
    ("_MEMORY", "big"),
]


def test_without_settings_of_a_session_it_is_the_shared_one(subtests: pytest.Subtests) -> None:
    for data in WITHOUT_SETTINGS:
        with subtests.test(data=data):
            assert SessionRequest.of(data, {}) == SessionRequest()


def test_settings_of_a_session_choose_one_whatever_their_order() -> None:
    one = SessionRequest.of({"conf": {"spark.driver.memory": "4g", "spark.task.cpus": 2}}, {})
    two = SessionRequest.of(
        {"conf": {"spark.task.cpus": "2", "spark.driver.memory": "4g", "spark.sql.x": 1}}, {}
    )
    assert one == two
    assert one.conf == (("spark.driver.memory", "4g"), ("spark.task.cpus", "2"))
    assert SessionRequest.of({"session": "own"}, {}) == SessionRequest(is_own=True)


def test_a_setting_that_may_run_code_needs_leave_of_the_worker(
    subtests: pytest.Subtests,
) -> None:
    for name in SETTINGS_THAT_RUN_CODE:
        with subtests.test(name=name):
            data: Any = {"conf": {name: "x"}}
            with pytest.raises(
                InvalidCall, match=rf"{name}: only the worker sets these.*GLIDEMQ_SPARK_STEP_CONF"
            ):
                SessionRequest.of(data, {"GLIDEMQ_SPARK_STEP_CONF": "spark.ui.port, spark.hadoop.*"})
            assert SessionRequest.of(
                data, {"GLIDEMQ_SPARK_STEP_CONF": f"spark.ui.port, {name[:-1]}*"}
            ).conf == ((name, "x"),)


def test_an_unknown_session_is_refused(subtests: pytest.Subtests) -> None:
    unknown: list[Any] = ["mine", [], {}, 1]
    for session in unknown:
        with (
            subtests.test(session=session),
            pytest.raises(InvalidCall, match='session must be "shared" or "own"'),
        ):
            SessionRequest.of({"session": session}, {})


def test_settings_that_are_none_are_refused_before_a_session_is_chosen(subtests: pytest.Subtests) -> None:
    for conf in NO_SETTINGS:
        with (
            subtests.test(conf=conf),
            pytest.raises(InvalidCall, match="conf must be an object of settings with plain values"),
        ):
            SessionRequest.of({"conf": conf}, {})


def test_limits_come_from_the_environment() -> None:
    assert Limits.from_environment({"GLIDEMQ_SPARK_SESSIONS": ""}) == Limits()
    given = {
        "GLIDEMQ_SPARK_SESSIONS": "4",
        "GLIDEMQ_SPARK_SESSION_STEPS": "100",
        "GLIDEMQ_SPARK_SESSION_AGE": "1h",
        "GLIDEMQ_SPARK_SESSION_MEMORY": "6g",
    }
    assert Limits.from_environment(given) == Limits(4, 100, timedelta(hours=1), 6 * 1024**3)


def test_limits_of_another_form_are_refused(subtests: pytest.Subtests) -> None:
    for name, value in WRONG_LIMITS:
        with (
            subtests.test(name=name),
            pytest.raises(ConfigurationError, match=f"GLIDEMQ_SPARK_SESSION{name} must be"),
        ):
            Limits.from_environment({f"GLIDEMQ_SPARK_SESSION{name}": value})
