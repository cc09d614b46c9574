"""A restart runs a flow again as it was; a repeat of the request does not."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    Dependency,
    FlowProducer,
    FlowSpec,
    JobOptions,
    Ordering,
    Rule,
)
from glidemq_orchestrate.errors import (
    ConfigurationError,
    FlowConflict,
    Superseded,
)
from glidemq_orchestrate.flows.checked import check_flow
from tests.builders import diamond, node
from tests.server.conftest import STAGED
from tests.server.policy_work import LONG, Work, states

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Dump


pytestmark = pytest.mark.usefixtures("path")


def test_nothing_is_kept(broken: FlowProducer, work: Work) -> None:
    flow = broken.submit(diamond(), flow_id="f", on_existing="restart")
    assert flow.wait(timeout=LONG).status.completed == 5
    assert sorted(work.ran) == list("abcde")
    assert flow.generation == 1


def test_the_same_request_finds_what_it_began(broken: FlowProducer, work: Work) -> None:
    for _ in range(3):
        flow = broken.submit(diamond(), flow_id="f", on_existing="restart", idempotency_key="click 1")
        flow.wait(timeout=LONG)
        assert flow.generation == 1
    assert len(work.ran) == 5
    flow = broken.submit(diamond(), flow_id="f", on_existing="restart", idempotency_key="click 2")
    assert flow.generation == 2
    flow.wait(timeout=LONG)
    old = broken.submit(diamond(), flow_id="f", on_existing="restart", idempotency_key="click 1")
    assert old.generation == 1
    with pytest.raises(Superseded, match="generation 1 of flow f was superseded by generation 2"):
        old.wait(timeout=LONG)
    assert len(work.ran) == 10


def test_the_first_submission_has_a_request_too(flows: FlowProducer, work: Work) -> None:
    for _ in range(2):
        flow = flows.submit(diamond(), flow_id="f", on_existing="restart", idempotency_key="r")
        flow.wait(timeout=LONG)
        assert (flow.generation, flow.status().idempotency_key) == (0, "r")
    assert len(work.ran) == 5


def test_every_option_and_policy_is_kept(flows: FlowProducer, work: Work, path: str) -> None:
    hour = timedelta(hours=1)
    ordered = JobOptions(ordering=Ordering("k") if path == "staged" else None)
    either = [Dependency("failed.b", "skip"), Dependency("c", "skip")]
    nodes = [
        node("skipped.a", options=JobOptions(attempts=3, delay=timedelta(milliseconds=5), priority=3)),
        node("failed.b", on_failure="ignore"),
        node("c", Dependency("skipped.a", "all_done"), "failed.b", rule=Rule.ALL_DONE),
        node("d", "failed.b", options=ordered),
        node("e", *either, queue_timeout=hour),
    ]
    spec = FlowSpec("n", nodes, labels={"a": "b"}, deadline=hour, retention=hour, fail_fast=True)
    flow = flows.submit(spec, flow_id="f")
    before = flow.wait(timeout=LONG)
    ends = states(flow)
    assert flow.restart() == "running"
    after = flow.wait(timeout=LONG)
    assert states(flow) == ends
    assert (after.results, dict(after.status.labels)) == (before.results, {"a": "b"})
    checked = check_flow(spec)
    again = flows.submit(spec, flow_id="f")
    assert again.generation == 1
    # Nothing differs from the specification, although all of it was read back from the server.
    assert again.history()[1].total == len(checked.nodes)
    changed = replace(spec, deadline=2 * hour)
    with pytest.raises(FlowConflict) as caught:
        flows.submit(changed, flow_id="f")
    assert (caught.value.differences, caught.value.fields) == ({}, ("deadline",))


@STAGED
def test_what_was_added_from_outside_stays(flows: FlowProducer, work: Work) -> None:
    flow = flows.submit(FlowSpec("n", [node("a")]), flow_id="f")
    flow.wait(timeout=LONG)
    flow.extend([node("b", "a")])
    flow.wait(timeout=LONG)
    for _ in range(2):
        flow.restart()
        assert set(flow.wait(timeout=LONG).results) == {"a", "b"}
    assert work.ran == ["a", "b"] * 3
    assert flow.extend([node("b", "a")]) == "completed"  # a repeat


def test_another_specification_is_not_attached_to(broken: FlowProducer) -> None:
    with pytest.raises(FlowConflict, match=r"nodes that differ: b \(data\)"):
        broken.submit(diamond(b={"data": 1}), flow_id="f")


def test_a_conflict_says_which_settings_of_the_flow_differ(flows: FlowProducer, redis_client: Any) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"name": "m"}, "differs in: name"),
        ({"deadline": timedelta(hours=1)}, "differs in: deadline"),
        ({"fail_fast": True, "deadline": None}, "differs in: deadline, fail_fast"),
        (
            {"name": "m", "nodes": [node("a", data=1)]},
            r"differs in: name; nodes that differ: a \(data\)",
        ),
        ({"labels": {"a": "b"}}, ""),
        ({"retention": timedelta(hours=1)}, ""),
    ]
    for changed, text in cases:
        redis_client.flushdb()
        spec = FlowSpec("n", [node("a")], deadline=timedelta(hours=2))
        flows.submit(spec, flow_id="f")
        other = replace(spec, **changed)
        if not text:  # it is the same flow
            assert flows.submit(other, flow_id="f").status().labels == {}
            continue
        with pytest.raises(FlowConflict, match=f"^flow id f belongs to another flow; {text}$") as caught:
            flows.submit(other, flow_id="f")
        fields = text.partition(";")[0].removeprefix("differs in: ")
        assert list(caught.value.fields) == fields.split(", ")


def test_a_request_that_has_begun_another_specification(
    broken: FlowProducer, work: Work, dump: Dump, redis_client: Any, eventually: Eventually
) -> None:
    broken.submit(diamond(), flow_id="f", on_existing="restart", idempotency_key="r").wait(timeout=LONG)
    eventually(lambda: not redis_client.exists("glide:{etl}:gmo:portable"))  # nothing is left to do
    work.worker.stop()
    before = dump()
    with pytest.raises(FlowConflict, match="request r began generation 1 of flow f with another spec"):
        broken.submit(diamond(b={"data": 1}), flow_id="f", on_existing="restart", idempotency_key="r")
    assert dump() == before
    mended = broken.submit(diamond(b={"data": 1}), flow_id="f", on_existing="restart", idempotency_key="s")
    assert mended.generation == 2
    with pytest.raises(FlowConflict, match="request r began generation 1"):
        broken.submit(diamond(b={"data": 1}), flow_id="f", on_existing="restart", idempotency_key="r")


def test_odd_requests(flows: FlowProducer, dump: Dump) -> None:
    wrong: list[Any] = ["x" * 257, "a\nb", 7]
    for request_ in wrong:
        before = dump()
        with pytest.raises(ConfigurationError, match=r"idempotency_key .* is not valid|idempotency_key must"):
            flows.submit(diamond(), flow_id="f", idempotency_key=request_)
        assert dump() == before


def test_a_request_that_has_begun_a_generation_for_other_nodes(
    broken: FlowProducer, work: Work, run_worker: RunWorker, dump: Dump
) -> None:
    flow = broken.get("f")
    flow.restart(nodes=["c", "e"], idempotency_key="r")
    flow.wait(timeout=LONG)
    for _ in range(2):  # a repeat, by a handle of then and by one of now
        again = broken.get("f")
        assert again.restart(nodes=("e", "c", "e"), idempotency_key="r") == "completed"
        assert flow.restart(nodes=["e", "c"], idempotency_key="r") == "completed"
        assert (again.generation, flow.generation) == (1, 1)
    assert [one.idempotency_key for one in flow.history()] == ["", "r"]
    work.worker.stop()
    before = dump()
    for other in (["c"], ["a"], None):
        with pytest.raises(FlowConflict, match="request r began generation 1 of flow f to rerun other nodes"):
            flow.restart(nodes=other, idempotency_key="r")
    with pytest.raises(FlowConflict, match="to rerun other nodes"):
        broken.submit(diamond(), flow_id="f", on_existing="restart", idempotency_key="r")
    assert dump() == before
    run_worker(["etl", "spark"], {"work": work}, concurrency=8)
    flow.restart(idempotency_key="all")
    flow.wait(timeout=LONG)
    with pytest.raises(FlowConflict, match="request all began generation 2"):
        flow.restart(nodes=["c"], idempotency_key="all")
    assert flow.restart(idempotency_key="all") == "completed"
    assert flow.generation == 2


def test_a_request_needs_an_id(flows: FlowProducer, dump: Dump) -> None:
    before = dump()
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="idempotency_key needs a flow_id"):
            flows.submit(diamond(), on_existing="restart", idempotency_key="r")
    with pytest.raises(ConfigurationError, match="flow id '' is not valid"):
        flows.submit(diamond(), flow_id="")
    assert dump() == before
    assert len(flows.submit(diamond(), flow_id=None).id) == 32
