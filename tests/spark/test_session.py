from __future__ import annotations

import atexit
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from pyspark import SparkContext

from glidemq_orchestrate.errors import ConfigurationError, JavaMissing
from glidemq_orchestrate.spark.sessions import warm as session
from glidemq_orchestrate.spark.sessions.warm import is_alive, warm_session
from glidemq_orchestrate.spark.setup.jvm import require_java
from glidemq_orchestrate.spark.setup.spark_settings import CONF_VARIABLE, SparkSettings
from tests.processes import GONE, runs
from tests.spark.conftest import MASTER

if TYPE_CHECKING:
    from tests.conftest import Eventually


def test_importing_the_package_does_not_import_pyspark() -> None:
    code = (
        "import sys, glidemq_orchestrate.spark, glidemq_orchestrate.spark.flights.flow; "
        "print('pyspark' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=_root()
    )
    assert done.stdout.strip() == "False"


def test_settings_come_from_the_environment_and_win_over_the_defaults() -> None:
    settings = SparkSettings.from_environment(
        {
            "GLIDEMQ_SPARK_MASTER": "local[3]",
            "GLIDEMQ_SPARK_CONF": '{"spark.ui.enabled": true, "spark.task.cpus": 1}',
        }
    )
    conf = settings.spark_conf()
    assert conf["spark.master"] == "local[3]"
    assert conf["spark.ui.enabled"] == "true"
    assert conf["spark.task.cpus"] == "1"
    assert conf["spark.scheduler.mode"] == "FAIR"


def test_the_default_is_all_cores_with_utc_and_a_ui_on_any_port() -> None:
    conf = SparkSettings.from_environment({"GLIDEMQ_SPARK_MASTER": ""}).spark_conf()
    assert conf["spark.master"] == "local[*]"
    assert conf["spark.sql.session.timeZone"] == "UTC"
    assert "spark.ui.enabled" not in conf
    assert conf["spark.ui.port"] == "0"


def test_a_conf_that_is_not_an_object_of_plain_values_is_refused(subtests: pytest.Subtests) -> None:
    for conf in ("{", "[1]", '"text"', '{"spark.a": {"b": 1}}', '{"spark.a": null}'):
        with subtests.test(conf=conf), pytest.raises(ConfigurationError, match="GLIDEMQ_SPARK_CONF"):
            SparkSettings.from_environment({"GLIDEMQ_SPARK_CONF": conf})


def test_java_is_found_in_this_environment() -> None:
    assert require_java() >= 17


def test_without_java_the_error_shows_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing, match="none was found: install a Java runtime of version 17"):
        require_java({"PATH": str(tmp_path)})


def test_java_home_without_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing, match=f"{tmp_path}/bin/java does not run"):
        require_java({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})


def test_a_java_that_is_too_old_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for printed, version in (("1.8.0_402", 8), ("11.0.2", 11), ("unheard of", 0)):
        with subtests.test(printed=printed):
            java = tmp_path / "java"
            java.write_text(f"#!/bin/sh\necho 'openjdk version \"{printed}\" 2018-10-16' >&2\n")
            java.chmod(0o755)
            with pytest.raises(JavaMissing, match=f"is version {version}"):
                require_java({"PATH": str(tmp_path)})


@pytest.mark.usefixtures("spark")
def test_the_session_is_the_same_for_every_step_and_as_configured() -> None:
    spark = warm_session.get()
    assert warm_session.get() is spark
    assert spark.sparkContext.master == MASTER
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.getConf().get("spark.scheduler.mode") == "FAIR"


@pytest.mark.long  # a worker of test_trouble.py does the same
@pytest.mark.usefixtures("spark")
def test_a_killed_jvm_is_replaced_for_the_next_step() -> None:
    first = warm_session.get()
    jvm = _jvm()
    jvm.kill()
    jvm.wait()
    assert not is_alive(first)
    second = warm_session.get()
    assert second is not first
    assert second.range(3).count() == 3


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_a_stopped_context_is_replaced_and_stop_leaves_no_jvm() -> None:
    first, jvm = warm_session.get(), _jvm()
    first.stop()
    assert warm_session.get().range(3).count() == 3
    assert not runs(jvm)

    jvm = _jvm()
    warm_session.stop()
    assert not runs(jvm)
    assert not _below(psutil.Process(), "java")
    assert SparkContext._gateway is None
    warm_session.stop()


def test_a_session_that_is_built_again_is_one_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a step that comes meanwhile would start a host."""
    warm, seen = session.WarmSession(), list[bool]()
    for name in ("_end", "is_alive", "_jvm_of_program"):
        monkeypatch.setattr(session, name, lambda *_: None)
    monkeypatch.setattr(session, "_build", lambda *_: seen.append(warm.is_built))
    warm._running = object.__new__(session._Running)
    monkeypatch.setattr(session._Running, "spark", None, raising=False)
    with pytest.raises(AttributeError):
        warm.get()
    assert seen == [True]
    assert not warm.is_built


OWN = """
import gc, os, psutil, sys
from pyspark.sql import SparkSession
own = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
jvms = lambda: [each for each in psutil.Process().children(recursive=True) if each.name() == "java"]
[jvm] = jvms()
if "killed" in sys.argv:
    jvm.kill(); jvm.wait()
