"""Session hosts with several sessions: which step gets which."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from glidemq_orchestrate.errors import JavaMissing
from glidemq_orchestrate.spark.failures import StepCancelled
from glidemq_orchestrate.spark.hosts.pool import Hosts
from tests.conftest import Eventually
from tests.spark.hosts.conftest import Make, pool_of, run


@pytest.mark.long
@pytest.mark.usefixtures("_spark_environment")
def test_session_settings_start_a_session_that_the_next_step_uses(make: Make) -> None:
    with pool_of() as hosts:
        small = run(hosts, make("about"))["pid"]
        data = {"conf": {"spark.driver.memory": "700m", "spark.sql.shuffle.partitions": 3}}
        first, second = (run(hosts, make("about", data=data)) for _ in range(2))
        assert first["pid"] == second["pid"] != small
        assert first["memory"] == "700m"
        assert run(hosts, make("about"))["pid"] == small


@pytest.mark.long
@pytest.mark.usefixtures("_spark_environment")
def test_a_session_of_its_own_shares_nothing_with_another(make: Make, tmp_path: Path) -> None:
    (tmp_path / "added_by_steps.py").touch()
    with pool_of() as hosts:
        run(hosts, make("adds", path=str(tmp_path / "added_by_steps.py"), data={"session": "own"}))
        assert run(hosts, make("left_in_the_process", data={"session": "own"})) is None


@pytest.mark.long
@pytest.mark.usefixtures("_spark_environment")
def test_a_step_waits_for_its_session_while_all_are_in_use(
    make: Make, tmp_path: Path, eventually: Eventually
) -> None:
    data, go = {"session": "own"}, str(tmp_path / "go")
    with pool_of(sessions=2) as hosts, ThreadPoolExecutor(3) as threads:
        waiting = threads.submit(run, hosts, make("waits", data=data, go=go))
        eventually((tmp_path / "go.begun").exists, timeout=60)
        second, third = make("about", data=data), make("about", data=data)
        steps = [threads.submit(run, hosts, one) for one in (second, third)]
        eventually(lambda: second.recorder.lines and third.recorder.lines, timeout=30)
        assert "all 2 Spark sessions of this worker are in use" in second.recorder.lines[0]
        third.cancelled.set()
        with pytest.raises(StepCancelled):
            steps[1].result(timeout=10)
        assert run(hosts, make("about"))["rows"] == 3  # the shared one has room
        Path(go).touch()
        assert waiting.result(timeout=30) == 5
        assert steps[0].result(timeout=60)["rows"] == 3


@pytest.mark.long
@pytest.mark.usefixtures("_spark_environment")
def test_a_worn_session_is_replaced_before_it_ends(make: Make, eventually: Eventually) -> None:
    with pool_of(steps=2) as hosts:
        first = [run(hosts, make("about"))["pid"] for _ in range(2)]
        assert first[0] == first[1]
        ready = []

        def is_replaced() -> bool:
            ready.append({place.host.pid for place in hosts._members if place.is_ready})
            return first[0] not in hosts.pids

        eventually(is_replaced, timeout=60)
        assert ready[0] == {first[0]}
        assert all(ready)  # at each moment there is one that takes steps
        assert run(hosts, make("about"))["pid"] in ready[-1] - {first[0]}


@pytest.mark.long
def test_a_host_that_cannot_have_a_session_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    hosts = Hosts()
    try:
        with pytest.raises(JavaMissing, match=f"{tmp_path}/bin/java does not run"):
            hosts.start()
    finally:
        hosts.stop()  # meanwhile another try may have begun
    assert not hosts.pids
