"""Steps in a session host: what they may do, and what they leave behind."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from glidemq_orchestrate import ArrayNode, FlowNode, Queue
from glidemq_orchestrate.errors import LeaseLost, NodeNotFound
from glidemq_orchestrate.spark.failures import SessionUnfit, StepCancelled
from glidemq_orchestrate.spark.hosts.pool import Hosts
from glidemq_orchestrate.worker.handlers.named_call import InvalidCall
from glidemq_orchestrate.worker.handlers.signals import RetryLater
from tests.conftest import Eventually
from tests.spark.hosts.conftest import Make, run


@pytest.mark.long
def test_a_step_that_needs_another_session_takes_none_from_others(
    shared: Hosts, make: Make, tmp_path: Path, eventually: Eventually
) -> None:
    paths = [tmp_path / folder / "added_by_steps.py" for folder in "ab"]
    for path in paths:
        path.parent.mkdir()
        path.write_text(str(path))
    before = shared.pids
    assert run(shared, make("adds", path=str(paths[0]))) == str(paths[0])
    with pytest.raises(SessionUnfit, match=r"a different file added_by_steps\.py while it ran step"):
        run(shared, make("adds", path=str(paths[1])))
    own = make("adds", path=str(paths[1]), data={"session": "own"})
    assert run(shared, own) == str(paths[1])
    assert run(shared, make("about"))["pid"] in before
    eventually(lambda: shared.pids == before, timeout=30)  # so the next has not what this one has left


def test_a_step_runs_in_a_process_of_its_own_with_its_session(shared: Hosts, make: Make) -> None:
    found = run(shared, make("about", data={"user": "Ana of sales"}))
    assert found["pid"] in shared.pids
    assert found["pid"] != os.getpid()
    assert found["rows"] == 3
    assert [one.name.partition("-")[0] for one in Path(found["temporary"]).iterdir()]
    assert Path(found["temporary"]).parent == Path(tempfile.gettempdir())
    assert found["memory"] == "1g"
    assert found["description"] == "spark: step (job-step, attempt 1, Ana of sales)"
    assert found["told"] == ["spark", "job-step", "step", "Ana of sales"] * 2


def test_what_libraries_keep_for_a_thread_is_that_of_a_step(shared: Hosts, make: Make) -> None:
    assert [len(run(shared, make("rounds"))) for _ in range(2)] == [30, 30]


@pytest.mark.long
def test_a_step_reads_jobs_without_registering_the_data_source(shared: Hosts, make: Make, url: str) -> None:
    with Queue("etl", url=url) as queue:
        queue.add("a")
    assert run(shared, make("counts_jobs", url=url)) == 1


def test_the_logs_and_progress_of_a_step_reach_its_job_and_the_worker(
    shared: Hosts, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    added = []

    class Flow:
        def add_nodes(self, nodes: Any, *, before: Any = ()) -> None:
            added.append((nodes, before))

    one = make("talks", inputs={"before": [1]})
    one.ctx.flow = Flow()  # type: ignore[assignment]
    assert run(shared, one) == {"before": [1]}
    assert one.recorder.lines == ["by hand", "WARNING by logging"]
    assert {"part": 1} in one.recorder.reported
    assert added == [([FlowNode("more", queue="spark", job="other")], ("last",))]
    (record,) = [record for record in caplog.records if record.name == "mine"]
    assert (record.getMessage(), record.levelno) == ("by logging", logging.WARNING)
    assert record.__dict__["action"] == "tried"


def test_a_step_reads_the_results_of_an_array(shared: Hosts, make: Make) -> None:
    class Flow:
        def array_results(self, name: str, start: int, stop: int | None) -> Any:
            if name == "none":
                raise NodeNotFound("there is no node none")
            return {at: {"rows": 10 * at} for at in range(start, 4 if stop is None else stop)}

    one = make("reads_an_array")
    one.ctx.flow = Flow()  # type: ignore[assignment]
    assert run(shared, one) == [30, "there is no node none"]
    inputs = [{"node": "parts", "to": ["parts"], "array": True}]
    one = make("sums", data={"inputs": inputs, "arguments": {}})
    one.ctx.flow = Flow()  # type: ignore[assignment]
    assert run(shared, one) == 60


def test_a_step_makes_an_array_of_a_data_frame(shared: Hosts, make: Make) -> None:
    added: list[Any] = []

    class Flow:
        def add_nodes(self, nodes: Iterable[FlowNode], *, before: Sequence[str]) -> None:
            added.extend((node, before) for node in nodes)

    one = make("makes_an_array")
    one.ctx.flow = Flow()  # type: ignore[assignment]
    run(shared, one)
    ((array, before),) = added
    assert isinstance(array, ArrayNode)
    assert (array.name, list(array.over), before) == ("clean", ["part-0", "part-1", "part-2"], ("report",))


def test_logging_set_up_by_a_step_loses_no_line_of_another(
    shared: Hosts,
    make: Make,
    tmp_path: Path,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    beside, go = make("sets_up_logging", go=str(tmp_path / "go")), tmp_path / "go"
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(run, shared, beside)
        eventually((tmp_path / "go.begun").exists, timeout=30)
        run(shared, make("sets_up_logging"))
        go.touch()
        running.result(30)
    assert beside.recorder.lines == ["WARNING as before"]
    run(shared, later := make("sets_up_logging", go=str(go)))
    assert later.recorder.lines == ["WARNING as before"]
    assert "as before" in caplog.text


def test_errors_travel_both_ways_with_their_classes(
    shared: Hosts, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RetryLater, match="not yet") as caught:
        run(shared, make("later"))
    assert (caught.value.delay.seconds, caught.value.counts) == (7, False)
    with pytest.raises(Exception, match="4") as exits:
        run(shared, make("leaves", how="sys"))
    assert type(exits.value).__name__ == "SystemExit"
    with pytest.raises(InvalidCall, match="has no nothing"):
        run(shared, make("nothing"))
    one = make("checks")

    def lost() -> None:
        raise LeaseLost("gone")

    monkeypatch.setattr(one.recorder, "check_owner", lost)
    assert run(shared, one) == "LeaseLost"
    assert run(shared, make("about"))["rows"] == 3


@pytest.mark.parametrize("what", ["result", "progress", "log", "error"])
def test_values_that_cannot_be_sent_harm_no_step(shared: Hosts, make: Make, what: str) -> None:
    one = make("odd", what=what)
    if what == "error":
        with pytest.raises(Exception, match=r"^$") as caught:
            run(shared, one)
        assert type(caught.value).__name__ == "Broken"
    else:
        assert run(shared, one) == ({"a": 1} if what == "result" else what)
    if what == "progress":
        assert one.recorder.lines == ["cd", "WARNING ef"]
    assert run(shared, make("about"))["rows"] == 3


def test_a_process_that_a_step_forks_reports_nothing_and_ends(shared: Hosts, make: Make) -> None:
    one = make("forks")
    assert run(shared, one) not in {0, os.getpid(), *shared.pids}
    assert one.recorder.lines == []
    assert run(shared, make("about"))["rows"] == 3


def test_a_cancel_reaches_the_executors(
    shared: Hosts, make: Make, tmp_path: Path, eventually: Eventually
) -> None:
    one = make("slow", go=str(tmp_path / "go"))
    with ThreadPoolExecutor(1) as threads:
        step = threads.submit(run, shared, one)
        eventually((tmp_path / "go.begun").exists, timeout=30)
        one.cancelled.set()
        began = time.monotonic()
        with pytest.raises(StepCancelled):
            step.result(timeout=30)
        assert time.monotonic() - began < 5


@pytest.mark.long
def test_what_a_step_caches_and_its_global_views_end_with_it(shared: Hosts, make: Make) -> None:
    inside = run(shared, make("caches", name="mine"))
    assert inside["cached"] >= 2
    assert inside["views"] == ["mine", "mine2"]
    assert run(shared, make("left")) == {"cached": 0, "views": []}


def test_settings_that_may_run_code_are_refused(shared: Hosts, make: Make) -> None:
    with pytest.raises(InvalidCall, match=r"spark\.jars: only the worker sets these"):
        run(shared, make("about", data={"conf": {"spark.jars": "/tmp/evil.jar"}}))
    with pytest.raises(InvalidCall, match="is not a setting of Spark SQL"):
        run(shared, make("about", data={"conf": {"spark.sql.warehouse.dir": "/tmp/x"}}))
