"""What holds for the jobs of a queue with shards, on a cluster of several primaries."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from typer.testing import CliRunner

from glidemq_orchestrate import (
    Client,
    EventReader,
    FlowNode,
    FlowSpec,
    JobOptions,
    JobState,
    NewJob,
    Ordering,
    Queue,
)
from glidemq_orchestrate.cli import app
from glidemq_orchestrate.clients.events import EventFilter
from glidemq_orchestrate.errors import (
    ConfigurationError,
    ConnectionFailed,
    InvalidJob,
    JobNotFound,
    OutcomeUnknown,
    ShardsMismatch,
)
from glidemq_orchestrate.jobs import adding
from glidemq_orchestrate.jobs.option_values import Deduplication, JobRef, RateLimit
from glidemq_orchestrate.queues.divided import more_shards
from glidemq_orchestrate.shards import shard_for, shard_name, split_shard
from glidemq_orchestrate.wire.call import Op, ask, command
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.conftest import Eventually, RunWorker
from tests.server.connections.topologies import Primaries, running_primaries


@pytest.fixture(scope="module")
def primaries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Primaries]:
    with running_primaries(tmp_path_factory.mktemp("primaries")) as running:
        yield running


@pytest.fixture
def url(primaries: Primaries) -> str:
    for server in primaries.servers:
        server.client.flushall()
    return primaries.url


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    with Queue("etl", url, shards=4) as queue:
        yield queue


def run(*words: str, url: str) -> str:
    done = CliRunner().invoke(app, [*words, "--url", url])
    assert done.exit_code == 0, done.output
    return done.stdout


def shard_of(queue: Queue, job_id: str) -> int | None:
    return split_shard(queue.get_job(job_id).queue)[1]


def test_jobs_spread_evenly_and_have_ids_of_their_own(queue: Queue) -> None:
    ids = [queue.add("a", number) for number in range(8)]
    many = queue.add_many(NewJob("a", number) for number in range(40))
    assert len({*ids, *many}) == 48
    assert Counter(shard_of(queue, one) for one in ids) == dict.fromkeys(range(4), 2)
    assert Counter(shard_of(queue, str(one)) for one in many) == dict.fromkeys(range(4), 10)
    assert [queue.get_job(str(one)).data for one in many] == list(range(40))
    assert queue.counts()[JobState.WAITING] == 48
    assert queue.states([*ids, "none"]) == [JobState.WAITING] * 8 + [None]


def test_a_worker_runs_the_jobs_of_all_shards_and_of_the_queue_itself(
    url: str, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    queue.add_many(NewJob("a", number) for number in range(100))
    with Queue(shard_name("etl", 2), url) as shard:
        shard.add("a", "in a shard")
    with Queue("etl", url) as other:
        other._operations.become_member(QueueKeys("glide", "etl"))  # as a client that knows no shards
        other.add("a", "in the queue itself")
    seen = list[Any]()
    run_worker(["etl"], {"a": lambda ctx: seen.append(ctx.data)}, url)
    eventually(lambda: queue.counts()[JobState.COMPLETED] == 102)
    assert len(seen) == 102
    assert [worker.handlers for worker in queue.workers()] == [("a",)]
    assert sum(point.count for point in queue.metrics()) == 102
    eventually(lambda: queue.statistics().running.count == 102)
    assert queue.add_and_wait("a", 1) is None


def test_keyed_jobs_stay_together(queue: Queue) -> None:
    keyed = [queue.add("a", ordering=Ordering("customer-7")) for _ in range(3)]
    assert {shard_of(queue, one) for one in keyed} == {shard_for("customer-7", 4)}
    named = queue.add("a", job_id="mine")
    assert named == "mine"
    assert shard_of(queue, "mine") == shard_for("mine", 4)
    with pytest.raises(InvalidJob, match="mine"):
        queue.add("a", job_id="mine")
    once = NewJob("a", options=JobOptions(deduplication=Deduplication("once")))
    assert [job is None for job in queue.add_many([once, once])] == [False, True]


def test_children_go_to_the_shard_of_their_parent(queue: Queue) -> None:
    parents = [queue.add("parent") for _ in range(4)]
    for parent in parents:
        child = queue.add("child", parent=JobRef("etl", parent))
        assert shard_of(queue, child) == shard_of(queue, parent)
        assert [one.id for one in queue.parents(child)] == [parent]


def test_a_job_is_found_in_whichever_shard_it_is(queue: Queue) -> None:
    ids = [queue.add("a", number) for number in range(4)]
    for job_id in ids:
        queue.tag(job_id, ["red"])
        queue.change_priority(job_id, 3)
        queue.add_log(job_id, "line")
        assert queue.logs(job_id).lines == ["line"]
        assert len(queue.history(job_id)) > 0
    assert queue.tags()[0].count == 4
    assert queue.tagged("red", limit=2).total == 4
    assert len(queue.tagged("red", limit=2)) == 2
    cancelled = queue.cancel([*ids, "none"])
    assert (sorted(cancelled.cancelled), list(cancelled.unknown)) == (sorted(ids), ["none"])
    assert {job.id for job in queue.get_jobs("failed")} == set(ids)
    newest = queue.get_jobs("failed", newest_first=True, limit=3)
    times = [job.finished_at for job in newest]
    assert len(times) == 3
    assert times == sorted(times, reverse=True)  # type: ignore[type-var]
    (group,) = queue.failures()
    assert group.count == 4
    assert queue.retry_failed(3) == 3
    assert queue.counts()[JobState.FAILED] == 1
    queue.remove(queue.get_jobs("failed")[0].id)
    with pytest.raises(JobNotFound):
        queue.get_job("none")


def test_a_number_as_an_id_is_refused_if_the_server_has_given_it(queue: Queue) -> None:
    given = [queue.add("a") for _ in range(4)]
    for job_id in given:
        with pytest.raises(InvalidJob, match=job_id):
            queue.add("a", job_id=job_id)
    assert queue.add("a", job_id="17") == "17"
    assert queue.add("a", job_id="9000000000017") == "9000000000017"
    assert queue.counts()[JobState.WAITING] == 6


def test_a_job_waits_for_jobs_of_its_own_shard_only(queue: Queue) -> None:
    one, other = queue.add("a"), queue.add("a")
    same = queue.add("a", parent=JobRef("etl", queue.add("a", job_id="parent")))
    with pytest.raises(InvalidJob, match=r"a job can wait for jobs of its own shard only\. Fix: use a flow"):
        queue.depends_on(one, [other])
    near = next(
        job for job in (queue.add("a") for _ in range(4)) if shard_of(queue, job) == shard_of(queue, same)
    )
    assert queue.depends_on(near, [same, "none"]).unknown == ("none",)
    assert queue.get_job(near).state is JobState.WAITING_CHILDREN


def test_a_page_that_cannot_be_is_refused(queue: Queue) -> None:
    queue.add("a")
    with pytest.raises(ConfigurationError):
        queue.get_jobs("waiting", offset=-1)
    with pytest.raises(InvalidJob):
        queue.tags(limit=0)
    assert queue.get_jobs("waiting", limit=0) == []


def test_pages_and_scans_cover_all_shards(queue: Queue) -> None:
    queue.add_many(NewJob("a", number) for number in range(50))
    pages = [
        job.data for offset in range(0, 60, 20) for job in queue.get_jobs("waiting", offset=offset, limit=20)
    ]
    assert sorted(pages) == list(range(50))
    assert len(queue.search(name="a", limit=30)) == 30
    found, cursor = set[int](), "0"
    while True:
        page = queue.scan_jobs(cursor)
        found |= {job.data for job in page.jobs}
        if (cursor := page.cursor) == "0":
            break
    assert found == set(range(50))
    assert queue.drain() == 50


def test_a_pause_and_limits_hold_for_the_whole_queue(
    url: str, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    queue.set_global_concurrency(10)
    assert queue.global_concurrency() == 10
    with pytest.raises(InvalidJob, match=r"a limit of 4 cannot be divided among the queue and its 4 shards"):
        queue.set_global_concurrency(4)
    queue.set_global_concurrency(None)
    assert queue.global_concurrency() is None
    queue.set_global_rate_limit(RateLimit(2, timedelta(seconds=1)))
    limit = queue.global_rate_limit()
    assert limit is not None
    assert limit.max / limit.per.total_seconds() == 2  # type: ignore[union-attr]
    queue.set_global_rate_limit(None)
    queue.pause()
    assert queue.is_paused()
    queue.add_many(NewJob("a") for _ in range(20))
    run_worker(["etl"], {"a": lambda ctx: None}, url)
    time.sleep(0.5)
    assert queue.counts()[JobState.COMPLETED] == 0
    queue.resume()
    eventually(lambda: queue.counts()[JobState.COMPLETED] == 20)
    assert len(queue.clean("completed", limit=15)) == 15
    assert queue.counts()[JobState.COMPLETED] == 5


def test_limits_are_right_after_a_kill_at_any_call_of_adding_shards(url: str, queue: Queue) -> None:
    for number in range(1, 40):
        queue.set_global_concurrency(1000)
        queue.set_global_rate_limit(RateLimit(500, 1))
        count = queue.shards() + 1
        died = dies_at(queue, more_shards(queue._keys, count, queue._now()), number)
        assert queue.global_concurrency() == 1000
        assert queue.add_shards(count) == count
        shares = []
        for name in ["etl", *(shard_name("etl", index) for index in range(count))]:
            with Queue(name, url) as member:
                member._operations.become_member(QueueKeys("glide", name))
                limit = member.global_rate_limit()
                assert limit is not None
                shares.append((member.global_concurrency() or 0, limit.max))
        assert (sum(one for one, _ in shares), sum(one for _, one in shares)) == (1000, 500)
        if not died:
            return
    raise AssertionError("it never ended")


def dies_at(queue: Queue, op: Op[Any], number: int) -> bool:
    """Run an operation, and die before its call of this number; returns whether it had so many."""

    def dying() -> Op[bool]:
        reply: Any = None
        for _ in range(number):
            try:
                reply = yield op.send(reply)
            except StopIteration:
                return False
        return True

    return queue._run(dying())


def test_settings_of_before_hold_for_the_whole(url: str) -> None:
    with Queue("old", url) as plain:
        plain.pause()
        plain.set_global_concurrency(60)
    with Queue("old", url, shards=4) as wide, pytest.raises(ShardsMismatch, match="in use without shards"):
        wide.add("a")
    with Queue("old", url) as again:
        assert again.add_shards(4) == 4
        assert (again.global_concurrency(), again.is_paused()) == (60, True)


def test_what_a_client_does_that_does_not_know_the_shards_yet(url: str) -> None:
    with Client(url) as first, Client(url) as late:
        stale = late.queue("new")
        assert not any(stale.counts().values())  # from now on it relies on that there are none
        queue = first.queue("new", shards=4)
        assert queue.shards() == 4
        ids = [stale.add("a", job_id="mine"), stale.add("a", ordering=Ordering("key"))]
        with pytest.raises(InvalidJob, match="mine"):
            queue.add("a", job_id="mine")
        assert shard_of(queue, queue.add("a", ordering=Ordering("key"))) is None
        spec = FlowSpec("f", [FlowNode("a")], queue="new")
        flow = first.flows.submit(spec, flow_id="f")
        assert late.flows.submit(spec, flow_id="f").home == flow.home == shard_name("new", shard_for("f", 4))
        stale.pause()
        stale.set_global_concurrency(50)
        assert (queue.is_paused(), queue.global_concurrency()) == (True, 50)
        with Queue(flow.home, url) as shard:
            assert shard.is_paused()
        assert None not in queue.states(ids)


def test_a_worker_alone_does_not_use_a_queue(url: str, run_worker: RunWorker) -> None:
    run_worker(["new"], {"a": lambda ctx: None}, url)
    with Queue("new", url, shards=4) as queue:
        assert queue.add("a")
        assert queue.shards() == 4


def test_jobs_of_which_some_could_not_be_added_are_not_told_as_unsent(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = adding.add_encoded

    def failing(keys: QueueKeys, *given: Any) -> Op[Any]:
        if split_shard(keys.queue)[1] == 2:
            yield from ask(command("GET", keys.key("id"), decode=str))
            raise ConnectionFailed("shard 2 is down")
        return (yield from real(keys, *given))

    monkeypatch.setattr(adding, "add_encoded", failing)
    with pytest.raises(OutcomeUnknown, match="6 of 8 jobs were added: shard 2 is down"):
        queue.add_many(NewJob("a") for _ in range(8))


def test_limits_that_were_too_small_for_the_shards_are_not_remembered(url: str) -> None:
    with Queue("old", url) as queue:
        queue.set_global_concurrency(3)
        queue.set_global_rate_limit(RateLimit(5, 1))
        with pytest.raises(InvalidJob, match="cannot be divided"):
            queue.add_shards(4)
        queue.set_global_concurrency(100)
        queue.set_global_rate_limit(None)
        assert queue.add_shards(4) == 4
        assert (queue.global_concurrency(), queue.global_rate_limit()) == (100, None)


def test_a_client_that_states_shards_states_them_for_its_flows_too(url: str) -> None:
    with Client(url) as client:
        client.queue("new", shards=4)
        flow = client.flows.submit(FlowSpec("f", [FlowNode("a")], queue="new"), flow_id="f")
        assert split_shard(flow.home) == ("new", shard_for("f", 4))
        client.queue("new", shards=5)
        with pytest.raises(ShardsMismatch):
            client.flows.submit(FlowSpec("f", [FlowNode("a")], queue="new"), flow_id="g")


def test_more_shards_take_over_settings_and_find_old_jobs(
    url: str, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    moved = next(key for key in map("key-{}".format, range(99)) if shard_for(key, 4) != shard_for(key, 16))
    queue.set_global_concurrency(100)
    queue.set_dead_letter_queue("dead")
    queue.pause()
    first = queue.add("a", 1, ordering=Ordering(moved))
    mine = queue.add("a", 2, job_id=moved)
    assert queue.add_shards(16) == 16
    assert (queue.shards(), queue.global_concurrency(), queue.is_paused()) == (16, 100, True)
    with Queue(shard_name("etl", 15), url) as shard:
        assert (shard.is_paused(), shard.dead_letter_queue()) == (True, "dead")
    assert shard_of(queue, queue.add("a", job_id=f"{moved}-2")) == shard_for(f"{moved}-2", 4)  # not yet
    queue._run(_use_now(QueueKeys("glide", "etl")))
    with Client(url) as client:
        later = client.queue("etl")
        second = later.add("a", 3, ordering=Ordering(moved))
        assert shard_of(later, second) == shard_of(later, first) == shard_for(moved, 4)
        with pytest.raises(InvalidJob, match=moved):
            later.add("a", job_id=moved)
        assert later.get_job(mine).data == 2
        fresh = later.add("a", 4, ordering=Ordering(f"{moved}-3"))
        assert shard_of(later, fresh) == shard_for(f"{moved}-3", 16)
        later.resume()
        run_worker(["etl"], {"a": lambda ctx: None}, url)
        eventually(lambda: later.counts()[JobState.COMPLETED] == 5)


def test_events_of_all_shards_are_read_once_and_by_time(
    url: str, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    assert queue.shards() == 4
    with EventReader("etl", url, where=EventFilter(kinds=["completed"])) as reader:
        begun = reader.start()
        assert begun == "0-0@" + ";0-0" * 5
        ids = [str(one) for one in queue.add_many(NewJob("a") for _ in range(20))]
        run_worker(["etl"], {"a": lambda ctx: None}, url)
        seen = list[str]()

        def read_on() -> bool:
            seen.extend(event.job_id for event in reader.read(0.2))
            return len(seen) >= 20

        eventually(read_on)
        assert sorted(seen) == sorted(ids)
        again = EventReader("etl", url, position=begun, idle_timeout=0.3)
        with again:
            events = list(again)
            assert {event.job_id for event in events if event.kind == "completed"} == set(ids)
            assert [event.at for event in events] == sorted(event.at for event in events)
            assert len({event.id for event in events}) == len(events)
            assert again.position == reader.position or reader.read(0.1) == []
    with EventReader("etl", url, position="x;0-0") as wrong, pytest.raises(ConfigurationError):
        wrong.read()


def test_tracked_jobs_of_all_shards_are_watched(queue: Queue) -> None:
    ids = [queue.add("a") for _ in range(4)]
    for job_id in ids:
        queue.track(job_id)
    changes = queue.watch_tracked()
    assert {next(changes).now.id for _ in ids} == set(ids)
    queue.change_priority(ids[2], 5)
    assert next(changes).now.id == ids[2]
    queue.remove(ids[3])
    queue.untrack(ids[3])
    assert {one.id for one in queue.tracked()} == set(ids[:3])


def test_the_command_line_speaks_of_the_whole_queue(url: str, queue: Queue) -> None:
    queue.add_many(NewJob("a") for _ in range(8))
    listed = json.loads(run("queue", "list", "--json", url=url))
    assert [(row["queue"], row["shards"], row["counts"]["waiting"]) for row in listed] == [("etl", 4, 8)]
    assert run("queue", "shards", "etl", url=url).strip() == "etl has 4 shards"
    assert run("queue", "shards", "etl", "6", url=url).strip() == "etl has 6 shards: 2 added"
    assert json.loads(run("queue", "shards", "etl", "--json", url=url)) == {
        "queue": "etl", "shards": 6, "added": 0,
    }  # fmt: skip
    assert run("queue", "shards", "other", url=url).strip() == "other has no shards"


def test_all_jobs_go_with_the_queue_and_its_shards_stay(primaries: Primaries, queue: Queue) -> None:
    ids = queue.add_many(NewJob("a") for _ in range(20))
    queue.obliterate()
    assert queue.shards() == 4
    left = {key.partition("}:")[2] for server in primaries.servers for key in server.client.keys("*etl*")}
    assert left == {"id", "gmo:shards"}
    assert not set(ids) & set(queue.add_many(NewJob("a") for _ in range(20)))


def test_wrong_numbers_of_shards_are_refused(url: str, queue: Queue) -> None:
    queue.add("a")
    with Queue("etl", url, shards=8) as other, pytest.raises(ShardsMismatch, match=r"has 4 shards, not 8\."):
        other.add("a")
    with pytest.raises(ShardsMismatch, match="has 4 shards, not 2"):
        queue.add_shards(2)
    with pytest.raises(ConfigurationError, match="shards must be a number"):
        Queue("etl", url, shards=0)
    with Queue(shard_name("etl", 0), url) as shard, pytest.raises(ConfigurationError, match="is a shard"):
        shard.add_shards(2)
    with Queue("plain", url) as plain:
        plain.add("a")
        assert plain.shards() == 0
    with Queue("plain", url, shards=4) as plain, pytest.raises(ShardsMismatch, match="in use without shards"):
        plain.add("a")


def _use_now(queue: QueueKeys) -> Op[None]:
    """Let the clients use the shards that were added, as if a minute had passed."""
    yield from ask(command("HSET", queue.key("gmo:shards"), 16, 1, decode=bool))
