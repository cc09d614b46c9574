"""What is known of a cluster before a session is built."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.spark.setup.spark_settings import SparkSettings, require_master, settings_of_file

FILE = """
# a comment
spark.master            spark://m:7077
spark.ui.showConsoleProgress=true
spark.sql.session.timeZone :  Europe/Berlin
  spark.driver.extraJavaOptions  -Da=b -Dc
something.else  1
"""

WRONG_MASTERS: list[str] = ["foo://host:1", "", "locals", "http://host:7077", "k8s://", "local[]"]

OTHER_MASTERS: list[str] = [
    "local",
    "local[2]",
    "local[*,4]",
    "local-cluster[1,1,1024]",
    "yarn",
    "k8s://https://a:1",
]


@pytest.fixture
def conf(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(FILE)
    return {"SPARK_HOME": str(tmp_path)}


def test_the_file_of_spark_is_read_as_spark_reads_it(conf: dict[str, str]) -> None:
    assert settings_of_file(conf) == {
        "spark.master": "spark://m:7077",
        "spark.ui.showConsoleProgress": "true",
        "spark.sql.session.timeZone": "Europe/Berlin",
        "spark.driver.extraJavaOptions": "-Da=b -Dc",
    }
    assert settings_of_file({"SPARK_CONF_DIR": conf["SPARK_HOME"]}) == {}


def test_the_file_decides_unless_the_worker_is_told_otherwise(conf: dict[str, str]) -> None:
    settings = SparkSettings.from_environment(conf)
    given = settings.spark_conf()
    assert given["spark.master"] == "spark://m:7077"
    assert "spark.sql.session.timeZone" not in given
    assert "spark.ui.showConsoleProgress" not in given
    assert given["spark.scheduler.mode"] == "FAIR"
    told = {
        "GLIDEMQ_SPARK_MASTER": "local[2]",
        "GLIDEMQ_SPARK_CONF": '{"spark.ui.showConsoleProgress": false}',
    }
    given = SparkSettings.from_environment(conf | told).spark_conf()
    assert (given["spark.master"], given["spark.ui.showConsoleProgress"]) == ("local[2]", "false")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").mkdir()
    with pytest.raises(ConfigurationError, match=r"spark-defaults.conf cannot be read"):
        settings_of_file({"SPARK_CONF_DIR": str(tmp_path)})


def test_a_master_that_does_not_answer_is_told_after_a_while(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{closed.getsockname()[1]}"
    began = time.monotonic()
    with pytest.raises(ConfigurationError, match=f"no Spark master replies at {master}\\. Fix: start it"):
        require_master(master, patience=0.1)
    assert time.monotonic() - began < 10
    assert "waiting up to 0.1 s" in caplog.text


def test_one_of_several_masters_suffices() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        require_master(f"spark://127.0.0.1:1,127.0.0.1:{server.getsockname()[1]}", patience=5)


def test_what_is_no_master_is_refused(subtests: pytest.Subtests) -> None:
    for master in ("spark://", "spark://host", "spark://host:x", "spark://a:1,b"):
        with (
            subtests.test(master=master),
            pytest.raises(ConfigurationError, match="must be spark://HOST:PORT"),
        ):
            require_master(master)


def test_a_master_of_no_kind_that_spark_has_is_refused(subtests: pytest.Subtests) -> None:
    for master in WRONG_MASTERS:
        with (
            subtests.test(master=master),
            pytest.raises(
                ConfigurationError, match=r"is not a Spark master: it must be local\[\*\], spark://"
            ),
        ):
            require_master(master, patience=0)


def test_other_masters_are_spark_s_affair(subtests: pytest.Subtests) -> None:
    for master in OTHER_MASTERS:
        with subtests.test(master=master):
            require_master(master, patience=0)
