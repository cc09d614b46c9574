"""Adding jobs: one, many, and one that is waited for."""

from __future__ import annotations

import json
import re
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    Deduplication,
    JobOptions,
    JobState,
    Keep,
    NewJob,
    Ordering,
    Queue,
    RateLimit,
)
from glidemq_orchestrate.errors import (
    ConfigurationError,
    EncodeError,
    InvalidJob,
    JobFailed,
    JobNotFound,
    JobSkipped,
    PayloadTooLarge,
    WaitTimeout,
)
from glidemq_orchestrate.jobs.option_values import JobRef, TokenBucket
from tests.builders import NEAR

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Clients, Dump

SECOND = timedelta(seconds=1)
P = "glide:{etl}:"
SHIFT = 2**42


class Still:
    """A clock that stands still."""

    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic_ms(self) -> int:
        return self.now_ms()


class TestAdd:
    def test_a_priority_job_waits_for_the_next_promotion_with_its_score(
        self, clients: Clients, redis_client: Any
    ) -> None:
        queue = clients.queue(clock=Still())
        job_id = queue.add("work", options=JobOptions(priority=3))
        assert redis_client.zscore(f"{P}scheduled", job_id) == 3 * SHIFT
        job = queue.get_job(job_id)
        assert (job.state, job.priority) == (JobState.PRIORITIZED, 3)
        late = queue.add("work", options=JobOptions(priority=2048, delay=SECOND))
        assert redis_client.zscore(f"{P}scheduled", late) == 2048 * SHIFT + 1_700_000_001_000

    def test_a_lifo_job_stands_in_the_lifo_list(self, clients: Clients, redis_client: Any) -> None:
        job_id = clients.queue().add("work", options=JobOptions(lifo=True))
        assert redis_client.lrange(f"{P}lifo", 0, -1) == [job_id]
        assert redis_client.hget(f"{P}job:{job_id}", "lifo") == "1"

    def test_the_hash_has_what_glide_mq_writes(self, queue: Queue, redis_client: Any, url: str) -> None:
        options = JobOptions(
            attempts=3,
            ttl=SECOND,
            cost=1.5,
            ordering=Ordering("k", 2, RateLimit(5, SECOND), TokenBucket(2, 0.5)),
            job_id="own",
        )
        with Queue("etl", url, clock=Still()) as still:
            still.add("work", {"è": '"\n'}, options=options)
        assert redis_client.hgetall(f"{P}job:own") == {
            "id": "own",
            "name": "work",
            "data": '{"è":"\\"\\n"}',
            "opts": options.to_wire(),
            "timestamp": "1700000000000",
            "attemptsMade": "0",
            "delay": "0",
            "priority": "0",
            "maxAttempts": "3",
            "groupKey": "k",
            "orderingSeq": "1",
            "cost": "1500",
            "expireAt": "1700000001000",
            "state": "waiting",
        }
        group = redis_client.hgetall(f"{P}group:k")
        assert group["maxConcurrency"] == "2"
        assert (group["rateMax"], group["rateDuration"]) == ("5", "1000")
        assert (group["tbCapacity"], group["tbRefillRate"]) == ("2000", "500")

    def test_a_child_is_known_to_its_parent_when_it_exists(
        self, url: str, queue: Queue, redis_client: Any
    ) -> None:
        for parent in ("etl", NEAR):
            with Queue(parent, url) as home:
                home.add("parent", options=JobOptions(job_id="7"))
            job_id = queue.add("work", options=JobOptions(parent=JobRef(parent, "7")))
            assert redis_client.smembers(f"glide:{{{parent}}}:deps:7") == {f"glide:{{etl}}:{job_id}"}
            assert queue.get_job(job_id).parent == JobRef(parent, "7")

    def test_a_child_of_no_job_is_refused(self, clients: Clients, dump: Dump) -> None:
        """Else what is left would be that of a later job with this id."""
        queue, child = clients.queue(), JobOptions(parent=JobRef("etl", "gone"))
        refused = pytest.raises(JobNotFound, match="no job gone in queue etl, the parent of a new job")
        with refused:
            queue.add("a", options=child)
        with refused:
            queue.add_many([NewJob("a", 1, options=child)])
        assert dump() == {}
        mine = NewJob("parent", 1, options=JobOptions(job_id="gone"))
        assert len(queue.add_many([mine, NewJob("a", 1, options=child)])) == 2

    def test_packed_data_is_read_by_everyone(self, clients: Clients, redis_client: Any) -> None:
        data = {"text": "è" * 100}
        job_id = clients.queue(compression="gzip").add("work", data)
        assert redis_client.hget(f"{P}job:{job_id}", "data").startswith("gz:")
        assert clients.queue().get_job(job_id).data == data

    def test_an_unknown_compression_is_refused(self, clients: Clients) -> None:
        with pytest.raises(ConfigurationError, match="compression 'zip'"):
            clients.queue(compression="zip")

    @pytest.mark.parametrize("size", [1_048_576, 1_048_577])
    def test_data_of_exactly_one_mib_is_the_most(self, queue: Queue, dump: Dump, size: int) -> None:
        data = "x" * (size - 2)
        if size == 1_048_576:
            assert queue.get_job(queue.add("work", data)).data == data
            return
        before = dump()
        with pytest.raises(PayloadTooLarge):
            queue.add("work", data)
        assert dump() == before


