"""Which nodes a change selects, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from glidemq_orchestrate import FlowProducer, FlowSpec
from glidemq_orchestrate.errors import (
    ConfigurationError,
    EncodeError,
    FlowEnded,
    NodeNotEnded,
    NodeNotFound,
    PayloadTooLarge,
    Superseded,
)
from glidemq_orchestrate.flows import backend
from glidemq_orchestrate.flows.portable import changes
from tests.builders import diamond, node
from tests.server.policy_work import LONG, Work

if TYPE_CHECKING:
    from glidemq_orchestrate import Flow
    from tests.server.conftest import Dump


pytestmark = pytest.mark.usefixtures("path")


def test_by_name_state_and_error(flows: FlowProducer, work: Work) -> None:
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"pattern": "load-*"}, ["load-1", "load-2"]),
        ({"state": "failed"}, ["load-1", "load-2", "send", "z"]),
        ({"error": "Unrecoverable: *"}, []),
        ({"error": "*broken*"}, ["load-1", "load-2", "send"]),
        ({"pattern": "load-*", "error": "broken"}, ["load-1", "load-2"]),
        ({"state": "active"}, []),
        ({"nodes": ["z", "send"]}, ["send", "z"]),
    ]
    for filters, names in cases:
        work.ends |= dict.fromkeys(("load-1", "load-2", "send"), "failed")
        spec = FlowSpec("n", [node("load-1"), node("load-2"), node("send"), node("ok"), node("z", "send")])
        flow = flows.submit(spec)
        flow.wait(timeout=LONG)
        work.ends.clear()
        assert sorted(flow.rerun(**filters)) == names, filters
        flow.wait(timeout=LONG)


def test_by_the_names_of_a_fan_out(flows: FlowProducer, work: Work) -> None:
    every = ["item[0]", "item[1]", "item[10]", "part-1", "part-2"]
    cases: list[tuple[str, list[str]]] = [
        ("item[1]", ["item[1]"]),
        ("item[?]", ["item[0]", "item[1]"]),
        ("item[*]", ["item[0]", "item[10]", "item[1]"]),
        ("item[[]1]", ["item[1]"]),
        ("part-[12]", ["part-1", "part-2"]),
        ("part-[!1]", ["part-2"]),
        ("*[0-1]*", ["item[0]", "item[10]", "item[1]", "part-1"]),
        ("item[2]", []),
        ("[", []),
    ]
    for pattern, names in cases:
        flow = flows.submit(FlowSpec("n", [node(name) for name in every]))
        flow.wait(timeout=LONG)
        assert sorted(flow.complete_node(pattern=pattern, result=1)) == sorted(names), pattern
        assert flow.wait(timeout=LONG).status.completed == 5


def test_more_than_one_call_holds(flows: FlowProducer, work: Work) -> None:
    names = [f"n-{i}" for i in range(170)]
    flow = flows.submit(FlowSpec("n", [node(name) for name in names]), flow_id="f")
    flow.wait(timeout=LONG)
    for _ in range(2):
        assert sorted(flow.rerun(nodes=names, idempotency_key="all")) == sorted(names)
        flow.wait(timeout=LONG)
    assert len(work.ran) == 2 * len(names)
    with pytest.raises(NodeNotFound, match="no node missing"):
        flow.rerun(nodes=[*names, "missing"])
    assert (len(work.ran), flow.status().state) == (2 * len(names), "completed")


def test_bad_input_changes_nothing(done: Flow, work: Work, dump: Dump) -> None:
    cases: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
        (lambda flow: flow.rerun("nope"), NodeNotFound, "the flow has no node nope"),
        (lambda flow: flow.rerun(nodes=["a", "nope"]), NodeNotFound, "nope"),
        (lambda flow: flow.complete_node("nope", 1), NodeNotFound, "nope"),
        (lambda flow: flow.complete_node("a", "x" * 2**21), PayloadTooLarge, "the limit is 1,048,576"),
        (lambda flow: flow.complete_node("a", {1}), EncodeError, "the result is not JSON"),
        (lambda flow: flow.rerun(), ConfigurationError, "select nodes either by name"),
        (lambda flow: flow.rerun("a", pattern="b*"), ConfigurationError, "either by name"),
        (lambda flow: flow.rerun(nodes="abc"), ConfigurationError, "must be a list of node names"),
        (lambda flow: flow.rerun(state="broken"), ConfigurationError, "state must be one of"),
        (lambda flow: flow.rerun("a", idempotency_key="x" * 300), ConfigurationError, "idempotency_key"),
    ]
    work.worker.stop()
    before = dump()
    for call, error, text in cases:
        with pytest.raises(error, match=text):
            call(done)
        assert dump() == before


def test_a_node_that_has_not_ended(flows: FlowProducer, dump: Dump) -> None:
    flow = flows.submit(diamond(), flow_id="f")
    before = dump()
    for names in (["a"], ["b", "a"], [f"n-{i}" for i in range(60)]):
        with pytest.raises((NodeNotEnded, NodeNotFound)):
            flow.rerun(nodes=names)
    assert dump() == before
    assert flow.rerun(pattern="*") == []
    with pytest.raises(NodeNotEnded, match="node a has not ended: it is waiting"):
        flow.rerun("a")


def test_an_older_generation(done: Flow, flows: FlowProducer, dump: Dump) -> None:
    new = flows.submit(diamond(), flow_id="f", on_existing="restart")
    new.wait(timeout=LONG)
    for change in (done.rerun, done.complete_node, done.skip_node, done.cancel_node):
        with pytest.raises(Superseded):
            change("a")
    assert new.rerun("a") == ["a"]
    assert new.wait(timeout=LONG).status.completed == 5


def test_a_flow_that_is_being_stopped(
    flows: FlowProducer, redis_client: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = flows.submit(diamond(), flow_id="f")
    cancel = {"cancel": "cancelled", "reason": "why"}
    if path == "portable":
        cancel = {"cancel:0": json.dumps({"how": "cancelled", "reason": "why"})}
        advanced = Mock(side_effect=lambda *_: backend.backend_of(flow._ref).status(flow._ref))
        monkeypatch.setattr(changes, "advance", advanced)  # it came after that
    redis_client.hset("glide:{etl}:gmo:flow:f", mapping=cancel)
    with pytest.raises(FlowEnded, match="flow f is being stopped"):
        flow.complete_node("a", 1)
