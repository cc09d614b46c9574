"""What a conflict tells: in which nodes the flow with an id differs from another specification."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Dependency, FlowNode, FlowProducer, FlowSpec, JobOptions, Rule
from glidemq_orchestrate.errors import FlowConflict
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.dependencies import OnFailure
from glidemq_orchestrate.flows.submission import submit_flow
from glidemq_orchestrate.foundation.clock import SystemClock
from tests.server.conftest import LONG, REACHES

if TYPE_CHECKING:
    from tests.conftest import RunWorker
    from tests.server.conftest import Dump, Hand

Change = Callable[[list[FlowNode]], list[FlowNode]]


def nodes() -> list[FlowNode]:
    return [
        FlowNode("load", queue="etl", job="work", data={"b": 1, "a": 2}),
        FlowNode("check", queue="etl", job="work", after=["load"], options=JobOptions(attempts=2)),
        FlowNode("send", queue="etl", job="work", after=["load", "check"]),
    ]


def changed(at: int, **fields: Any) -> Change:
    return lambda nodes: [*nodes[:at], replace(nodes[at], **fields), *nodes[at + 1 :]]


CHANGES: list[tuple[Change, dict[str, tuple[str, ...]]]] = [
    (changed(0, job="other"), {"load": ("job",)}),
    (changed(0, data={"a": 2, "b": 2}), {"load": ("data",)}),
    (changed(1, options=JobOptions(attempts=3)), {"check": ("options",)}),
    (changed(1, options=JobOptions(attempts=2, priority=3)), {"check": ("options",)}),
    (changed(1, queue="else"), {"check": ("queue",)}),
    (changed(2, after=["check"]), {"send": ("after",)}),
    (changed(2, rule=Rule.ALL_DONE), {"send": ("policies",)}),
    (changed(2, on_failure=OnFailure.IGNORE), {"send": ("policies",)}),
    (changed(2, queue_timeout=timedelta(hours=1)), {"send": ("policies",)}),
    (
        changed(2, after=[Dependency("load", on_failure=OnFailure.IGNORE), "check"]),
        {"send": ("policies",)},
    ),
    (lambda nodes: nodes[:2], {"send": ("gone",)}),
    (lambda nodes: [*nodes, FlowNode("more", queue="etl", job="work")], {"more": ("new",)}),
    (
        lambda nodes: [
            replace(nodes[0], job="other", data=7),
            *nodes[1:2],
            FlowNode("more", queue="etl", job="work"),
        ],
        {"more": ("new",), "send": ("gone",), "load": ("job", "data")},
    ),
]


@pytest.fixture(params=list(REACHES.values()), ids=list(REACHES))
def submit(hand: Hand, request: pytest.FixtureRequest) -> Callable[..., None]:
    def made(nodes: list[FlowNode], name: str = "n", **kw: Any) -> None:
        spec = check_flow(FlowSpec(name, nodes, **kw))
        hand.run(submit_flow("glide", spec, "f", "attach", SystemClock(), reach=request.param))

    return made


def test_the_nodes_that_differ_are_named(submit: Callable[..., None], dump: Dump, redis_client: Any) -> None:
    for change, expected in CHANGES:
        redis_client.flushdb()
        submit(nodes())
        before = dump()
        with pytest.raises(
            FlowConflict, match=r"^flow id f belongs to another flow; nodes that differ: "
        ) as caught:
            submit(change(nodes()))
        assert caught.value.differences == expected
        assert str(caught.value).endswith(
            ": " + ", ".join(f"{name} ({', '.join(what)})" for name, what in expected.items())
        )
        assert dump() == before


def test_what_shapes_no_node_is_not_put_on_one(submit: Callable[..., None]) -> None:
    submit(nodes())
    with pytest.raises(
        FlowConflict, match=r"^flow id f belongs to another flow; differs in: name$"
    ) as caught:
        submit(nodes(), name="other")
    assert (caught.value.differences, caught.value.fields) == ({}, ("name",))


def test_another_home_queue_is_found(submit: Callable[..., None]) -> None:
    submit(nodes())
    with pytest.raises(FlowConflict) as caught:
        submit([replace(node, queue="else") for node in nodes()])
    assert caught.value.differences == dict.fromkeys(("load", "check", "send"), ("queue",))


def test_of_many_the_first_are_named(submit: Callable[..., None]) -> None:
    submit([FlowNode(f"n{at:03}", queue="etl", job="work", data=at) for at in range(300)])
    with pytest.raises(FlowConflict, match=r"n004 \(data\), \.\.\.$") as caught:
        submit([FlowNode(f"n{at:03}", queue="etl", job="work", data=-at - 1) for at in range(300)])
    assert list(caught.value.differences) == [f"n{at:03}" for at in range(20)]


def test_payloads_are_not_shown(submit: Callable[..., None]) -> None:
    submit([FlowNode("a", queue="etl", job="work", data="hunter2")])
    with pytest.raises(FlowConflict) as caught:
        submit([FlowNode("a", queue="etl", job="work", data="hunter3")])
    assert "hunter" not in repr(caught.value)


def test_nodes_that_a_handler_added_are_not_compared(flows: FlowProducer, run_worker: RunWorker) -> None:
    def grow(ctx: Any) -> None:
        ctx.add_nodes([FlowNode("child", queue="etl", job="work")])

    run_worker(["etl"], {"grow": grow, "work": lambda _: None})
    flows.submit(FlowSpec("n", [FlowNode("a", queue="etl", job="grow")]), flow_id="f").wait(timeout=LONG)
    with pytest.raises(FlowConflict) as caught:
        flows.submit(FlowSpec("n", [FlowNode("a", queue="etl", job="grow", data=1)]), flow_id="f")
    assert caught.value.differences == {"a": ("data",)}


def test_a_job_that_is_gone_is_not_compared(submit: Callable[..., None], redis_client: Any) -> None:
    submit([FlowNode("a", queue="etl", job="work"), FlowNode("b", queue="etl", job="work")])
    redis_client.delete("glide:{etl}:job:f~a")
    with pytest.raises(FlowConflict) as caught:
        submit(
            [FlowNode("a", queue="etl", job="work", data=1), FlowNode("b", queue="etl", job="work", data=1)]
        )
    assert caught.value.differences == {"b": ("data",)}


def test_a_job_that_cannot_be_read_is_a_conflict_too(submit: Callable[..., None], redis_client: Any) -> None:
    for field, text in [
        ("data", "{"),
        ("opts", "no"),
        ("opts", "[1]"),
        ("data", '{"a":1,"b":'),
        ("data", "[" * 99_999 + '"a":"b":'),
    ]:
        redis_client.flushdb()
        submit([FlowNode("a", queue="etl", job="work")])
        redis_client.hset("glide:{etl}:job:f~a", field, text)
        with pytest.raises(FlowConflict, match="flow id f belongs to another flow"):
            submit([FlowNode("a", queue="etl", job="work", data={"a": 1, "b": 2})])


def test_the_error_crosses_processes_whole() -> None:
    error = pickle.loads(pickle.dumps(FlowConflict("text", {"a": ("new",)}, ["name"])))
    assert (str(error), error.differences, error.fields) == ("text", {"a": ("new",)}, ("name",))