class TestDeduplication:
    def test_simple_skips_until_the_earlier_job_has_ended(self, clients: Clients, redis_client: Any) -> None:
        queue = clients.queue()
        options = JobOptions(deduplication=Deduplication("d"))
        first = queue.add("work", options=options)
        with pytest.raises(JobSkipped) as raised:
            queue.add("work", options=options)
        assert (raised.value.existing, raised.value.deduplication_id) == (first, "d")
        redis_client.hset(f"{P}job:{first}", "state", "completed")
        assert queue.add("work", options=options) != first

    def test_throttle_skips_within_its_window(self, url: str) -> None:
        clock = Still()
        clock.now_ms = lambda: now  # type: ignore[method-assign]
        now = 1_000
        options = JobOptions(deduplication=Deduplication("d", "throttle", SECOND))
        with Queue("etl", url, clock=clock) as queue:
            queue.add("work", options=options)
            now = 1_999
            with pytest.raises(JobSkipped):
                queue.add("work", options=options)
            now = 2_000
            queue.add("work", options=options)

    def test_debounce_replaces_a_job_that_is_delayed(self, queue: Queue, redis_client: Any) -> None:
        options = JobOptions(deduplication=Deduplication("d", "debounce"), delay=SECOND)
        first = queue.add("work", 1, options=options)
        second = queue.add("work", 2, options=options)
        with pytest.raises(JobNotFound):
            queue.get_job(first)
        assert queue.get_job(second).data == 2
        assert redis_client.zrange(f"{P}scheduled", 0, -1) == [second]


MIXED = [
    NewJob("a", {"n": 1}),
    NewJob("a", {"n": 2}),
    NewJob("b", None, options=JobOptions(attempts=3)),
    NewJob("b", "è", options=JobOptions(priority=7)),
    NewJob("c", [1.5], options=JobOptions(delay=SECOND, priority=2, ttl=SECOND)),
    NewJob("c", 1, options=JobOptions(lifo=True, cost=0.5, lease=SECOND)),
    NewJob("d", 1, options=JobOptions(job_id="own")),
    NewJob("d", 1, options=JobOptions(job_id="50", remove_on_complete=Keep(5))),
    NewJob("d", 1, options=JobOptions(ordering=Ordering("k"))),
    NewJob("d", 1, options=JobOptions(deduplication=Deduplication("x"))),
    NewJob("d", 1, options=JobOptions(parent=JobRef("etl", "own"))),
    NewJob("a", {"n": 3}),
]


def without_entry_ids(found: dict[str, Any]) -> dict[str, Any]:
    """Stream entries get ids of the server's clock."""
    return {
        key: [fields for _, fields in value] if re.search(r":(stream|events)$", key) else value
        for key, value in found.items()
    }


