"""Options as keywords: wherever a job is described, each replaces that of the template."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

import pytest

from glidemq_orchestrate import (
    AsyncBroadcast,
    AsyncQueue,
    Backoff,
    Broadcast,
    FlowNode,
    FlowSpec,
    JobOptions,
    JobTemplate,
    NewJob,
    Queue,
    check_flow,
)
from glidemq_orchestrate.errors import ConfigurationError, InvalidJob
from glidemq_orchestrate.flows import map_over, nested
from glidemq_orchestrate.flows.staged.growth import check_growth
from glidemq_orchestrate.jobs.options import AwaitedKeywords, OptionKeywords

URL = "valkey://127.0.0.1:1"
CAREFUL = JobOptions(attempts=3, backoff=Backoff("fixed", delay=2), timeout=60)
TAKERS: dict[str, Callable[..., JobOptions]] = {
    "FlowNode": lambda **given: FlowNode("a", **given).options,
    "NewJob": lambda **given: NewJob("a", **given).options,
    "JobTemplate": lambda **given: JobTemplate("a", **given).options,
}
CALLS: dict[str, Callable[..., Any]] = {
    "add": lambda **given: Queue("etl", URL).add("a", **given),
    "add_and_wait": lambda **given: Queue("etl", URL).add_and_wait("a", **given),
    "publish": lambda **given: Broadcast("news", URL).publish("a", **given),
}


def test_the_keywords_are_the_fields_of_the_options() -> None:
    assert {name: str(hint) for name, hint in _hints(OptionKeywords).items()} == {
        part.name: str(part.type) for part in fields(JobOptions)
    }
    assert {*OptionKeywords.__annotations__} - {*AwaitedKeywords.__annotations__} == {"timeout"}


def _hints(kind: Any) -> dict[str, Any]:
    return {
        name: getattr(hint, "__forward_arg__", hint)
        for base in (AwaitedKeywords, kind)
        for name, hint in base.__annotations__.items()
    }


def test_a_keyword_replaces_the_option_of_the_template(subtests: pytest.Subtests) -> None:
    for name, take in TAKERS.items():
        with subtests.test(name=name):
            assert take(attempts=5, ttl=10) == JobOptions(attempts=5, ttl=timedelta(seconds=10))
            assert take(options=CAREFUL, attempts=5) == replace(CAREFUL, attempts=5)
            assert take(options=CAREFUL, timeout=None) == replace(CAREFUL, timeout=None)
            assert take(options=CAREFUL) is CAREFUL
            assert take() == JobOptions()


def test_an_unknown_keyword_is_refused_with_the_closest_one(subtests: pytest.Subtests) -> None:
    for name in (*TAKERS, *CALLS):
        with subtests.test(name=name):
            take = TAKERS.get(name) or CALLS[name]
            with pytest.raises(InvalidJob, match="there is no option 'attemps'; did you mean 'attempts'"):
                take(attemps=3)
            with pytest.raises(InvalidJob, match="priority must be"):
                take(priority=5000)


def test_help_shows_the_keywords(subtests: pytest.Subtests) -> None:
    for method in (Queue.add, AsyncQueue.add, Broadcast.publish, AsyncBroadcast.publish):
        with subtests.test(method=method):
            assert "keywords" in inspect.signature(method).parameters
            assert "JobOptions" in (inspect.getdoc(method) or "")


def test_a_node_is_named_after_its_job_and_waits_in_the_queue_of_its_flow() -> None:
    node = FlowNode("clean", data={"month": 1}, after=["extract"], attempts=3, timeout=60)
    assert (node.queue, node.job, node.options) == ("", "clean", JobOptions(attempts=3, timeout=60))
    spec = FlowSpec("nightly", queue="etl", nodes=[FlowNode("extract", queue="slow", job="read"), node])
    assert [(one.name, one.queue, one.job) for one in spec.nodes] == [
        ("extract", "slow", "read"),
        ("clean", "etl", "clean"),
    ]
    assert [one.queue for one in check_flow(spec).nodes] == ["slow", "etl"]
    again = FlowSpec.from_dict(spec.to_dict())
    assert [(one.name, one.queue, one.job, one.options) for one in again.nodes] == [
        (one.name, one.queue, one.job, one.options) for one in spec.nodes
    ]


def test_the_name_of_a_part_does_not_become_its_job() -> None:
    inner = FlowSpec("inner", queue="etl", nodes=[FlowNode("clean")])
    assert [(one.name, one.job, one.queue) for one in nested(inner)] == [("inner/clean", "clean", "etl")]
    assert [(one.name, one.job) for one in map_over(FlowNode("load"), [1, 2])] == [
        ("load[0]", "load"),
        ("load[1]", "load"),
    ]


def test_a_file_may_leave_out_queue_and_job() -> None:
    wire = {"name": "x", "queue": "etl", "nodes": [{"name": "a"}, {"name": "b", "queue": "q", "job": "j"}]}
    assert [(one.name, one.queue, one.job) for one in FlowSpec.from_dict(wire).nodes] == [
        ("a", "etl", "a"),
        ("b", "q", "j"),
    ]


def test_a_node_without_any_queue_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"node a has no queue name.* Fix: .* queue, or the flow$"):
        check_flow(FlowSpec("x", [FlowNode("a")]))
    with pytest.raises(ConfigurationError, match=r"node a has no queue name.* do not take that of the flow$"):
        check_growth([FlowNode("a")])


def test_queue_and_job_of_a_node_are_keywords() -> None:
    with pytest.raises(TypeError, match="positional"):
        FlowNode("a", "etl", "work")  # type: ignore[call-arg]
