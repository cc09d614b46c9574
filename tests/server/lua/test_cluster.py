"""A cluster of three primaries: every queue in one slot, and a library lost on one primary comes back.

Nearly all other tests of this folder run on a primary of the same cluster. A server refuses a function that
touches a key of another slot than that of its keys, so each of those tests proves that none is touched.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from redis.crc import key_slot

import glidemq_orchestrate
from tests.server.lua.conftest import Queue
from tests.server.lua.servers import load_libraries, owner_of

T = 1700000000000
# One queue for each primary.
NAMES = ("b", "c", "q")


@pytest.fixture(params=NAMES)
def queue(request: pytest.FixtureRequest, cluster_ports: list[int]) -> Iterator[Queue]:
    """A queue on the primary that owns it, which is another one for each name."""
    client = redis.Redis(
        port=owner_of(key_slot(request.param.encode()), cluster_ports), decode_responses=True
    )
    client.flushall()
    yield Queue.on(client, request.param)
    client.close()


def test_the_queues_of_these_tests_are_on_all_three_primaries(cluster_ports: list[int]) -> None:
    owners = {owner_of(key_slot(name.encode()), cluster_ports) for name in NAMES}
    assert owners == set(cluster_ports)


@pytest.mark.parametrize("same_primary", [True, False])
def test_server_refuses_a_function_that_leaves_its_slot(
    queue: Queue,
    cluster_ports: list[int],
    *,
    same_primary: bool,
) -> None:
    def is_wanted(tag: str) -> bool:
        slots = [key_slot(name.encode()) for name in (tag, queue.name)]
        owners = {owner_of(slot, cluster_ports) for slot in slots}
        return slots[0] != slots[1] and (len(owners) == 1) == same_primary

    elsewhere = next(tag for tag in map(str, range(100)) if is_wanted(tag))
    queue.add()
    queue.read()
    args = ("workers", "c2", 0, 0, T + 60_000, f"glide:{{{elsewhere}}}:failed", "", 0)
    with pytest.raises(redis.ResponseError, match="same slot" if same_primary else "non local key"):
        queue.call("reclaimStalled", queue.keys("stream", "events"), *args)


def test_life_of_jobs_groups_and_flows_stays_in_the_slot(queue: Queue) -> None:
    queue.add(group="g", concurrency=1)
    queue.add(group="g", concurrency=1)
    queue.add(delay=10)
    first, _ = queue.start()
    assert queue.start()[1] == "GROUP_FULL"
    assert queue.complete_and_fetch("1", first, T + 1)[:3] == ["NEXT_HASH", "1", "2"]
    assert queue.fail("2", queue.pending()[0], T + 2, attempts=2, backoff=5) == "retrying"
    assert queue.promote(T + 10) == 2
    queue.start(T + 10)
    queue.start(T + 10)
    assert queue.reclaim(T + 60_000) == 2
    states = {i: queue.job(i)["state"] for i in "123"}
    assert states == {"1": "completed", "2": "waiting", "3": "waiting"}


def test_parents_within_a_queue_wake_up(queue: Queue) -> None:
    queue.flow({"job_id": "p"}, [{"job_id": "c"}])
    queue.flow({"job_id": "other"}, [], extra=[f"{queue.base}:c"])
    assert queue.register_parent("c", "other") == "ok"
    queue.complete("c", queue.start()[0], T, parent="p", member=f"{queue.base}:c")
    assert (queue.job("p")["state"], queue.job("other")["state"]) == ("waiting", "waiting")


def test_library_lost_on_one_primary_comes_back_with_the_next_call(
    queue: Queue, cluster_ports: list[int]
) -> None:
    port = owner_of(key_slot(queue.name.encode()), cluster_ports)
    with glidemq_orchestrate.Queue(queue.name, f"valkey://127.0.0.1:{port}") as ours:
        ours.add("before")
        queue.valkey.function_flush()
        try:
            job_id = ours.add("after")
            assert queue.job(job_id)["name"] == "after"
        finally:
            load_libraries(port)