class TestAddMany:
    def test_it_leaves_what_adding_one_by_one_leaves(
        self, clients: Clients, dump: Dump, redis_client: Any
    ) -> None:
        queue = clients.queue(clock=Still())
        together = queue.add_many(MIXED)
        found = without_entry_ids(dump())
        redis_client.flushdb()
        alone = [queue.add(job.name, job.data, options=job.options) for job in MIXED]
        assert together == alone
        assert together[:2] + together[6:8] == ["1", "2", "own", "50"]
        assert found == without_entry_ids(dump())

    @pytest.mark.parametrize("right", ["+copy", "-copy"])
    def test_three_hundred_plain_jobs_leave_what_adding_one_by_one_leaves(
        self, url: str, dump: Dump, redis_client: Any, right: str, request: pytest.FixtureRequest
    ) -> None:
        """Also if the user may not copy keys, as one of an older version, and if some have much data."""
        request.addfinalizer(lambda: redis_client.execute_command("ACL", "SETUSER", "default", "+copy"))
        redis_client.execute_command("ACL", "SETUSER", "default", right)
        jobs = [NewJob("work", n) for n in range(300)]
        jobs[7], jobs[200] = NewJob("work", "x" * 5_000), NewJob("work")
        with Queue("etl", url, clock=Still()) as queue:
            assert queue.add_many(jobs) == [str(n) for n in range(1, 301)]
            found = without_entry_ids(dump())
            redis_client.flushdb()
            for job in jobs:
                queue.add(job.name, job.data)
        assert found == without_entry_ids(dump())

    def test_what_a_late_writer_left_under_an_id_stays_there(
        self, clients: Clients, redis_client: Any
    ) -> None:
        redis_client.hset(f"{P}job:1", "progress", "50")
        redis_client.hset(f"{P}job:3", "progress", "70")
        clients.queue().add_many([NewJob("work", n) for n in range(5)])
        jobs = [redis_client.hgetall(f"{P}job:{n}") for n in range(1, 6)]
        assert [job.get("progress") for job in jobs] == ["50", None, "70", None, None]
        assert [job["data"] for job in jobs] == ["0", "1", "2", "3", "4"]

    def test_a_small_job_takes_little_memory_beside_larger_ones(
        self, clients: Clients, redis_client: Any
    ) -> None:
        """The server keeps small hashes in a compact form, which a copy of a larger one does not have."""
        clients.queue().add_many([NewJob("work", "x" * n) for n in (100, 1, 2, 100, 3)])
        forms = [redis_client.object("encoding", f"{P}job:{n}") for n in range(1, 6)]
        assert forms == ["hashtable", "listpack", "listpack", "hashtable", "listpack"]

    def test_what_was_there_before_is_none(self, clients: Clients, redis_client: Any) -> None:
        queue = clients.queue()
        once = JobOptions(deduplication=Deduplication("d"))
        jobs = [NewJob("a", n, options=JobOptions(job_id=f"own-{n % 2}")) for n in range(4)]
        found = queue.add_many([*jobs, NewJob("b", 1, options=once), NewJob("b", 2, options=once)])
        assert found[:4] == ["own-0", "own-1", None, None]
        assert found[5] is None
        assert redis_client.xlen(f"{P}stream") == 3
        assert queue.get_job("own-0").data == 0

    def test_nothing_is_sent_when_one_job_cannot_be(self, clients: Clients, dump: Dump) -> None:
        queue = clients.queue()
        before = dump()
        for wrong, error in ((NewJob(""), InvalidJob), (NewJob("a", float("nan")), EncodeError)):
            with pytest.raises(error):
                queue.add_many([NewJob("a"), wrong])
        assert dump() == before

    def test_data_that_changes_from_job_to_job_is_sent_as_it_was_for_each(self, queue: Queue) -> None:
        row: dict[str, int] = {}

        def jobs() -> Iterator[NewJob]:
            for number in range(3):
                row["number"] = number
                yield NewJob("a", row)

        ids = queue.add_many(jobs())
        assert [queue.get_job(job_id or "").data for job_id in ids] == [{"number": n} for n in range(3)]

    def test_nothing_is_nothing(self, clients: Clients) -> None:
        assert clients.queue().add_many([]) == []

    def test_large_jobs_travel_in_their_own_calls(self, queue: Queue, redis_client: Any) -> None:
        data = "x" * 700_000
        ids = queue.add_many([NewJob("a", data)] * 3)
        assert [queue.get_job(job_id or "").data == data for job_id in ids] == [True] * 3

    def test_arguments_that_are_not_runs_change_nothing(
        self, redis_client: Any, dump: Dump, url: str
    ) -> None:
        with Queue("etl", url) as queue, pytest.raises(JobNotFound):
            queue.get_job("1")  # the libraries are loaded
        before = dump()
        head = ["n", "{}", 1, 0, 0, 0, 0, 0]
        for wrong in (
            ["x", *head, "", 1, "1"],
            [5, *head, "", 2, "1"],
            [5, *head, "", 0],
            [5, *head, "own", 2, "1", "2"],
            [5, *head, "", 1.5, "1", "2"],
            [5, *head, "", 1001, *["1"] * 1001],
        ):
            with pytest.raises(Exception, match="GMO_BAD_CALL"):
                redis_client.fcall("gmo_add_jobs", 1, f"{P}id", *wrong)
        assert dump() == before


