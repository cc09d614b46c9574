"""Job options: what is refused, by name, and what is written for a Node worker."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from glidemq_orchestrate import Deduplication, JobOptions, Keep, Ordering, RateLimit
from glidemq_orchestrate.errors import InvalidJob
from glidemq_orchestrate.jobs.adding import EncodedJob, job_words
from glidemq_orchestrate.jobs.option_values import Fallback, JobRef, TokenBucket

SECOND = timedelta(seconds=1)
BUCKET = TokenBucket(capacity=2.5, refill_per_second=0.5)

OPTIONS_ON_THE_WIRE: list[tuple[JobOptions, dict[str, Any]]] = [
    (JobOptions(priority=3), {"priority": 3}),
    (JobOptions(lifo=True), {"lifo": True}),
    (JobOptions(ttl=SECOND), {"ttl": 1000}),
    (JobOptions(cost=0.5), {"cost": 0.5}),
    (JobOptions(lease=60 * SECOND), {"lockDuration": 60_000}),
    (JobOptions(remove_on_complete=True), {"removeOnComplete": True}),
    (JobOptions(remove_on_fail=100), {"removeOnFail": 100}),
    (JobOptions(remove_on_complete=Keep(age=60 * SECOND)), {"removeOnComplete": {"age": 60}}),
    (JobOptions(remove_on_fail=Keep(5, 1.2 * SECOND)), {"removeOnFail": {"age": 2, "count": 5}}),
    (
        JobOptions(fallbacks=[Fallback("m"), Fallback("n", "p", {"t": 1})]),
        {"fallbacks": [{"model": "m"}, {"model": "n", "provider": "p", "metadata": {"t": 1}}]},
    ),
    (JobOptions(parent=JobRef("etl", "7")), {"parent": {"queue": "etl", "id": "7"}}),
    (
        JobOptions(ordering=Ordering("k", 2, RateLimit(5, SECOND), BUCKET)),
        {
            "ordering": {
                "key": "k",
                "concurrency": 2,
                "rateLimit": {"max": 5, "duration": 1000},
                "tokenBucket": {"capacity": 2.5, "refillRate": 0.5},
            }
        },
    ),
    (JobOptions(deduplication=Deduplication("d")), {"deduplication": {"id": "d", "mode": "simple"}}),
    (
        JobOptions(deduplication=Deduplication("d", "throttle", SECOND)),
        {"deduplication": {"id": "d", "mode": "throttle", "ttl": 1000}},
    ),
]

INVALID_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"priority": -1}, "priority"),
    ({"priority": 2049}, "priority"),
    ({"priority": True}, "priority"),
    ({"priority": 1.5}, "priority"),
    ({"attempts": 2**54}, "attempts"),
    ({"ttl": timedelta(0)}, "ttl"),
    ({"ttl": "5"}, "ttl"),
    ({"delay": True}, "delay"),
    ({"delay": timedelta(days=20_000)}, "delay"),
    ({"cost": -1}, "cost"),
    ({"cost": float("nan")}, "cost"),
    ({"cost": float("inf")}, "cost"),
    ({"cost": "1"}, "cost"),
    ({"traceparent": 5}, "traceparent"),
    ({"traceparent": ""}, "traceparent"),
    ({"traceparent": "\ud800"}, "traceparent"),
    ({"lifo": True, "ordering": Ordering("k")}, "lifo"),
    ({"lease": timedelta(milliseconds=999)}, "lease"),
    ({"lease": timedelta(days=2)}, "lease"),
    ({"remove_on_complete": 0}, "remove_on_complete"),
    ({"remove_on_fail": -1}, "remove_on_fail"),
    ({"remove_on_fail": "all"}, "remove_on_fail"),
    ({"ordering": Ordering("k", token_bucket=BUCKET), "cost": 3}, "cost 3 is more than"),
    ({"ordering": Ordering("k", token_bucket=TokenBucket(0.5, 1))}, "cost 1 is more than"),
]

INVALID_PARTS: list[tuple[type, dict[str, Any], str]] = [
    (Ordering, {"key": ""}, "ordering.key"),
    (Ordering, {"key": "k" * 257}, "ordering.key"),
    (Ordering, {"key": "__"}, "ordering.key"),
    (Ordering, {"key": "k", "concurrency": 0}, "ordering.concurrency"),
    (RateLimit, {"max": 0, "per": SECOND}, "rate_limit.max"),
    (RateLimit, {"max": 1, "per": timedelta(0)}, "rate_limit.per"),
    (TokenBucket, {"capacity": 0, "refill_per_second": 1}, "token_bucket.capacity"),
    (TokenBucket, {"capacity": 1, "refill_per_second": -1}, "token_bucket.refill_per_second"),
    (Deduplication, {"id": ""}, "deduplication.id"),
    (Deduplication, {"id": "d", "mode": "often"}, "deduplication.mode"),
    (Deduplication, {"id": "d", "mode": "throttle"}, "deduplication.ttl"),
    (Deduplication, {"id": "d", "ttl": SECOND}, "deduplication.ttl"),
    (Deduplication, {"id": "d", "mode": "throttle", "ttl": timedelta(0)}, "deduplication.ttl"),
    (Keep, {}, "keep"),
    (Keep, {"count": 0}, "keep.count"),
    (Keep, {"age": timedelta(milliseconds=1)}, "keep.age"),
    (Fallback, {"model": ""}, "fallbacks.model"),
    (Fallback, {"model": "m", "metadata": {"a": {1}}}, "fallbacks.metadata"),
    (JobRef, {"queue": "a:b", "id": "1"}, "not a job"),
    (JobRef, {"queue": "a", "id": "{"}, "not a job"),
]


def test_the_options_json_is_what_a_node_worker_reads(subtests: pytest.Subtests) -> None:
    for options, wire in OPTIONS_ON_THE_WIRE:
        with subtests.test(options=options):
            assert json.loads(options.to_wire()) == wire


def test_the_words_of_a_plain_job_are_the_defaults_of_the_wire() -> None:
    words = job_words(EncodedJob("n", '"d"', JobOptions()), 5)
    assert words == ("n", '"d"', "{}", 5, 0, 0, "", 1, "", 0, 0, 0, 0, 0, 0, 0, "", 0, "")


def test_the_words_of_a_job_stand_in_the_order_of_the_wire() -> None:
    options = JobOptions(
        attempts=4,
        delay=1.5 * SECOND,
        priority=9,
        ttl=2 * SECOND,
        job_id="own",
        cost=1.2345,
        ordering=Ordering("k", 2, RateLimit(5, SECOND), BUCKET),
        parent=JobRef("up", "7"),
    )
    words = job_words(EncodedJob("n", "1", options), 5)
    assert words[:8] == ("n", "1", options.to_wire(), 5, 1500, 9, "7", 4)
    assert words[8:] == ("k", 2, 5, 1000, 2500, 500, 1235, 2000, "own", 0, "up")
    assert job_words(EncodedJob("n", "1", JobOptions(lifo=True)), 5)[17] == 1


def test_an_invalid_option_is_refused_by_name(subtests: pytest.Subtests) -> None:
    for wrong, expected in INVALID_OPTIONS:
        with subtests.test(wrong=wrong), pytest.raises(InvalidJob, match=expected):
            JobOptions(**wrong)


def test_an_invalid_part_of_an_option_is_refused_by_name(subtests: pytest.Subtests) -> None:
    for part, wrong, expected in INVALID_PARTS:
        with subtests.test(part=part), pytest.raises(InvalidJob, match=expected):
            part(**wrong)


def test_the_bounds_themselves_are_allowed() -> None:
    JobOptions(priority=2048, lease=timedelta(days=1), ttl=timedelta(milliseconds=1), cost=0)
    JobOptions(lease=SECOND, delay=timedelta(days=10_000))
    Ordering("k" * 256)