from glidemq_orchestrate.spark.sessions.warm import is_alive, warm_session
spark = warm_session.get()
assert spark.range(3).count() == 3 and len(jvms()) == 1
if not os.fork():
    spark = own = None
    warm_session.stop(); gc.collect(); os._exit(0)
assert os.wait()[1] == 0
assert is_alive(spark) and spark.range(4).count() == 4
warm_session.stop()
assert not jvms()
print("good")
"""


@pytest.mark.usefixtures("_spark_environment")
@pytest.mark.parametrize("state", ["running", "killed"])
@pytest.mark.long
def test_a_session_that_the_program_built_itself_is_used(state: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OWN, state], capture_output=True, text=True, check=False, cwd=_root()
    )
    assert done.stdout.endswith("good\n"), done.stderr[-2000:]


@pytest.mark.long
@pytest.mark.usefixtures("spark")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_leaves_the_session_to_its_parent() -> None:
    spark = warm_session.get()
    pid = os.fork()
    if pid == 0:
        try:
            warm_session.stop()
            atexit._run_exitfuncs()  # what sys.exit comes to, without pytest's own end
            gc.collect()
        finally:
            os._exit(0 if SparkContext._gateway is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert warm_session.get() is spark
    assert spark.range(3).count() == 3


KILLED = """
import json, time, urllib.request
from glidemq_orchestrate.spark.sessions.warm import warm_session
spark = warm_session.get()
known = spark.sparkContext.getConf().get("spark.hadoop.fs.s3a.secret.key")
told = spark.sparkContext._jsc.hadoopConfiguration().get("fs.s3a.secret.key")
page = json.load(urllib.request.urlopen(f"{spark.sparkContext.uiWebUrl}/api/v1/applications"))[0]["id"]
page = f"{spark.sparkContext.uiWebUrl}/api/v1/applications/{page}/environment"
shown = urllib.request.urlopen(page).read().decode()
print(json.dumps([known, told, shown]), flush=True)
# Python workers of the JVM: its children, in a group of their own.
spark.sparkContext.parallelize(range(2), 2).foreach(lambda _: time.sleep(600))
"""
SECRETS = {
    "spark.hadoop.fs.s3a.secret.key": "hunter2",
    "spark.hadoop.fs.azure.account.key.x.dfs.core.windows.net": "hunter3",
    "spark.hadoop.fs.azure.sas.box.x.blob.core.windows.net": "hunter4",
    "spark.my.apikey": "hunter5",
    "spark.my.passphrase": "hunter6",
    "spark.my.place": "https://ana:hunter7@example.net",
}


@contextmanager
def _killed(eventually: Eventually) -> Iterator[subprocess.Popen[str]]:
    """A process with a session, which is killed at the end of the block; nothing that it started is left."""
    process = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, cwd=_root(), text=True)
    below = []
    try:
        yield process
        below = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.kill()
        killed = time.monotonic()
        process.communicate()
    eventually(lambda: not any(map(runs, below)), 30)
    assert time.monotonic() - killed < 8  # Spark's own processes need ten and more


@pytest.mark.usefixtures("_spark_environment")
def test_nothing_of_a_process_that_is_killed_as_it_starts_is_left(eventually: Eventually) -> None:
    with _killed(eventually) as process:
        eventually(lambda: _below(psutil.Process(process.pid), "java"), 90)


@pytest.mark.long
@pytest.mark.usefixtures("_spark_environment")
def test_no_secret_is_shown_and_nothing_of_a_killed_process_is_left(
    eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = {**SECRETS, "spark.task.cpus": "1", "spark.odd": "a 'b' \"c\" \\ ü $HOME"}
    monkeypatch.setenv(CONF_VARIABLE, json.dumps(conf))
    with _killed(eventually) as process:
        assert process.stdout is not None
        known, told, shown = json.loads(process.stdout.readline())
        owner = psutil.Process(process.pid)
        # The daemon, and a worker that it has forked.
        eventually(lambda: len(_below(owner, "pyspark.daemon")) >= 2, 90)
        commands = _commands(owner).values()
    assert any("--properties-file" in command for command in commands)
    assert not any("hunter" in command for command in commands)
    assert "spark.my.passphrase" in shown
    assert "hunter" not in shown
    assert (known, told) == ("hunter2", "hunter2")


def _jvm() -> psutil.Process:
    [jvm] = _below(psutil.Process(), "SparkSubmit")
    return jvm


def _commands(owner: psutil.Process) -> dict[psutil.Process, str]:
    """The command lines of what a process has started, and that has not ended."""
    found = {}
    for each in owner.children(recursive=True):
        with suppress(*GONE):
            found[each] = " ".join(each.cmdline())
    return found


def _below(owner: psutil.Process, name: str) -> list[psutil.Process]:
    return [each for each, command in _commands(owner).items() if name in command]


def _root() -> Path:
    return Path(__file__).parents[2]
