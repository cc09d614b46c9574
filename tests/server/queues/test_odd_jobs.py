"""A job that holds invalid values harms itself only: it fails, its neighbours complete."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Broadcast, BroadcastWorker, Context, Handlers, JobOptions, JobState, Queue
from tests.raw_client import client_of

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker

P = b"glide:{etl}:"
LATIN = b"caf\xe9"
SECOND = timedelta(seconds=1)

# Fields of a job, and the reason of its failure.
ODD: list[tuple[dict[str, Any], str]] = [
    ({"attemptsMade": "1.5"}, "attemptsMade is not a whole number"),
    ({"attemptsMade": "x"}, "attemptsMade is not a whole number"),
    ({"attemptsMade": "9" * 5_000}, "attemptsMade is not a whole number"),
    ({"fallbackIndex": "abc"}, "fallbackIndex is not a whole number"),
    ({"data": b'"' + LATIN + b'"'}, "data of job work is not UTF-8"),
    ({"name": LATIN}, "its name is not UTF-8"),
    ({"opts": b'{"attempts":1,"x":"' + LATIN + b'"}'}, "its opts is not UTF-8"),
    ({"gmo:flow": LATIN, "gmo:node": "a"}, "its flow is not UTF-8"),
    ({"signals": b"[" + LATIN}, "signals of job"),
    ({"data": "{" * 100_000}, "data of job work is not JSON"),
]


@pytest.fixture
def raw(url: str, queue: Queue) -> Iterator[Any]:
    """A client that sends and reads bytes."""
    with client_of(url, decode_responses=False) as client:
        yield client


def key(job_id: str) -> bytes:
    return P + b"job:" + job_id.encode()


def spoil(raw: Any, job_id: str, fields: dict[str, Any]) -> None:
    raw.hset(key(job_id), mapping=fields)


def failed_reason(raw: Any, job_id: str) -> str:
    state, reason = raw.hmget(key(job_id), "state", "failedReason")
    return reason.decode() if state == b"failed" else ""


def test_odd_jobs_fail_and_their_neighbours_complete(
    raw: Any, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    good = [queue.add("work", n, options=JobOptions(attempts=3)) for n in range(3)]
    odd = [queue.add("work", n, options=JobOptions(attempts=3)) for n in range(len(ODD))]
    good += [queue.add("work", n) for n in range(3)]
    for job_id, (fields, _) in zip(odd, ODD, strict=True):
        spoil(raw, job_id, fields)
    running = run_worker(["etl"], {"work": lambda ctx: ctx.data})
    eventually(lambda: all(failed_reason(raw, job_id) for job_id in odd))
    for job_id, (fields, expected) in zip(odd, ODD, strict=True):
        assert expected in failed_reason(raw, job_id), fields
    eventually(lambda: all(queue.get_job(job_id).state is JobState.COMPLETED for job_id in good))
    assert queue.add_and_wait("work", "more", timeout=5 * SECOND) == "more"
    assert (running.error, queue.counts()[JobState.ACTIVE]) == (None, 0)


def test_odd_jobs_of_batches_fail_and_the_others_complete(
    raw: Any, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    ids = [queue.add("work", n) for n in range(4 * len(ODD))]
    odd = ids[2::4]
    for job_id, (fields, _) in zip(odd, ODD, strict=True):
        spoil(raw, job_id, fields)
    handlers = Handlers()

    @handlers.batch_handler("work", size=4, wait=SECOND / 5)
    def work(contexts: list[Context]) -> list[Any]:
        return [context.data for context in contexts]

    running = run_worker(["etl"], handlers)
    eventually(lambda: all(failed_reason(raw, job_id) for job_id in odd))
    for job_id, (fields, expected) in zip(odd, ODD, strict=True):
        assert expected in failed_reason(raw, job_id), fields
    others = [job_id for job_id in ids if job_id not in odd]
    eventually(lambda: all(queue.get_job(job_id).state is JobState.COMPLETED for job_id in others))
    assert running.error is None


@pytest.mark.parametrize("made", ["1.5", "x", "9" * 5_000, "9223372036854775807", "-3"])
def test_a_job_with_an_odd_number_of_attempts_ends_whoever_fails_it(
    raw: Any, queue: Queue, made: str
) -> None:
    """Also by a Node worker, which calls glidemq_fail; and by the loss of its worker."""
    ids = [queue.add("work", n) for n in range(2)]
    raw.xgroup_create(P + b"stream", "workers", "0")
    entries = raw.xreadgroup("workers", "node", {P + b"stream": ">"}, count=2)[0][1]
    for job_id, (entry, _) in zip(ids, entries, strict=True):
        args = (1_000, entry, "workers", job_id, 0)
        raw.fcall("glidemq_moveToActive", 2, key(job_id), P + b"stream", *args)
        spoil(raw, job_id, {"attemptsMade": made, "stalledCount": made, "lastActive": "x"})
    keys = [P + name for name in (b"stream", b"failed", b"scheduled", b"events")]
    keys += [key(ids[0]), P + b"metrics:failed"]
    reply = raw.fcall(
        "glidemq_fail", 6, *keys, ids[0], entries[0][0], "why", 2_000, 0, 0, "workers", 0, 0, 0, 0
    )
    assert (reply, failed_reason(raw, ids[0])) == (b"failed", "why")
    for now in range(10):  # more often than it may be lost
        raw.fcall("gmo_reclaim", 1, P + b"stream", 9_000_000 + 5_000 * now, "workers", "other", 0, 0, 1)
        raw.xreadgroup("workers", "node", {P + b"stream": ">"}, count=2)
        raw.hset(key(ids[1]), mapping={"state": "active"})
        if raw.zscore(P + b"failed", ids[1]) is not None:
            break
    assert raw.zrange(P + b"failed", 0, -1) == [job_id.encode() for job_id in ids]


@pytest.mark.parametrize("function", ["gmo_reclaim", "glidemq_reclaimStalled"])
def test_a_job_that_is_no_hash_leaves_no_other_with_its_dead_worker(
    raw: Any, queue: Queue, function: str
) -> None:
    bad, good = (queue.add("work", n) for n in range(2))
    raw.xgroup_create(P + b"stream", "workers", "0")
    raw.xreadgroup("workers", "dead", {P + b"stream": ">"}, count=2)
    raw.delete(key(bad))
    raw.set(key(bad), "text")
    raw.hset(key(good), "state", "active")
    if function == "gmo_reclaim":
        raw.fcall(function, 1, P + b"stream", 9_000_000, "workers", "other", 0, 0, 3)
    else:
        keys = (P + b"stream", P + b"events")
        raw.fcall(function, 2, *keys, "workers", "other", 0, 3, 9_000_000, P + b"failed", 0, 0)
    assert raw.hget(key(good), "state") == b"waiting"
    assert raw.zrange(P + b"failed", 0, -1) == [bad.encode()]
    assert raw.xpending(P + b"stream", "workers")["pending"] == 0
    (job,) = queue.get_jobs(JobState.FAILED)
    assert (job.id, job.state, job.broken) == (bad, JobState.UNKNOWN, True)
    queue.remove(bad)
    assert queue.get_jobs(JobState.FAILED) == []


def test_an_id_that_is_not_utf8_keeps_its_bytes_to_the_end(
    raw: Any, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    """A producer in another language chose it."""
    keys = [P + name for name in (b"id", b"stream", b"scheduled", b"events")]
    args = ("work", "1", "{}", 1, 0, 0, "", 0, "", 0, 0, 0, 0, 0, 0, 0, LATIN)
    assert raw.fcall("glidemq_addJob", 4, *keys, *args) == LATIN
    good = queue.add("work", 2)
    running = run_worker(["etl"], {"work": lambda ctx: ctx.data})
    eventually(lambda: queue.get_job(good).state is JobState.COMPLETED)
    bad = P + b"job:" + LATIN
    assert eventually(lambda: raw.hmget(bad, "state", "failedReason")[0] == b"failed")
    assert raw.hget(bad, "failedReason") == b"DecodeError: its id is not UTF-8"
    (job,) = queue.get_jobs(JobState.FAILED)
    assert job.id.encode("utf-8", "surrogateescape") == LATIN
    queue.remove(job.id)
    assert (raw.exists(bad), running.error) == (0, None)


@pytest.mark.parametrize("kind", ["hash", "text"])
def test_an_odd_delayed_job_delays_no_other(
    raw: Any, queue: Queue, run_worker: RunWorker, eventually: Eventually, kind: str
) -> None:
    options = JobOptions(delay=timedelta(milliseconds=1))
    ids = [queue.add("work", n, options=options) for n in range(3)]
    if kind == "hash":
        spoil(raw, ids[0], {"priority": "1e300", "delay": "x", "timestamp": "-", "attemptsMade": "1.5"})
    else:
        raw.delete(key(ids[0]))
        raw.set(key(ids[0]), "text")
    raw.zadd(P + b"scheduled", {"nobody": float("-inf"), ids[1]: float("inf")})
    running = run_worker(["etl"], {"work": lambda ctx: ctx.data})
    eventually(lambda: [queue.get_job(job_id).state for job_id in ids[1:]] == [JobState.COMPLETED] * 2)
    eventually(lambda: raw.zscore(P + b"failed", ids[0]) is not None)
    assert (running.error, raw.zcard(P + b"scheduled")) == (None, 0)


@pytest.mark.parametrize("flow", ["\\ud83d", "\\udc80", "caf\\u00e9"])
def test_an_invalid_mark_of_a_flow_ends_no_worker(
    raw: Any, queue: Queue, run_worker: RunWorker, eventually: Eventually, flow: str
) -> None:
    bad, good = (queue.add("work", n) for n in range(2))
    spoil(raw, bad, {"opts": f'{{"gmo":{{"flow":"{flow}","node":"a"}}}}'})

    def work(ctx: Context) -> Any:
        if ctx.job_id == bad:
            raise ValueError("it fails")
        return ctx.data

    running = run_worker(["etl"], {"work": work})
    assert "it fails" in eventually(lambda: failed_reason(raw, bad))
    eventually(lambda: queue.get_job(good).state is JobState.COMPLETED)
    assert queue.add_and_wait("work", 1, timeout=5 * SECOND) == 1
    assert running.error is None


def test_a_timeout_that_no_clock_knows_does_no_harm(
    raw: Any, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    odd = {
        queue.add("work", 1): value for value in ("1e300", "9007199254740993", "-1", '"x"', "true", "1e999")
    }
    for job_id, value in odd.items():
        spoil(raw, job_id, {"opts": f'{{"timeout":{value},"lockDuration":{value},"attempts":{value}}}'})
    running = run_worker(["etl"], {"work": lambda ctx: ctx.data})
    eventually(lambda: all(queue.get_job(job_id).state is JobState.COMPLETED for job_id in odd))
    assert running.error is None


def test_an_events_stream_that_cannot_be_written_stops_no_job(
    raw: Any, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    """An entry of another client used its last id up."""
    raw.delete(P + b"events")
    raw.xadd(P + b"events", {"garbage": LATIN}, id=b"18446744073709551615-18446744073709551615")
    running = run_worker(["etl"], {"work": lambda ctx: ctx.data})
    ids = [queue.add("work", n, options=JobOptions(attempts=2)) for n in range(3)]
    eventually(lambda: all(queue.get_job(job_id).state is JobState.COMPLETED for job_id in ids))
    assert running.error is None


def test_garbage_in_the_events_keeps_the_worker_listening(
    raw: Any, queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    running = run_worker(["etl"], {"work": lambda ctx: ctx.data})
    for fields in (
        {LATIN: LATIN},
        {"event": LATIN, "jobId": b"\xff"},
        {"event": "retrying", "delay": "abc-xyz"},
    ):
        raw.xadd(P + b"events", fields)
    raw.xadd(P + b"stream", {LATIN: b"\xff\xfe"})
    raw.xadd(P + b"stream", {"jobId": LATIN, "name": b"\xff"})
    for n in range(3):
        assert queue.add_and_wait("work", n, timeout=5 * SECOND) == n
    assert running.error is None


def test_an_odd_message_ends_for_its_subscription_and_the_next_is_handled(
    raw: Any, url: str, eventually: Eventually
) -> None:
    seen: list[Any] = []
    worker = BroadcastWorker(
        "etl", lambda ctx: seen.append(ctx.data), url, subscription="s", start_from="0-0"
    )
    with Broadcast("etl", url) as news:
        ids = [news.publish("work", n, options=JobOptions(attempts=3)) for n in range(6)]
        spoil(raw, ids[0], {"attemptsMade": "x"})
        spoil(raw, ids[1], {"name": LATIN})
        spoil(raw, ids[2], {"data": b'"' + LATIN + b'"'})
        raw.hset(key(ids[3]) + b":sub:s", "a", "garbage")
        raw.delete(key(ids[4]))
        raw.set(key(ids[4]), "text")
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        try:
            eventually(lambda: 5 in seen)
            eventually(lambda: 3 in seen)  # a count of attempts that cannot be read is none
            for job_id in ids[:3]:
                assert eventually(lambda job_id=job_id: failed_reason(raw, job_id))  # type: ignore[misc]
            news.publish("work", "more")
            eventually(lambda: "more" in seen)
            assert thread.is_alive()
        finally:
            worker.stop()
            thread.join(10)
    assert sorted(seen, key=str) == [3, 5, "more"]
