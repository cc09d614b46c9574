"""A producer of an older protocol version: seventeen texts as arguments, and plain commands to read back."""

from __future__ import annotations

import json
import time

import redis


def test_a_producer_with_seventeen_texts_adds_a_job_and_reads_it_back(valkey: redis.Redis) -> None:
    place = "glide:{q}"
    data = json.dumps({"to": "user@example.com", "subject": "Hello"})
    keys = [f"{place}:{name}" for name in ("id", "stream", "scheduled", "events")]
    now = str(time.time_ns() // 1_000_000)
    arguments = ["send-email", data, "{}", now, "0", "0", "", "0", "", "0", "0", "0", "0", "0", "0", "0", ""]

    job_id = valkey.fcall("glidemq_addJob", len(keys), *keys, *arguments)

    assert job_id == "1"
    assert valkey.hgetall(f"{place}:job:{job_id}") == {
        "id": "1",
        "name": "send-email",
        "data": data,
        "opts": "{}",
        "timestamp": now,
        "attemptsMade": "0",
        "delay": "0",
        "priority": "0",
        "maxAttempts": "0",
        "state": "waiting",
    }
    assert valkey.xlen(f"{place}:stream") == 1
    assert [valkey.zcard(f"{place}:{name}") for name in ("completed", "failed", "scheduled")] == [0, 0, 0]
