"""Where the tags of a step and its run put it, and what its job is called."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from dagster_glidemq.sensors import flows, queues
from dagster_glidemq.step_job import RunJob, StepJob, place_of_run, place_of_step, run_job_id, step_job_id

from glidemq_orchestrate import FlowState
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.events import Event
from glidemq_orchestrate.flows import FlowStatus
from glidemq_orchestrate.flows.status import FlowId
from glidemq_orchestrate.wire.keys import check_job_id

OURS = "dagster-glidemq/"

PRIORITIES: list[tuple[Mapping[str, str], Mapping[str, str], int]] = [
    ({}, {}, 0),
    ({"dagster/priority": "1"}, {}, 1024),
    ({"dagster/priority": "-3"}, {}, 0),
    ({f"{OURS}priority": "1024", "dagster/priority": "1"}, {}, 1),
    ({f"{OURS}priority": "9999"}, {}, 1),
    ({"dagster/priority": "2"}, {f"{OURS}priority": "5"}, 1023),
    ({}, {f"{OURS}priority": "5", "dagster/priority": "1"}, 1020),
    ({}, {"dagster/priority": "3"}, 1022),
]

WRONG_TAGS: list[Mapping[str, str]] = [
    {"priority": "high"},
    {"queue": "a:b"},
    {"queue": ""},
    {"concurrency_limit": "2"},
    {"rate_limit": "1/1"},
    {"concurrency_key": "k", "concurrency_limit": "0"},
    {"concurrency_key": "k", "concurrency_limit": "many"},
    {"concurrency_key": "k", "rate_limit": "10"},
    {"concurrency_key": "k", "rate_limit": "0/10"},
    {"concurrency_key": "k", "rate_limit": "1/inf"},
    {"concurrency_key": ""},
]


def test_a_higher_number_runs_earlier(subtests: pytest.Subtests) -> None:
    for step, run, priority in PRIORITIES:
        with subtests.test(step=step):
            assert place_of_step(step, run, "steps").options.priority == priority


def test_a_step_overrides_its_run_and_the_run_the_config() -> None:
    run = {f"{OURS}queue": "of-run", f"{OURS}run_queue": "runs-2"}
    assert place_of_step({}, {}, "steps").queue == "steps"
    assert place_of_step({}, run, "steps").queue == "of-run"
    assert place_of_step({f"{OURS}queue": "of-step"}, run, "steps").queue == "of-step"
    assert place_of_run({}, "runs").queue == "runs"
    assert place_of_run(run, "runs").queue == "runs-2"


def test_what_sensors_tell_of_a_run_does_not_move_its_steps() -> None:
    event = Event("1-1", "completed", "a-job", "f", {})
    flow = FlowStatus(FlowId("f"), "nightly", FlowState.COMPLETED, "etl", 1, 1, 0, "", {}, None, None)
    told: dict[str, str] = {}
    depth, ended = queues._depth_request("etl", 3), flows._request(flow, None)
    for request in (queues._event_request("etl", event), depth, ended):
        told |= request.tags
    assert told[f"{OURS}watched_queue"] == "etl"
    assert place_of_step({}, told, "steps").queue == "steps"


def test_a_misspelt_tag_is_refused_with_those_that_there_are(subtests: pytest.Subtests) -> None:
    for where in ("step", "run"):
        with subtests.test(where=where):
            wrong = {f"{OURS}qeue": "large"}
            step, run = (wrong, {}) if where == "step" else ({}, wrong)
            expected = f"there is no tag {OURS}qeue; the tags of steps are {OURS}queue, "
            with pytest.raises(ConfigurationError, match=expected):
                place_of_step(step, run, "steps")


def test_a_concurrency_key_has_limits() -> None:
    tags = {f"{OURS}concurrency_key": "api", f"{OURS}concurrency_limit": "3", f"{OURS}rate_limit": "10/1.5"}
    ordering = place_of_step(tags, {}, "steps").options.ordering
    assert ordering is not None
    assert (ordering.key, ordering.concurrency) == ("api", 3)
    assert ordering.rate_limit is not None
    assert (ordering.rate_limit.max, ordering.rate_limit.per) == (10, timedelta(seconds=1.5))
    ordering = place_of_step({**tags, f"{OURS}rate_limit": "10/5m"}, {}, "steps").options.ordering
    assert ordering is not None
    assert ordering.rate_limit is not None
    assert ordering.rate_limit.per == timedelta(minutes=5)
    alone = place_of_step({f"{OURS}concurrency_key": "api"}, {}, "steps").options.ordering
    assert alone is not None
    assert alone.concurrency == 1


def test_a_value_that_cannot_be_is_refused_by_its_tag(subtests: pytest.Subtests) -> None:
    for tags in WRONG_TAGS:
        with subtests.test(tags=tags), pytest.raises(ConfigurationError, match=f"{OURS}({'|'.join(tags)})"):
            place_of_step({OURS + name: value for name, value in tags.items()}, {}, "steps")


def test_the_job_of_an_attempt_has_an_id_of_its_own(subtests: pytest.Subtests) -> None:
    for step in ("extract", "graph.inner[a]", "a:b", "x" * 500, "ümlaut"):
        with subtests.test(step=step):
            ids = [step_job_id("run", step, 0), step_job_id("run", step, 1), step_job_id("other", step, 0)]
            assert len(set(ids)) == 3
            assert all(check_job_id(one) for one in ids)
            assert ids[0] == step_job_id("run", step, 0)
            assert run_job_id("run", 0) != run_job_id("run", 1)


def test_a_payload_of_somebody_else_is_refused_without_showing_it(subtests: pytest.Subtests) -> None:
    foreign: list[Any] = [None, [], "x", {}, {"run_id": "r"}]
    for data in foreign:
        with subtests.test(data=data):
            for kind in (StepJob, RunJob):
                with pytest.raises(ValueError, match="payload"):
                    kind.read(data)
