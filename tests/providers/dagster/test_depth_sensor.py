"""build_glidemq_queue_depth_sensor: one run for each time a queue fills up."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest
from dagster_glidemq import GlideMQResource, build_glidemq_queue_depth_sensor

from glidemq_orchestrate import ArrayNode, FlowProducer, FlowSpec, JobOptions, Queue
from glidemq_orchestrate.errors import ConfigurationError
from tests.providers.dagster.sensing import Ticks

WRONG_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({}, "has no bound"),
    ({"at_least": 1, "job": None}, "requests nothing"),
    ({"at_least": 1, "states": "waiting"}, "states of sensor deep"),
    ({"at_least": 1, "states": ["waiting-children"]}, "states of sensor deep"),
]


@dg.job
def target() -> None:
    pass


def sensor(**options: Any) -> dg.SensorDefinition:
    given = {"name": "deep", "queue": "etl", "job": target, **options}
    return build_glidemq_queue_depth_sensor(**given)


def keys(result: dg.SensorResult) -> list[str | None]:
    return [run.run_key for run in result.run_requests or []]


def test_a_run_is_requested_when_the_queue_fills_up_not_while_full(
    url: str, glidemq: GlideMQResource, instance: dg.DagsterInstance
) -> None:
    ticks = Ticks(sensor(at_least=3), glidemq, instance)
    with Queue("etl", url) as queue:
        assert not keys(ticks.tick())
        queue.add("a")
        assert not keys(ticks.tick())
        queue.add("a")
        queue.add("a", options=JobOptions(priority=3))
        first = ticks.tick()
        assert (first.run_requests or [])[0].tags["dagster-glidemq/jobs"] == "3"
        assert not keys(ticks.tick())
        queue.drain()
        told = ticks.tick().skip_reason
        assert told is not None
        assert told.skip_message == "queue etl has 0 jobs that are waiting or prioritized"
        for _ in range(4):
            queue.add("a")
        assert keys(ticks.tick()) != keys(first)


def test_elements_of_arrays_that_wait_count_like_jobs(
    url: str, glidemq: GlideMQResource, instance: dg.DagsterInstance
) -> None:
    ticks = Ticks(sensor(at_least=3), glidemq, instance)
    ticks.tick()
    with FlowProducer(url) as flows:
        flows.submit(FlowSpec("f", [ArrayNode("a", over=range(1_000))], queue="etl"))
    (request,) = ticks.tick().run_requests or []
    assert request.tags["dagster-glidemq/jobs"] == "1000"


def test_a_tick_that_was_not_stored_asks_for_the_same_run(
    url: str, glidemq: GlideMQResource, instance: dg.DagsterInstance
) -> None:
    ticks = Ticks(sensor(at_most=0), glidemq, instance)
    ticks.tick()
    first = keys(ticks.tick(stored=False))
    assert len(first) == 1
    assert keys(ticks.tick()) == first
    ticks.cursor = None  # reset by hand: no run key comes twice
    ticks.tick()
    assert keys(ticks.tick()) != first


def test_the_run_is_requested_again_while_full_if_wanted(
    url: str, glidemq: GlideMQResource, instance: dg.DagsterInstance
) -> None:
    ticks = Ticks(sensor(at_least=1, repeat=3_600), glidemq, instance)
    with Queue("etl", url) as queue:
        queue.add("a")
    ticks.tick()
    assert len(keys(ticks.tick())) == 1
    assert not keys(ticks.tick())
    stored = json.loads(str(ticks.cursor))
    ticks.cursor = json.dumps({**stored, "asked_at": stored["asked_at"] - 3_601})
    assert len(keys(ticks.tick())) == 1


def test_the_request_gets_the_number_of_jobs_in_the_chosen_states(
    url: str, glidemq: GlideMQResource, instance: dg.DagsterInstance
) -> None:
    def ask(number: int) -> dg.RunRequest:
        return dg.RunRequest(run_config={"number": number})

    ticks = Ticks(sensor(at_least=2, states=["delayed"], request=ask, job=None), glidemq, instance)
    with Queue("etl", url) as queue:
        queue.add("a")
        for _ in range(2):
            queue.add("a", options=JobOptions(delay=timedelta(hours=1)))
    ticks.tick()
    assert [run.run_config for run in ticks.tick().run_requests or []] == [{"number": 2}]


def test_what_cannot_be_right_is_refused_at_load_time(subtests: pytest.Subtests) -> None:
    for options, told in WRONG_ARGUMENTS:
        with subtests.test(options=options), pytest.raises(ConfigurationError, match=told):
            sensor(**options)


def test_a_cursor_that_is_none_of_its_own_is_refused(
    glidemq: GlideMQResource, instance: dg.DagsterInstance
) -> None:
    ticks = Ticks(sensor(at_least=1), glidemq, instance)
    ticks.cursor = "yesterday"
    with pytest.raises(ConfigurationError, match="reset it in the UI"):
        ticks.tick()
