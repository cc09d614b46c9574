"""What ``spark-submit`` is told of a program: its settings, with the tag where a cluster keeps it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from glidemq_orchestrate.spark.submit.application import Application
from glidemq_orchestrate.worker.handlers.context import Context

APPLICATION = Application("application a", "/opt/jobs/a.py", "", ("--day", "1"), ("/opt/jobs/b.zip",), {})
CTX = Context("etl", "7", "spark.submit", 1, {"user": "ana"}, {}, None, None)


def settings(master: str, more: Mapping[str, str] = {}) -> Mapping[str, str]:
    return APPLICATION.settings(CTX, {"spark.master": master, **more}, "glidemq-0a1")


def test_yarn_keeps_the_tag_beside_those_of_the_user(subtests: pytest.Subtests) -> None:
    for master in ("yarn", "yarn-client"):
        with subtests.test(master=master):
            assert settings(master)["spark.yarn.tags"] == "glidemq-0a1"
            assert (
                settings(master, {"spark.yarn.tags": "nightly,b"})["spark.yarn.tags"]
                == "nightly,b,glidemq-0a1"
            )


def test_kubernetes_has_it_as_a_label() -> None:
    found = settings("k8s://https://cluster:6443")
    assert found["spark.kubernetes.executor.label.glidemq-tag"] == "glidemq-0a1"
    assert "spark.yarn.tags" not in found


def test_others_know_it_by_the_name_and_the_identity(subtests: pytest.Subtests) -> None:
    for master in ("local[2]", "spark://host:7077"):
        with subtests.test(master=master):
            found = settings(master, {"spark.ui.port": "4040"})
            assert not [name for name in found if "yarn" in name or "kubernetes" in name]
            assert found["spark.app.name"] == "etl: a.py (7)"
            assert found["spark.ui.port"] == "4040", "what users set counts"
            assert (found["spark.glidemq.queue"], found["spark.glidemq.user"]) == ("etl", "ana")


def test_a_driver_runs_beside_its_worker_whatever_a_cluster_prefers() -> None:
    found = settings("yarn", {"spark.submit.deployMode": "cluster"})
    assert found["spark.submit.deployMode"] == "client"


def test_arguments_come_after_the_program() -> None:
    assert APPLICATION.arguments() == ["--py-files", "/opt/jobs/b.zip", "/opt/jobs/a.py", "--day", "1"]


def test_a_digest_tells_programs_and_settings_apart() -> None:
    other = Application("application a", "/opt/jobs/a.py", "", ("--day", "2"), ("/opt/jobs/b.zip",), {})
    found = {one.digest({"a": value}) for one in (APPLICATION, other) for value in ("1", "2")}
    assert len(found) == 4
    assert APPLICATION.digest({"a": "1", "b": "2"}) == APPLICATION.digest({"b": "2", "a": "1"})
