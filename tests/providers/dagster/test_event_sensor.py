"""build_glidemq_event_sensor: at least once, in order, from a position that survives."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest
from dagster_glidemq import GlideMQResource, build_glidemq_event_sensor
from dagster_glidemq.sensors.tick import RequestResult

from glidemq_orchestrate import Queue
from glidemq_orchestrate.errors import ConfigurationError, TransportError
from glidemq_orchestrate.events import Event
from tests.conftest import Eventually, RunWorker
from tests.providers.dagster.sensing import Ticks, trim_events

WRONG_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"job": None}, "requests nothing"),
    ({"queue": "a:b"}, "queue"),
    ({"kinds": "completed"}, "kinds"),
    ({"max_requests": 0}, "max_requests"),
]


@dg.job
def target() -> None:
    pass


def sensor(**options: Any) -> dg.SensorDefinition:
    return build_glidemq_event_sensor(**{"name": "ends", "queue": "etl", "job": target, **options})


def finish(url: str, count: int, name: str = "step") -> list[str]:
    with Queue("etl", url) as queue:
        return [queue.add_and_wait(name, number) for number in range(count)]


@pytest.fixture
def working(run_worker: RunWorker) -> None:
    def fail(ctx: Any) -> None:
        raise ValueError("broken")

    run_worker(["etl"], {"step": lambda ctx: ctx.data, "fail": fail})


@pytest.mark.usefixtures("working")
def test_the_first_tick_stores_the_tip_and_later_ones_what_is_new(
    url: str, glidemq: GlideMQResource, instance: dg.DagsterInstance
) -> None:
    finish(url, 2)
    ticks = Ticks(sensor(), glidemq, instance)
    assert not ticks.tick().run_requests
    finish(url, 3)
    found = ticks.tick()
    assert found.run_requests is not None
    assert len(found.run_requests) == 3
    first = found.run_requests[0]
    assert first.tags["dagster-glidemq/watched_queue"] == "etl"
    assert first.tags["dagster-glidemq/kind"] == "completed"
    assert first.run_key == f"etl/{first.tags['dagster-glidemq/event']}/completed"
    assert not ticks.tick().run_requests
    assert ticks.tick().skip_reason == dg.SkipReason("nothing new on queue etl")


@pytest.mark.usefixtures("working")
def test_a_tick_that_was_not_stored_is_repeated_with_the_same_run_keys(
    url: str, glidemq: GlideMQResource, instance: dg.DagsterInstance
) -> None:
    ticks = Ticks(sensor(start="earliest"), glidemq, instance)
    finish(url, 3)
    keys = [[run.run_key for run in ticks.tick(stored=False).run_requests or []] for _ in range(2)]
    assert keys[0] == keys[1]
    assert len(set(keys[0])) == 3


@pytest.mark.usefixtures("working")
def test_from_the_earliest_all_that_are_kept_come_in_order(
    url: str, glidemq: GlideMQResource, instance: dg.DagsterInstance
) -> None:
    finish(url, 7)

    def ask(event: Event) -> dg.RunRequest:
        return dg.RunRequest(tags={"number": str(event.result)})

    ticks = Ticks(sensor(start="earliest", request=ask, max_requests=3), glidemq, instance)
    counts, numbers = [], []
    for _ in range(4):
        runs = ticks.tick().run_requests or []
        counts.append(len(runs))
        numbers += [int(run.tags["number"]) for run in runs]
    assert counts == [3, 3, 1, 0]
    assert numbers == list(range(7))


@pytest.mark.usefixtures("working")
def test_only_the_chosen_kinds_are_handed_over(
    url: str, glidemq: GlideMQResource, instance: dg.DagsterInstance, eventually: Eventually
) -> None:
    with Queue("etl", url) as queue:
        job = queue.add("fail")
        eventually(lambda: queue.get_job(job).state == "failed")
    finish(url, 1)
    for kinds, wanted in ((["failed"], ["failed"]), (["added"], ["added", "added"])):
        ticks = Ticks(sensor(start="earliest", kinds=kinds), glidemq, instance)
        assert [run.tags["dagster-glidemq/kind"] for run in ticks.requested()] == wanted
    ticks = Ticks(sensor(start="earliest", kinds=["failed"]), glidemq, instance)
    assert ticks.requested()[0].tags["dagster-glidemq/event_job_id"] == job


@pytest.mark.usefixtures("working")
def test_a_request_function_answers_in_any_of_the_ways_of_dagster(
    url: str, glidemq: GlideMQResource, instance: dg.DagsterInstance
) -> None:
    finish(url, 4)
    key = dg.AssetKey("orders")
    answers: list[RequestResult] = [
        [dg.RunRequest(), dg.RunRequest(run_key="own"), dg.RunRequest()],
        dg.AssetMaterialization(key, metadata={"rows": 3}),
        [dg.AssetObservation(key), dg.AssetCheckEvaluation(key, "fresh", passed=True, metadata={})],
        None,
    ]
    ask = iter(answers).__next__
    ticks = Ticks(sensor(start="earliest", request=lambda _event: ask(), job=None), glidemq, instance)
    found = ticks.tick()
    first = [run.run_key for run in found.run_requests or []]
    assert first[1] == "own"
    assert first[2] == f"{first[0]}/2"
    assert [type(event).__name__ for event in found.asset_events] == [
        "AssetMaterialization",
        "AssetObservation",
        "AssetCheckEvaluation",
    ]
    skipping = sensor(start="earliest", request=lambda event: dg.SkipReason(f"{event.result} is late"))
    skipped = Ticks(skipping, glidemq, instance).tick()
    assert skipped.skip_reason == dg.SkipReason("0 is late; 1 is late; 2 is late; 3 is late")
    wrong: Any = lambda _event: "a run, please"  # noqa: E731  not what the types allow
    with pytest.raises(ConfigurationError, match="got str"):
        Ticks(sensor(start="earliest", request=wrong), glidemq, instance).tick()


@pytest.mark.usefixtures("working")
def test_an_event_whose_request_fails_is_not_passed_over(
    url: str, glidemq: GlideMQResource, instance: dg.DagsterInstance
) -> None:
    broken = True

    def ask(event: Event) -> dg.RunRequest:
        if broken and event.result == 2:
            raise ValueError("no such day")
        return dg.RunRequest(tags={"number": str(event.result)})

    finish(url, 4)
    ticks = Ticks(sensor(start="earliest", request=ask, max_requests=2), glidemq, instance)
    handed = [run.tags["number"] for run in ticks.tick().run_requests or []]
    with pytest.raises(ValueError, match="no such day"):
        ticks.tick()
    broken = False
    assert handed + [run.tags["number"] for run in ticks.requested()] == ["0", "1", "2", "3"]


@pytest.mark.usefixtures("working")
def test_events_that_were_trimmed_are_told_and_what_is_left_is_handed_over(
    url: str, glidemq: GlideMQResource, instance: dg.DagsterInstance, redis_client: Any
) -> None:
    watched = Ticks(sensor(kinds=["completed", "gmo.events-lost"]), glidemq, instance)
    ticks = Ticks(sensor(), glidemq, instance)
    finish(url, 1)
    for each in (watched, ticks):
        each.tick()
    finish(url, 5)
    trim_events(redis_client, "etl", 4)
    assert len(ticks.requested()) < 5
    assert any("were trimmed before they were read" in line for line in ticks.said)
    kinds = [run.tags["dagster-glidemq/kind"] for run in watched.requested()]
    assert kinds[0] == "gmo.events-lost"
    assert "completed" in kinds[1:]
    ticks.said.clear()
    finish(url, 1)
    assert len(ticks.requested()) == 1
    assert not ticks.said


def test_a_server_that_is_away_fails_the_tick_soon_and_moves_nothing(instance: dg.DagsterInstance) -> None:
    away = GlideMQResource(url="valkey://127.0.0.1:1", patience=0.2)
    ticks = Ticks(sensor(), away, instance)
    ticks.cursor = "5-0"
    with pytest.raises(TransportError):
        ticks.tick()
    assert ticks.cursor == "5-0"


def test_a_cursor_that_is_none_of_its_own_is_refused(
    glidemq: GlideMQResource, instance: dg.DagsterInstance
) -> None:
    ticks = Ticks(sensor(), glidemq, instance)
    ticks.cursor = "yesterday"
    with pytest.raises(ConfigurationError, match="'yesterday' is not a position"):
        ticks.tick()


def test_what_cannot_be_right_is_refused_at_load_time(subtests: pytest.Subtests) -> None:
    for options, told in WRONG_ARGUMENTS:
        with subtests.test(options=options), pytest.raises(ConfigurationError, match=told):
            sensor(**options)
