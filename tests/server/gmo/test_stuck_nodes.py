"""What a dead process left behind is found in the flow itself: no list has to name it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import ArrayNode, FlowNode, FlowSpec
from glidemq_orchestrate.attempts import supervision as supervise
from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.attempts.supervision import Supervision
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.portable.submit import submit
from glidemq_orchestrate.flows.staged.lost_jobs import check_open
from glidemq_orchestrate.flows.staged.submit import advance_flow, start_flow
from glidemq_orchestrate.wire.keys import QueueKeys

if TYPE_CHECKING:
    from tests.server.gmo.conftest import Bench

ETL = QueueKeys("glide", "etl")
FLOW = "glide:{etl}:gmo:flow:f"
STREAM = "glide:{etl}:stream"
MANY = 130


def lap(bench: Bench) -> None:
    """A supervisor looks at every open node once, and does what flows need."""
    bench.now += supervise.LAP_MS
    watch = Supervision(ETL, "one")
    for _ in range(20):
        bench.hand.run(supervise.check_open(watch, bench))
        if bench.client.hget("glide:{etl}:gmo:supervised", "walk") == "0 0":
            break
    bench.hand.run(supervise.upkeep(watch, bench))


def lose(bench: Bench, *tables: str) -> None:
    """The pending work is in no table any more."""
    assert bench.client.delete(*(f"{FLOW}:{table}" for table in tables))
    bench.client.srem("glide:{etl}:gmo:todo", "f")


def forget_end(bench: Bench, node: str, dependency: str) -> None:
    """The node waits again, and was not notified of the end of one of its dependencies."""
    job, ref = f"glide:{{etl}}:job:f~{node}", f"glide:{{etl}}:f~{dependency}"
    bench.client.xdel(STREAM, bench.job(f"f~{node}")["gmo:entry"])
    bench.client.hdel(job, f"depdone:{ref}", "gmo:entry")
    bench.client.hincrby(job, "depsCompleted", -1)
    bench.client.hset(job, "state", "waiting-children")


def states(bench: Bench, *names: str) -> set[str]:
    return {bench.job(f"f~{name}")["state"] for name in names}


def test_dependents_that_were_never_notified_run(bench: Bench, node: Any) -> None:
    names = [f"n{n}" for n in range(MANY)]
    bench.submit(node("a"), *(node(name, "a") for name in names))
    bench.finish(bench.begin())
    lose(bench, "notifying")
    lap(bench)
    assert states(bench, *names) == {"waiting"}
    assert bench.client.xlen(STREAM) == MANY


@pytest.mark.parametrize("count", [3, MANY])
def test_a_node_that_missed_one_of_its_dependencies_runs(bench: Bench, node: Any, count: int) -> None:
    names = [f"n{n}" for n in range(count)]
    bench.submit(*(node(name) for name in names), node("end", *names))
    for _ in names:
        bench.finish(bench.begin())
    forget_end(bench, "end", names[1])
    lap(bench)
    assert (states(bench, "end"), bench.client.xlen(STREAM)) == ({"waiting"}, 1)


def test_a_node_that_was_notified_of_all_and_not_released_runs(bench: Bench, node: Any) -> None:
    bench.submit(node("a"), node("b", "a"))
    bench.finish(bench.begin())
    entry = bench.job("f~b")["gmo:entry"]
    bench.client.xdel(STREAM, entry)
    bench.client.hset("glide:{etl}:job:f~b", "state", "waiting-children")
    lap(bench)
    assert bench.begin().job_id == "f~b"


def test_a_root_that_was_forgotten_runs(bench: Bench, node: Any) -> None:
    nodes = [node(f"n{n}") for n in range(MANY)]
    bench.call(bench.stage(*nodes))
    bench.call(start_flow(ETL, "f", bench.digest(*nodes), bench.now))
    lose(bench, "roots")
    lap(bench)
    assert bench.client.xlen(STREAM) == MANY


def test_a_failure_that_reached_no_dependent_ends_the_flow(bench: Bench, node: Any) -> None:
    bench.submit(node("a"), *(node(f"n{n}", "a") for n in range(MANY)), node("end", "n0"))
    bench.fail(bench.begin())
    lose(bench, "notifying", "blocked")
    for _ in range(3):
        lap(bench)
    record = bench.record()
    assert (record["state"], record["failed"]) == ("failed", str(MANY + 2))


def test_a_rule_that_is_fulfilled_is_obeyed(bench: Bench) -> None:
    bench.submit(
        FlowNode("a", queue="etl", job="work"),
        FlowNode("b", queue="etl", job="work"),
        FlowNode("c", queue="etl", job="work", after=["a", "b"], rule="all_done"),
    )
    bench.fail(bench.begin())
    bench.finish(bench.begin())
    job = "glide:{etl}:job:f~c"
    bench.client.xdel(STREAM, bench.job("f~c")["gmo:entry"])
    bench.client.hset(job, "state", "waiting-children")
    bench.client.sadd("glide:{etl}:deps:f~c", "glide:{etl}:f~c")  # nothing else releases it
    lap(bench)
    assert bench.begin().job_id == "f~c"


def test_a_flow_that_has_no_open_node_ends(bench: Bench, node: Any) -> None:
    bench.submit(node("a"))
    bench.begin()
    bench.client.delete(f"{FLOW}:open")
    lap(bench)
    assert bench.record()["state"] == "completed"


def test_a_node_that_waits_for_open_nodes_is_left_alone(bench: Bench, node: Any) -> None:
    names = [f"n{n}" for n in range(MANY)]
    bench.submit(*(node(name) for name in names), node("end", *names), node("two", "n0", "n1"))
    for _ in names[:-1]:
        bench.finish(bench.begin())
    bench.begin()
    lap(bench)
    before = bench.dump()
    bench.now += supervise.LAP_MS
    bench.hand.run(supervise.check_open(Supervision(ETL, "one"), bench))
    after = bench.dump()
    changed = {key for key in before | after if before.get(key) != after.get(key)}
    assert changed == {"glide:{etl}:gmo:supervised"}
    assert states(bench, "end") == {"waiting-children"}


def test_a_node_that_waits_for_its_own_children_is_left_alone(bench: Bench, node: Any) -> None:
    bench.submit(node("a"))
    attempt = bench.begin()
    bench.client.sadd("glide:{etl}:deps:f~a", "glide:{etl}:child")
    bench.client.hset("glide:{etl}:job:child", mapping={"id": "child", "state": "active"})
    assert bench.hand_in(Outcome(attempt, Kind.CHILDREN))[0] == "ok"
    lap(bench)
    assert states(bench, "a") == {"waiting-children"}
    bench.client.hset("glide:{etl}:job:child", "state", "completed")
    lap(bench)
    assert states(bench, "a") == {"waiting"}


def test_what_is_still_to_be_done_is_done_by_advancing(bench: Bench, node: Any) -> None:
    bench.submit(node("a"), *(node(f"n{n}", "a") for n in range(MANY)))
    bench.finish(bench.begin())
    bench.client.srem("glide:{etl}:gmo:todo", "f")
    lap(bench)
    while bench.call(advance_flow(ETL, "f", bench.now)):
        pass
    assert bench.client.xlen(STREAM) == MANY


def test_a_flow_of_the_portable_path_is_not_touched(bench: Bench) -> None:
    checked = check_flow(FlowSpec("n", [FlowNode("a", queue="etl", job="work")]))
    bench.hand.run(submit(FlowRef(ETL, "f", "portable"), checked, "attach", bench))
    assert bench.record()["state"] == "running"
    bench.unchanged(check_open(ETL, "f", 0, 60_000, bench.now))


@pytest.mark.parametrize("option", [{"lifo": True}, {"priority": 1}])
def test_a_lost_job_from_a_list_gives_back_its_slot(bench: Bench, node: Any, option: dict[str, Any]) -> None:
    """No other worker has reclaimed it by the time when its silence shows."""
    bench.submit(node("a", **option))
    bench.begin()
    assert bench.client.get("glide:{etl}:list-active") == "1"
    bench.now += supervise.SILENT_LOCKS * Supervision(ETL, "one").lock_ms
    lap(bench)
    assert states(bench, "a") == {"waiting"}
    assert bench.client.get("glide:{etl}:list-active") == "0"
    assert not bench.client.exists("glide:{etl}:gmo:list-held")
    bench.finish(bench.begin())
    assert bench.client.get("glide:{etl}:list-active") == "0"
    assert bench.record()["state"] == "completed"


def of_elements(bench: Bench) -> list[str]:
    return sorted(bench.client.smembers("glide:{etl}:gmo:array:f~a:jobs"))


@pytest.mark.parametrize("place", ["stream", "schedule", "list"])
def test_the_lost_job_of_an_element_runs(bench: Bench, place: str) -> None:
    priority = 0 if place == "stream" else 1
    bench.submit(ArrayNode("a", queue="etl", job="work", over=range(2), as_jobs=True, priority=priority))
    lost, other = of_elements(bench)
    if place == "stream":
        bench.client.xdel(STREAM, bench.job(lost)["gmo:entry"])
    else:
        bench.client.zrem("glide:{etl}:scheduled", lost)
    if place == "list":  # a worker in Node has taken it from the list, and died
        bench.client.hset(f"glide:{{etl}}:job:{lost}", "state", "waiting")
    lap(bench)
    assert {bench.begin().job_id, bench.begin().job_id} == {lost, other}


def test_the_job_of_an_element_that_was_removed_or_has_ended_elsewhere_is_settled(bench: Bench) -> None:
    array = ArrayNode("a", queue="etl", job="work", over=range(3), as_jobs=True, max_failed=1)
    bench.submit(array)
    removed, ended, _ = of_elements(bench)
    bench.client.delete(f"glide:{{etl}}:job:{removed}")
    bench.client.hset(f"glide:{{etl}}:job:{ended}", mapping={"state": "completed", "returnvalue": "7"})
    lap(bench)
    counts = bench.client.hmget("glide:{etl}:gmo:array:f~a", "completed", "failed")
    assert (counts, bench.client.hget("glide:{etl}:gmo:array:f~a:results", "1")) == (["1", "1"], "7")
    assert len(of_elements(bench)) == 1
