"""Jobs as a Node producer adds them, seen by raw commands."""

from __future__ import annotations

from typing import Any

import pytest

from glidemq_orchestrate import Queue

P = "glide:{etl}:"


def add(client: Any, name: str = "work", data: str = "null", **kw: Any) -> str:
    """Add a job as a Node producer does."""
    keys = [P + key for key in ("id", "stream", "scheduled", "events")]
    timing = (kw.get("delay", 0), kw.get("priority", 0), kw.get("parent", ""), kw.get("attempts", 0))
    tail = (
        "",
        0,
        0,
        0,
        0,
        0,
        0,
        kw.get("ttl", 0),
        "",
        int(kw.get("lifo", False)),
        kw.get("parent_queue", ""),
    )
    args = (name, data, kw.get("opts", "{}"), client.time()[0] * 1000, *timing, *tail, "", 0)
    if kw.get("parent"):
        keys.append(f"{P}deps:{kw['parent']}")
    job_id: str = client.fcall("glidemq_addJob", len(keys), *keys, *args)
    return job_id


def state(client: Any, job_id: str) -> str | None:
    found: str | None = client.hget(f"{P}job:{job_id}", "state")
    return found


@pytest.fixture
def client(redis_client: Any, queue: Queue) -> Any:
    """Raw commands on a server whose libraries are loaded."""
    queue.add("nobody")
    redis_client.flushall()
    return redis_client
