"""build_glidemq_flow_sensor: every end of a flow at least once, in whatever order flows end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest
from dagster_glidemq import GlideMQResource, build_glidemq_event_sensor, build_glidemq_flow_sensor
from dagster_glidemq.sensors import flows as module
from redis import Redis

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec, JobOptions, Queue
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.flows import FlowStatus
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX, QueueKeys
from tests.conftest import RunWorker
from tests.node import PlainNode
from tests.providers.dagster.sensing import Ticks, trim_events

PARTS = dg.DynamicPartitionsDefinition(name="flows")

WRONG_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"job": None}, "requests nothing"),
    ({"queues": "etl"}, "queues of sensor ended must be a list"),
    ({"queues": []}, "queues of sensor ended must be a list"),
    ({"states": ["running"]}, "states of sensor ended"),
]


@dg.asset(partitions_def=PARTS)
def taken() -> None:
    pass


@dg.job
def target() -> None:
    pass


def sensor(**options: Any) -> dg.SensorDefinition:
    given = {"name": "ended", "queues": ["etl"], "job": target, **options}
    return build_glidemq_flow_sensor(**given)


def one(name: str = "one", job: str = "step", queue: str = "etl", **options: Any) -> FlowSpec:
    return FlowSpec(name, nodes=[FlowNode("only", queue=queue, job=job)], **options)


def ended(runs: list[dg.RunRequest]) -> list[tuple[str, str, str]]:
    names = ("flow_id", "generation", "state")
    return [tuple(run.tags[f"dagster-glidemq/{name}"] for name in names) for run in runs]  # type: ignore[misc]


@pytest.fixture
def flows(url: str) -> Iterator[FlowProducer]:
    with FlowProducer(url) as producer:
        yield producer


@pytest.fixture
def working(run_worker: RunWorker) -> set[str]:
    """A worker; names in the set fail."""
    broken: set[str] = set()

    def step(ctx: Any) -> None:
        if ctx.flow_id in broken:
            raise ValueError("broken")

    run_worker(["etl", "other"], {"step": step})
    return broken


@pytest.mark.usefixtures("working")
def test_flows_are_handed_over_in_the_order_of_their_ends(
    flows: FlowProducer, glidemq: GlideMQResource, instance: dg.DagsterInstance
) -> None:
    ticks = Ticks(sensor(), glidemq, instance)
    flows.submit(one(), flow_id="before").wait()
    assert ticks.requested() == []
    later = JobOptions(delay=timedelta(hours=1))
    slow = FlowSpec("slow", nodes=[FlowNode("only", queue="etl", job="step", options=later)])
    first = flows.submit(slow, flow_id="first")
    flows.submit(one(), flow_id="second").wait()
    assert ended(ticks.requested()) == [("second", "0", "completed")]
    first.cancel("enough")
    first.wait()
    assert ended(ticks.requested()) == [("first", "0", "cancelled")]


def test_a_flow_that_only_node_workers_serve_ends_by_the_ticks(
    flows: FlowProducer, redis_client: Redis, glidemq: GlideMQResource, instance: dg.DagsterInstance
) -> None:
    of_events = build_glidemq_event_sensor(
        name="told", queue="etl", kinds=["flow.completed"], start="earliest", job=target
    )
    ticks, told = Ticks(sensor(start="earliest"), glidemq, instance), Ticks(of_events, glidemq, instance)
    nodes = [FlowNode("a", queue="etl", job="step"), FlowNode("b", queue="etl", job="step", after=["a"])]
    flow = flows.submit(FlowSpec("node", nodes), flow_id="node")
    node = PlainNode(redis_client, at=int(time.time() * 1000))
    for each in (told, ticks):
        taken = node.begin_next()
        assert taken, "the job whose dependency has ended waits for no other supervisor"
        node.end(*taken)
        found = each.tick().run_requests or []
    assert ended(list(found)) == [("node", "0", "completed")]
    assert len(told.requested()) == 1
    assert not flow.is_supervised(), "others may take over between two ticks"


def test_a_sensor_that_may_not_supervise_says_so(
    url: str, flows: FlowProducer, redis_client: Any, instance: dg.DagsterInstance
) -> None:
    flows.submit(one(), flow_id="node")
    redis_client.execute_command("ACL", "SETUSER", "reader", "on", ">s3cret", "%R~*", "&*", "+@all")
    try:
        reading = GlideMQResource(url=url, user="reader", password="s3cret")
        ticks = Ticks(sensor(start="earliest"), reading, instance)
        assert ticks.requested() == []
        assert any("etl has no supervisor" in line for line in ticks.said)
    finally:
        redis_client.execute_command("ACL", "DELUSER", "reader")


@pytest.mark.usefixtures("working")
def test_a_tick_that_was_not_stored_is_repeated_with_the_same_run_keys(
    flows: FlowProducer, glidemq: GlideMQResource, instance: dg.DagsterInstance
) -> None:
    ticks = Ticks(sensor(start="earliest"), glidemq, instance)
    for number in range(3):
        flows.submit(one(), flow_id=f"f{number}").wait()
    keys = [[run.run_key for run in ticks.tick(stored=False).run_requests or []] for _ in range(2)]
    assert keys[0] == keys[1]
    assert len(set(keys[0])) == 3


def test_repaired_flows_and_generations_have_keys_of_their_own(
    flows: FlowProducer, glidemq: GlideMQResource, instance: dg.DagsterInstance, working: set[str]
) -> None:
    ticks = Ticks(sensor(start="earliest"), glidemq, instance)
    working.add("f")
    flow = flows.submit(one(), flow_id="f")
    flow.wait()
    found = ticks.requested()
    working.clear()
    flow.retry_failed()
    flow.wait()
    found += ticks.requested()
    flows.submit(one(), flow_id="f", on_existing="restart").wait()
    found += ticks.requested()
    assert ended(found) == [("f", "0", "failed"), ("f", "0", "completed"), ("f", "1", "completed")]
    assert len({run.run_key for run in found}) == 3


def test_a_generation_that_another_one_has_ended_is_handed_over_too(
    flows: FlowProducer, glidemq: GlideMQResource, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    ticks = Ticks(sensor(start="earliest"), glidemq, instance)
    flows.submit(one(job="other"), flow_id="f")
    again = flows.submit(one(job="step"), flow_id="f", on_existing="restart")
    run_worker(["etl"], {"step": lambda ctx: None})
    again.wait()
    assert ended(ticks.requested()) == [("f", "0", "cancelled"), ("f", "1", "completed")]


def test_a_flow_that_runs_again_comes_when_it_has_ended(
    flows: FlowProducer, glidemq: GlideMQResource, instance: dg.DagsterInstance, run_worker: RunWorker
) -> None:
    ticks = Ticks(sensor(start="earliest"), glidemq, instance)
    flow = flows.submit(one(), flow_id="f")
    flow.cancel("first")
    flow.wait()
    flow.retry_failed()
    assert ticks.requested() == []
    run_worker(["etl"], {"step": lambda ctx: None})
    flow.wait()
    assert ended(ticks.requested()) == [("f", "0", "completed")]


def test_states_labels_and_name_choose_flows(
    flows: FlowProducer, glidemq: GlideMQResource, instance: dg.DagsterInstance, working: set[str]
) -> None:
    working.add("failed")
    for flow_id, spec in {
        "failed": one(labels={"team": "a", "env": "live"}),
        "fine": one(labels={"team": "a", "env": "live"}),
        "test": one(labels={"team": "a", "env": "test"}),
        "named": one("two"),
    }.items():
        flows.submit(spec, flow_id=flow_id).wait()
    for options, wanted in (
        ({"states": ["failed"]}, ["failed"]),
        ({"labels": {"team": "a", "env": "live"}}, ["failed", "fine"]),
        ({"flow_name": "two"}, ["named"]),
        ({"flow_name": "one", "states": ["completed"]}, ["fine", "test"]),
    ):
        found = Ticks(sensor(start="earliest", **options), glidemq, instance).requested()
        assert [flow_id for flow_id, _, _ in ended(found)] == wanted


@pytest.mark.usefixtures("working")
def test_all_flows_that_ended_in_a_gap_are_handed_over_by_pages(
    flows: FlowProducer,
    glidemq: GlideMQResource,
    instance: dg.DagsterInstance,
    redis_client: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PAGE", 3)
    ticks = Ticks(sensor(max_requests=2), glidemq, instance)
    flows.submit(one(), flow_id="old").wait()
    ticks.requested()
    redis_client.hset(QueueKeys(DEFAULT_PREFIX, "etl").flow("old"), "finished_at", 1)
    for number in range(8):
        flows.submit(one(), flow_id=f"f{number}").wait()
    flows.submit(one(), flow_id="f0", on_existing="restart").wait()
    flows.submit(one(queue="other"), flow_id="elsewhere").wait()
    trim_events(redis_client, "etl", 3)
    found = ticks.requested()
    assert any("are lost" in line for line in ticks.said)
    wanted = {(f"f{number}", "0") for number in range(8)} | {("f0", "1")}
    assert {(flow_id, generation) for flow_id, generation, _ in ended(found)} == wanted
    assert ticks.requested() == []
    flows.submit(one(), flow_id="new").wait()
    assert ended(ticks.requested()) == [("new", "0", "completed")]


@pytest.mark.usefixtures("working")
def test_what_is_trimmed_while_a_gap_is_being_read_is_not_lost_either(
    flows: FlowProducer,
    glidemq: GlideMQResource,
    instance: dg.DagsterInstance,
    redis_client: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PAGE", 2)
    ticks = Ticks(sensor(max_requests=2), glidemq, instance)
    flows.submit(one(), flow_id="old").wait()
    ticks.requested()
    found: list[dg.RunRequest] = []
    for turn in range(4):
        for number in range(4):
            flows.submit(one(), flow_id=f"f{turn}-{number}").wait()
        trim_events(redis_client, "etl", 1)
        found += ticks.tick().run_requests or []
    found += ticks.requested()
    wanted = {f"f{turn}-{number}" for turn in range(4) for number in range(4)}
    assert {flow_id for flow_id, _, _ in ended(found)} >= wanted


@pytest.mark.usefixtures("working")
def test_no_queue_starves_and_a_new_one_begins_where_it_is(
    flows: FlowProducer, glidemq: GlideMQResource, instance: dg.DagsterInstance
) -> None:
    options = {"start": "latest", "max_requests": 1}
    ticks = Ticks(sensor(**options), glidemq, instance)
    ticks.tick()
    flows.submit(one(queue="other"), flow_id="unseen").wait()
    cursor = ticks.cursor
    ticks = Ticks(sensor(queues=["etl", "other"], **options), glidemq, instance)
    ticks.cursor = cursor
    ticks.tick()
    for number in range(3):
        flows.submit(one(), flow_id=f"e{number}").wait()
        flows.submit(one(queue="other"), flow_id=f"o{number}").wait()
    found = [flow_id for _ in range(20) for flow_id, _, _ in ended(list(ticks.tick().run_requests or []))]
    assert sorted(found) == ["e0", "e1", "e2", "o0", "o1", "o2"]
    assert set(found[:2]) == {"e0", "o0"}


@pytest.mark.usefixtures("working")
def test_a_flow_that_was_removed_unread_is_told_and_passed_over(
    flows: FlowProducer,
    glidemq: GlideMQResource,
    instance: dg.DagsterInstance,
    redis_client: Any,
    url: str,
) -> None:
    ticks = Ticks(sensor(start="earliest"), glidemq, instance)
    flows.submit(one(), flow_id="gone").wait()
    redis_client.delete(QueueKeys(DEFAULT_PREFIX, "etl").flow("gone"))
    flows.submit(one(), flow_id="kept").wait()
    assert ended(ticks.requested()) == [("kept", "0", "completed")]
    assert any("flow gone has ended and was removed" in line for line in ticks.said)


@pytest.mark.usefixtures("working")
def test_dagster_takes_the_runs_with_partitions_of_their_own(
    flows: FlowProducer, glidemq: GlideMQResource, instance: dg.DagsterInstance
) -> None:
    job = dg.define_asset_job("take", selection=[taken])
    made = sensor(job=job, partitions=PARTS, start="earliest", partition_key=lambda flow: f"of-{flow.id}")
    defs = dg.Definitions(assets=[taken], jobs=[job], sensors=[made], resources={"glidemq": glidemq})
    flows.submit(one(), flow_id="f").wait()
    repository = defs.get_repository_def()
    with (
        dg.instance_for_test() as stored,
        dg.partition_loading_context(dynamic_partitions_store=stored),
        dg.build_sensor_context(
            stored,
            repository_def=repository,
            instance_ref=stored.get_ref(),
            resources={"glidemq": glidemq},
        ) as context,
    ):
        data = repository.get_sensor_def("ended").evaluate_tick(context)
        assert [run.partition_key for run in data.run_requests or []] == ["of-f"]
        (request,) = data.dynamic_partitions_requests or []
        assert (request.partitions_def_name, list(request.partition_keys)) == ("flows", ["of-f"])


@pytest.mark.usefixtures("working")
def test_the_partition_of_a_flow_is_its_id_as_far_as_dagster_takes_it(
    flows: FlowProducer, glidemq: GlideMQResource, instance: dg.DagsterInstance
) -> None:
    flows.submit(one(), flow_id="a...b").wait()
    found = Ticks(sensor(partitions=PARTS, start="earliest"), glidemq, instance).tick()
    assert [run.partition_key for run in found.run_requests or []] == ["a___b"]
    instance.add_dynamic_partitions("flows", ["a___b"])
    assert PARTS.get_partition_keys(dynamic_partitions_store=instance) == ["a___b"]


@pytest.mark.usefixtures("working")
def test_a_request_function_may_record_the_end_as_an_asset(
    flows: FlowProducer, glidemq: GlideMQResource, instance: dg.DagsterInstance
) -> None:
    def ask(flow: FlowStatus) -> dg.AssetMaterialization:
        return dg.AssetMaterialization("nightly", partition=flow.id, metadata={"nodes": flow.total})

    flows.submit(one(), flow_id="f").wait()
    made = sensor(job=None, request=ask, partitions=PARTS, start="earliest")
    found = Ticks(made, glidemq, instance).tick()
    assert [(event.partition, event.metadata["nodes"].value) for event in found.asset_events] == [("f", 1)]
    assert [list(one.partition_keys) for one in found.dynamic_partitions_requests or []] == [["f"]]


@pytest.mark.parametrize("cursor", ["yesterday", "[]", '{"etl": 7}', '{"etl": ["1-0", ["a", "b"]]}'])
def test_a_cursor_that_is_none_of_its_own_is_refused(
    glidemq: GlideMQResource, instance: dg.DagsterInstance, cursor: str
) -> None:
    ticks = Ticks(sensor(), glidemq, instance)
    ticks.cursor = cursor
    with pytest.raises(ConfigurationError, match="reset it in the UI"):
        ticks.tick()


def test_what_cannot_be_right_is_refused_at_load_time(subtests: pytest.Subtests) -> None:
    for options, told in WRONG_ARGUMENTS:
        with subtests.test(options=options), pytest.raises(ConfigurationError, match=told):
            sensor(**options)


def test_a_queue_that_nobody_has_used_has_no_flows(
    url: str, glidemq: GlideMQResource, instance: dg.DagsterInstance
) -> None:
    with Queue("etl", url) as queue:
        queue.add("step")
    ticks = Ticks(sensor(queues=["etl", "never"], start="earliest"), glidemq, instance)
    assert ticks.requested() == []
