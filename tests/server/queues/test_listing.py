"""Finding and counting jobs, in every state that glide-mq knows."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import JobOptions, JobState, NewJob, Ordering, Queue
from glidemq_orchestrate.errors import ConfigurationError
from tests.node import PlainNode

if TYPE_CHECKING:
    from tests.server.conftest import Clients

HOUR = timedelta(hours=1)
P = "glide:{etl}:"


def in_every_state(queue: Queue, node: PlainNode) -> dict[JobState, list[str]]:
    """One job or two in each state."""
    node.suspend(node.begin(queue.add("a")))
    node.end(node.begin(queue.add("a", {"n": 1})))
    node.end(node.begin(queue.add("b", {"n": 2})))
    node.end_as_failed(node.begin(queue.add("a")))
    queue.add_many([NewJob("o", n, options=JobOptions(ordering=Ordering("k"))) for n in (1, 2)])
    node.begin("5")
    node.park("6")
    lifo = queue.add("a", options=JobOptions(lifo=True))
    node.begin_listed()
    node.flow(parent="up", children=["down"])
    node.begin("9")
    prioritized = queue.add("a", options=JobOptions(priority=2))
    node.promote(0)
    queue.add_many([NewJob("a", {"n": 3}), NewJob("b"), NewJob("l", None, options=JobOptions(lifo=True))])
    queue.add("late", options=JobOptions(delay=HOUR))
    queue.add("late", options=JobOptions(delay=HOUR, priority=5))
    queue.add("p", options=JobOptions(priority=5))
    assert lifo == "7"
    return {
        JobState.SUSPENDED: ["1"],
        JobState.COMPLETED: ["2", "3"],
        JobState.FAILED: ["4"],
        JobState.ACTIVE: ["5", "7", "9"],
        JobState.GROUP_WAITING: ["6"],
        JobState.WAITING_CHILDREN: ["8"],
        JobState.WAITING: [prioritized, "13", "11", "12"],
        JobState.DELAYED: ["14", "15"],
        JobState.PRIORITIZED: ["16"],
    }


def test_the_states_of_jobs_are_read_by_id(
    clients: Clients, queue: Queue, node: PlainNode, redis_client: Any
) -> None:
    expected = in_every_state(queue, node)
    redis_client.set(f"{P}job:broken", "no hash")
    asked = {job_id: state for state, ids in expected.items() for job_id in ids}
    found = clients.queue().states([*asked, "no such job", "broken"])
    assert found == [*asked.values(), None, JobState.UNKNOWN]
    assert clients.queue().states([]) == []


def test_every_state_is_listed_counted_and_kept_apart_from_the_others(
    clients: Clients, queue: Queue, node: PlainNode
) -> None:
    expected = in_every_state(queue, node)
    mine = clients.queue()
    for state, ids in expected.items():
        found = mine.get_jobs(state)
        assert [job.state for job in found] == [state] * len(ids), state
        assert [job.id for job in found] == ids or sorted(job.id for job in found) == sorted(ids), state
    waiting = mine.get_jobs(JobState.WAITING)
    assert [job.id for job in waiting] == expected[JobState.WAITING], "in the order of workers"
    assert mine.counts() == {state: len(ids) for state, ids in expected.items()}
    cheap = mine.counts(indexed_only=True)
    assert set(expected) - set(cheap) == {JobState.WAITING_CHILDREN, JobState.GROUP_WAITING}


def test_an_empty_queue_has_nothing(clients: Clients) -> None:
    queue = clients.queue()
    states = [state for state in JobState if state not in (JobState.SKIPPED, JobState.UNKNOWN)]
    assert queue.counts() == dict.fromkeys(states, 0)
    assert [queue.get_jobs(state) for state in states] == [[]] * len(states)


def test_no_job_is_skipped(clients: Clients) -> None:
    with pytest.raises(ConfigurationError, match="skipped is a state of nodes"):
        clients.queue().get_jobs(JobState.SKIPPED)


def test_jobs_that_cannot_be_read_are_listed_as_broken_and_hide_no_other(
    clients: Clients, redis_client: Any
) -> None:
    queue = clients.queue()
    ids = [queue.add("a", {"n": n}) for n in range(4)]
    odd: dict[str, Any] = {"state": "here", "progress": "[" * 9999, "opts": "[" * 9999, "priority": "nan"}
    odd |= {"delay": "1e300", "timestamp": "x", "finishedOn": "9" * 400, "cost": "-", "expireAt": "1e17"}
    redis_client.hset(f"{P}job:{ids[0]}", mapping=odd)
    redis_client.hset(f"{P}job:{ids[1]}", mapping={"data": b"\xff", "name": b"\xff", "failedReason": b"\xff"})
    redis_client.set(f"{P}job:text", "no hash")
    redis_client.zadd(f"{P}completed", {"text": 1})
    redis_client.set(f"{P}list-active", "x")
    found = {job.id: (job.state, job.broken) for job in queue.search()}
    waiting = JobState.WAITING
    assert found == {
        ids[0]: (JobState.UNKNOWN, True),
        ids[1]: (waiting, True),
        ids[2]: (waiting, False),
        ids[3]: (waiting, False),
        "text": (JobState.UNKNOWN, True),
    }
    assert {job.id for job in queue.get_jobs(JobState.UNKNOWN)} == {ids[0], "text"}
    assert [job.id for job in queue.get_jobs(waiting)] == ids[1:]
    assert [job.id for job in queue.get_jobs(JobState.COMPLETED)] == ["text"]
    assert [job.id for job in queue.search(data={"n": 2})] == [ids[2]]
    assert {job.id for job in queue.scan_jobs().jobs} == set(found)
    assert queue.counts()[waiting] == 4


def test_a_part_of_a_state_is_listed(queue: Queue, node: PlainNode) -> None:
    for n in range(5):
        node.end(node.begin(queue.add("a", n)))
    queue.add_many([NewJob("w", n) for n in range(1200)])
    data = [job.data for job in queue.get_jobs(JobState.COMPLETED, offset=1, limit=2)]
    assert data == [1, 2]
    newest = queue.get_jobs(JobState.COMPLETED, limit=2, newest_first=True)
    assert [job.data for job in newest] == [4, 3]
    waiting = queue.get_jobs(JobState.WAITING, offset=1100, limit=200, exclude_data=True)
    assert [job.id for job in waiting] == [str(n) for n in range(1106, 1206)]
    assert {job.data for job in waiting} == {None}
    assert queue.get_jobs(JobState.WAITING, limit=0) == []


@pytest.mark.parametrize("wrong", [{"offset": -1}, {"limit": -1}, {"newest_first": True}])
def test_an_invalid_part_is_refused(queue: Queue, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        queue.get_jobs(JobState.WAITING, **wrong)


def test_jobs_are_found_by_state_name_and_data(clients: Clients, queue: Queue, node: PlainNode) -> None:
    in_every_state(queue, node)
    mine = clients.queue()

    def ids(**wanted: Any) -> list[str]:
        return sorted((job.id for job in mine.search(**wanted)), key=int)

    assert ids(state=JobState.COMPLETED, name="b") == ["3"]
    assert ids(state=JobState.WAITING, name="a") == ["10", "11"]
    assert ids(name="b") == ["3", "12"]
    assert ids(data={"n": 3}) == ["11"]
    assert ids(data={"n": 4}) == []
    assert ids(name="a", data={"n": 1}) == ["2"]
    assert len(ids()) == 16
    assert len(ids(limit=3)) == 3


def test_all_keys_can_be_gone_through_in_pages(clients: Clients, queue: Queue) -> None:
    queue.add_many([NewJob("a" if n % 2 else "b", n) for n in range(1500)])
    mine, found, cursor, pages = clients.queue(), set[str](), "0", 0
    while True:
        page = mine.scan_jobs(cursor, name="a", exclude_data=True)
        found |= {job.id for job in page.jobs}
        cursor, pages = page.cursor, pages + 1
        if cursor == "0":
            break
    assert len(found) == 750
    assert pages > 1
    with pytest.raises(ConfigurationError, match="cursor"):
        mine.scan_jobs("x")


def test_a_queue_whose_name_is_a_pattern_finds_its_own_jobs_only(url: str, queue: Queue) -> None:
    queue.add("a")
    with Queue("e[t]*", url) as strange:
        job_id = strange.add("b")
        assert [job.id for job in strange.search()] == [job_id]
        strange.obliterate()
    assert len(queue.search()) == 1


def test_a_job_with_strange_data_is_listed_as_broken(queue: Queue, redis_client: Any) -> None:
    job_id = queue.add("a", {"n": 1})
    redis_client.hset(f"{P}job:{job_id}", "data", "<xml/>")
    (job,) = queue.get_jobs(JobState.WAITING)
    assert (job.broken, job.data, job.name) == (True, None, "a")
    assert queue.search(data={"n": 1}) == []


def test_what_is_not_a_job_is_passed_over(queue: Queue, redis_client: Any) -> None:
    queue.add("a")
    redis_client.set(f"{P}job:1:usage-lock", "x")
    redis_client.hset(f"{P}job:1:sub:s", "a", "1")
    redis_client.hset(f"{P}job:phantom", "lastActive", "1")
    redis_client.zadd(f"{P}completed", {"gone": 1})
    assert [job.id for job in queue.search()] == ["1"]
    assert queue.get_jobs(JobState.COMPLETED) == []


def test_the_queues_of_a_server_are_listed_by_name(clients: Clients, url: str) -> None:
    for name in ("etl", "spark"):
        clients.queue(name).add("a")
    clients.queue("other", prefix="mine").add("a")
    assert clients.client().queues() == ["etl", "spark"]
    assert clients.client(prefix="mine").queues() == ["other"]


def test_a_search_ends_at_its_bound_and_says_so(clients: Clients, queue: Queue, redis_client: Any) -> None:
    queue.add_many([NewJob("a", n) for n in range(2600)])
    queue.add("last")
    mine = clients.queue()
    for state in (None, JobState.WAITING):
        redis_client.config_resetstat()
        found = mine.search(state=state, name="nowhere", max_examined=1000)
        assert (list(found), found.is_partial) == ([], True)
        assert (
            redis_client.info("commandstats")["cmdstat_hmget"]["calls"] <= 2200
        )  # a page may be a little longer
        for bound in (None, 100_000):
            found = mine.search(state=state, name="last", max_examined=bound)
            assert ([job.name for job in found], found.is_partial) == (["last"], False)
    found = mine.search(name="a", limit=5, max_examined=3000)
    assert (len(found), found.is_partial) == (5, False), "enough was found"


def test_counting_ends_at_its_bound_and_says_so(clients: Clients, queue: Queue, redis_client: Any) -> None:
    queue.is_paused()
    with redis_client.pipeline(transaction=False) as pipe:
        for number in range(5000):  # keys of others count too: they have to be gone through
            pipe.hset(f"{P}job:x{number}" if number % 2 else f"other:{number}", "state", "waiting-children")
        pipe.execute()
    mine = clients.queue()
    counts = mine.counts(max_examined=1000)
    assert counts.at_least == {JobState.WAITING_CHILDREN}
    assert 0 < counts[JobState.WAITING_CHILDREN] < 2500
    counts = mine.counts()
    assert (counts.at_least, counts[JobState.WAITING_CHILDREN]) == (frozenset(), 2500)


@pytest.mark.parametrize(
    "wrong", [{"limit": -1}, {"max_examined": -1}, {"max_examined": True}, {"limit": "x"}]
)
def test_an_invalid_bound_is_refused(queue: Queue, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(wrong))} must be a whole number"):
        queue.search(**wrong)


def test_jobs_of_many_priorities_are_counted_in_pages(queue: Queue, redis_client: Any) -> None:
    members = {f"a{number}": number * 2**42 for number in range(1, 700)}  # one of each priority
    members |= {f"b{number}": 5 * 2**42 for number in range(600)}  # more than a page of one
    members |= {f"c{number}": number * 2**42 + 1_000 for number in range(600)}  # delayed
    redis_client.zadd(P + "scheduled", members)
    counts = queue.counts(indexed_only=True)
    assert counts[JobState.PRIORITIZED] == 699 + 600
    assert counts[JobState.DELAYED] == 600
