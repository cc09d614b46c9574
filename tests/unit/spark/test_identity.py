"""Whose a step is, as Spark is told."""

from __future__ import annotations

from typing import Any

import pytest

from glidemq_orchestrate import Context
from glidemq_orchestrate.spark.setup.request import identity_of
from glidemq_orchestrate.worker.handlers.context import Reporter
from glidemq_orchestrate.worker.handlers.named_call import InvalidCall


def context(data: Any, flow_id: str | None = None, node: str | None = None) -> Context:
    return Context("etl", "j-1", "spark.python", 2, data, {}, flow_id, node, Reporter())


def test_spark_is_told_what_the_job_has() -> None:
    assert identity_of("step", context({"user": "Ana"}, "f", "clean")) == {
        "spark.glidemq.queue": "etl", "spark.glidemq.job": "j-1", "spark.glidemq.node": "clean",
        "spark.glidemq.flow": "f", "spark.glidemq.attempt": "2", "spark.glidemq.user": "Ana",
    }  # fmt: skip
    assert set(identity_of("step", context({"user": None}))) == {
        f"spark.glidemq.{part}" for part in ("queue", "job", "attempt")
    }


def test_a_user_that_is_no_name_is_refused(subtests: pytest.Subtests) -> None:
    for user in (5, "a\nb", "x" * 201, ["a"]):
        with subtests.test(user=user), pytest.raises(InvalidCall, match="step: user must be a name"):
            identity_of("step", context({"user": user}))
