"""A task group as one flow, on a real Airflow: what is shown, what users do to it, and what dies."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from airflow_provider_glidemq.task_attempt import flow_id_for
from airflow_provider_glidemq.version_compat import STARTS_FROM_TRIGGER

from glidemq_orchestrate import Flow, FlowProducer
from tests.system.conftest import HANDLERS
from tests.system.real_airflow import HERE, PYTHON_PATH, Airflow

pytestmark = [pytest.mark.system, pytest.mark.long]

DAGS: Final = ("diamond", "line", "grown")
LINE: Final = ("first", "second", "third", "last")


@pytest.fixture(scope="module")
def dags(place: Path) -> Path:
    folder = place / "dags"
    folder.mkdir()
    (folder / "groups.py").write_text((HERE / "airflow_dags" / "groups.py").read_text())
    return folder


@pytest.fixture(scope="module")
def environment(place: Path) -> Mapping[str, str]:
    (place / "gates").mkdir()
    return {"GATES": str(place / "gates")}


@pytest.fixture(scope="module")
def workers_run() -> Sequence[Sequence[str]]:
    return [(*HANDLERS, "--allow-import", "groups")]


@pytest.fixture(scope="module")
def worker_path(dags: Path) -> Sequence[Path]:
    """It imports the functions from the DAG file."""
    return [*PYTHON_PATH, dags]


@pytest.fixture
def gate(place: Path) -> Iterator[Callable[[str], Path]]:
    """Files that tell ``maybe`` what to do; they are gone afterwards."""
    made: list[Path] = []

    def make(name: str) -> Path:
        made.append(place / "gates" / name)
        made[-1].touch()
        return made[-1]

    yield make
    for path in made:
        path.unlink(missing_ok=True)


def flow_of(flows: FlowProducer, dag_id: str, run_id: str) -> Flow:
    return flows.get(flow_id_for(dag_id, "etl.launch", run_id))


def states(airflow: Airflow, dag_id: str, run_id: str) -> dict[str, str | None]:
    return {name.removeprefix("etl."): state for name, state in airflow.task_states(dag_id, run_id).items()}


def results(airflow: Airflow, run_id: str) -> dict[str, Any]:
    return {name: airflow.xcom("line", run_id, f"etl.{name}") for name in LINE}


def ended(airflow: Airflow, run_id: str, *, state: str = "success") -> dict[str, Any]:
    """Wait for the end of a run of ``line``; returns the results of its tasks."""
    assert airflow.wait_for_run("line", run_id) == state, states(airflow, "line", run_id)
    return results(airflow, run_id)


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


def worker_starts(airflow: Airflow, dag_id: str, run_id: str) -> dict[str, int]:
    """How often a process has run for a task: each has logged to the file of its try."""
    found: dict[str, int] = {}
    for log in (airflow.home / "logs" / f"dag_id={dag_id}" / f"run_id={run_id}").rglob("attempt=*.log"):
        if ".trigger." not in log.name:
            task = log.parent.name.removeprefix("task_id=")
            found[task] = log.read_text().count("Filling up the DagBag")
    return found


def test_a_diamond_with_an_expanded_task_starts_three_workers(
    airflow: Airflow, flows: FlowProducer, place: Path
) -> None:
    run_id = airflow.begin("diamond", "first")
    assert airflow.wait_for_run("diamond", run_id) == "success"
    shown = states(airflow, "diamond", run_id)
    assert set(shown.values()) == {"success"}
    assert set(shown) == {"before", "launch", "load", "left", "right", "square", "total", "after"}
    flow = flow_of(flows, "diamond", run_id)
    assert flow.status().total == 204
    loaded, summed = airflow.xcom("diamond", run_id, "etl.load"), airflow.xcom("diamond", run_id, "etl.total")
    assert summed["sum"] == sum(number * number for number in range(200)) + 1001 + 1002
    assert airflow.xcom("diamond", run_id, "after") == [
        summed["sum"], 200, 9, loaded["stamp"], summed["stamp"],
    ]  # fmt: skip
    assert airflow.xcom("diamond", run_id, "etl.total", "count") == 200, (
        "of multiple outputs, each is an XCom"
    )
    assert flow.node("right").attempts == 2, "its retry is an attempt of the node"
    assert "200/200" in airflow.task_log("diamond", run_id, "etl.square")
    assert "right ran for" in airflow.task_log("diamond", run_id, "etl.right")
    starts = worker_starts(airflow, "diamond", run_id)
    sys.stdout.write(f"task rows: {len(shown)}, worker starts: {starts}\n")
    others = 0 if STARTS_FROM_TRIGGER else 1
    monitors = dict.fromkeys(("etl.load", "etl.left", "etl.right", "etl.square", "etl.total"), others)
    assert starts == {"before": 1, "etl.launch": 1, "after": 1} | (monitors if others else {})


def test_a_task_is_expanded_over_a_result_and_shown_eagerly(airflow: Airflow, flows: FlowProducer) -> None:
    run_id = airflow.begin("grown", "first")
    assert airflow.wait_for_run("grown", run_id) == "success"
    assert airflow.xcom("grown", run_id, "after")[:3] == [31, 5, 9]
    assert flow_of(flows, "grown", run_id).status().total == 8
    assert "5/5" in airflow.task_log("grown", run_id, "etl.doubled")
    stamp = airflow.xcom("grown", run_id, "after")[4]
    airflow.clear("grown", run_id, ["etl.numbers"], downstream=True)
    airflow.wait_until_it_runs("grown", run_id, "after")
    assert airflow.wait_for_run("grown", run_id) == "success"
    again = airflow.xcom("grown", run_id, "after")
    assert again[:3] == [31, 5, 9]
    assert again[4] > stamp, "tasks that were cleared together began at once: an old end was shown"
    generation = flow_of(flows, "grown", run_id).generation
    assert generation == 1, "what had added nodes runs again as a new generation, once"


def test_a_clear_runs_what_follows_and_one_of_launch_all(airflow: Airflow, flows: FlowProducer) -> None:
    run_id = airflow.begin("line", "cleared")
    first = ended(airflow, run_id)
    assert states(airflow, "line", run_id)["skips"] == "skipped"
    assert states(airflow, "line", run_id)["also_skipped"] == "skipped"

    def again(task: str, *, downstream: bool) -> dict[str, Any]:
        airflow.clear("line", run_id, [f"etl.{task}"], downstream=downstream)
        airflow.wait_until_it_runs("line", run_id, f"etl.{task}")
        return ended(airflow, run_id)

    second = again("second", downstream=True)
    assert changed(first, second) == {"second", "third"}
    third = again("third", downstream=False)
    assert changed(second, third) == {"third"}
    flow = flow_of(flows, "line", run_id)
    assert {node.name: node.reruns for node in flow.nodes() if node.name in LINE} == {
        "first": 0, "second": 1, "third": 2, "last": 2,
    }, "what was cleared together has run once"  # fmt: skip
    fourth = again("launch", downstream=True)
    assert changed(third, fourth) == {"first", "second", "third"}, "an old result was shown as new"
    assert [status.state for status in flow.history()] == ["completed", "completed"]
    fifth = again("first", downstream=True)
    assert changed(fourth, fifth) == {"first", "second", "third"}
    assert len(flow.history()) == 2


def test_a_failure_ends_as_in_airflow_and_a_mark_repairs_it(
    airflow: Airflow, flows: FlowProducer, gate: Callable[[str], Path]
) -> None:
    fails = gate("fail second")
    run_id = airflow.begin("line", "fails")
    ended(airflow, run_id)  # its last task runs whatever has happened
    shown = states(airflow, "line", run_id)
    assert (shown["second"], shown["third"], shown["last"]) == ("failed", "upstream_failed", "success")
    assert "RuntimeError: second fails (attempts: 1)" in airflow.task_log("line", run_id, "etl.second")
    fails.unlink()
    airflow.mark_task("line", run_id, "etl.second", "success")  # Airflow clears what has failed after it
    airflow.wait_for_task("line", run_id, "etl.third", ["success"])
    assert str(ended(airflow, run_id)["third"]).startswith("third ")
    node = flow_of(flows, "line", run_id).node("second")
    assert (node.state, node.reruns) == ("completed", 1)


@pytest.mark.parametrize(
    "marked",
    [("failed", "failed", "upstream_failed"), ("success", "completed", "success")],
    ids=["failed", "success"],
)
def test_a_mark_of_a_waiting_task_ends_its_node(
    airflow: Airflow, flows: FlowProducer, gate: Callable[[str], Path], marked: tuple[str, str, str]
) -> None:
    mark, ends, third = marked
    waits = gate("wait second")
    run_id = airflow.begin("line", f"marked_{mark}")
    airflow.wait_for_task("line", run_id, "etl.second", ["deferred"])
    flow = flow_of(flows, "line", run_id)
    wait_for(lambda: flow.node("second").state == "active")
    wait_until_watched(airflow, run_id)
    airflow.mark_task("line", run_id, "etl.second", mark)
    if not STARTS_FROM_TRIGGER:  # nor is it told: the node runs to its end
        waits.unlink()
        ends = "completed"
    wait_for(lambda: flow.node("second").state == ends)
    ended(airflow, run_id)
    shown = states(airflow, "line", run_id)
    assert (shown["second"], shown["third"]) == (mark, third)
    waits.unlink(missing_ok=True)
    airflow.clear("line", run_id, ["etl.second"], downstream=True)
    airflow.wait_until_it_runs("line", run_id, "etl.second")
    assert str(ended(airflow, run_id)["second"]).startswith("second "), "the clear runs what was marked"


def test_a_clear_while_waiting_survives_a_kill_of_the_triggerer(
    airflow: Airflow, flows: FlowProducer, gate: Callable[[str], Path]
) -> None:
    waits = gate("wait second")
    run_id = airflow.begin("line", "killed")
    airflow.wait_for_task("line", run_id, "etl.second", ["deferred"])
    flow = flow_of(flows, "line", run_id)
    wait_for(lambda: flow.node("second").state == "active")
    wait_until_watched(airflow, run_id)
    airflow.kill("triggerer")
    airflow.clear("line", run_id, ["etl.second"], downstream=True)
    airflow.wait_for_task("line", run_id, "etl.second", ["deferred"])
    airflow.start_again("triggerer")
    wait_for(lambda: flow.node("second").reruns > 0, seconds=120)
    airflow.kill("triggerer")  # which may have cancelled the node, and not yet have run it again
    waits.unlink()
    airflow.start_again("triggerer")
    ended(airflow, run_id)
    assert flow.status().state == "completed"
    assert all(states(airflow, "line", run_id)[name] == "success" for name in LINE)
    assert flow.generation == 0
    assert flow.node("third").attempts == 1


def wait_until_watched(airflow: Airflow, run_id: str) -> None:
    """Wait until the trigger of ``second`` has stored what it sees."""
    wait_for(lambda: airflow.xcom("line", run_id, "etl.launch", "glidemq_seen second") is not None)


def wait_for(condition: Callable[[], bool], seconds: float = 90) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.2)