class TestAddAndWait:
    def test_it_returns_the_result(self, clients: Clients, run_worker: RunWorker) -> None:
        run_worker(["etl"], {"work": lambda ctx: {"got": ctx.data}})
        assert clients.queue().add_and_wait("work", 5) == {"got": 5}

    def test_it_raises_why_the_job_failed(self, clients: Clients, run_worker: RunWorker) -> None:
        def broken(_: Any) -> None:
            raise ValueError("no rows")

        run_worker(["etl"], {"work": broken})
        with pytest.raises(JobFailed, match="no rows") as raised:
            clients.queue().add_and_wait("work")
        assert raised.value.reason.endswith("no rows")

    def test_it_raises_when_nothing_happened_in_time(self, clients: Clients) -> None:
        with pytest.raises(WaitTimeout, match="still waiting"):
            clients.queue().add_and_wait("work", timeout=timedelta(milliseconds=50))

    def test_it_raises_when_the_job_was_revoked(
        self, queue: Queue, redis_client: Any, eventually: Eventually, url: str
    ) -> None:
        raised: list[Exception] = []

        def wait() -> None:
            with Queue("etl", url) as mine:
                try:
                    mine.add_and_wait("work", options=JobOptions(job_id="own"))
                except JobFailed as exc:
                    raised.append(exc)

        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: redis_client.exists(f"{P}job:own"))
        keys = [f"{P}{name}" for name in ("job:own", "stream", "scheduled", "failed", "events")]
        redis_client.fcall("glidemq_revoke", 5, *keys, "own", 5, "workers")
        thread.join(20)
        assert [str(exc) for exc in raised] == ["job own failed: revoked"]

    def test_it_finds_a_result_whose_event_was_trimmed(
        self, queue: Queue, redis_client: Any, eventually: Eventually, url: str
    ) -> None:
        found: list[Any] = []

        def wait() -> None:
            with Queue("etl", url) as mine:
                found.append(mine.add_and_wait("work", options=JobOptions(job_id="own")))

        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: redis_client.exists(f"{P}job:own"))
        redis_client.hset(f"{P}job:own", mapping={"state": "completed", "returnvalue": "[7]"})
        thread.join(20)
        assert found == [[7]]

    @pytest.mark.parametrize(
        "options",
        [JobOptions(remove_on_complete=True), JobOptions(remove_on_fail=5)],
        ids=["complete", "fail"],
    )
    def test_a_job_that_would_be_removed_cannot_be_waited_for(
        self, clients: Clients, dump: Dump, options: JobOptions
    ) -> None:
        before = dump()
        with pytest.raises(InvalidJob, match="remove_on"):
            clients.queue().add_and_wait("work", options=options)
        assert dump() == before

    def test_a_time_out_of_nothing_is_refused(self, clients: Clients, dump: Dump) -> None:
        before = dump()
        with pytest.raises(InvalidJob, match="timeout"):
            clients.queue().add_and_wait("work", timeout=timedelta(0))
        assert dump() == before


def test_a_hash_with_bytes_that_are_not_text_is_read(queue: Queue, redis_client: Any) -> None:
    job_id = queue.add("work", {"a": 1})
    redis_client.hset(f"{P}job:{job_id}", "vector", b"\xff\xfe\x00")
    assert queue.get_job(job_id).data == {"a": 1}


def test_the_fallbacks_of_a_job_can_be_read(queue: Queue, redis_client: Any) -> None:
    opts = json.dumps({"attempts": 4, "fallbacks": [{"model": "m"}, {"model": "n", "provider": "p"}]})
    job_id = queue.add("work")
    redis_client.hset(f"{P}job:{job_id}", mapping={"opts": opts, "fallbackIndex": "2"})
    job = queue.get_job(job_id)
    assert [fallback.model for fallback in job.fallbacks] == ["m", "n"]
    assert job.current_fallback is not None
    assert (job.fallback_index, job.current_fallback.provider) == (2, "p")
    redis_client.hset(f"{P}job:{job_id}", "fallbackIndex", "3")
    assert queue.get_job(job_id).current_fallback is None
