"""gmo_mark: a write without a trace, behind which WAIT and WAITAOF see all earlier ones."""

from __future__ import annotations

from typing import Any

import pytest

from glidemq_orchestrate import Queue
from glidemq_orchestrate.wire.keys import mark_key

KEY = mark_key("glide", "glide:{etl}:stream")


@pytest.fixture
def marked(url: str, redis_client: Any) -> Any:
    with Queue("etl", url) as queue:
        queue.counts()  # loads the libraries
    return redis_client


def test_it_leaves_nothing_and_returns_the_replication_id(marked: Any) -> None:
    before = sorted(marked.keys("*"))
    assert marked.fcall("gmo_mark", 1, KEY) == marked.info("replication")["master_replid"]
    assert sorted(marked.keys("*")) == before


def test_it_is_a_write_each_time(marked: Any) -> None:
    changes = []
    for _ in range(3):
        marked.fcall("gmo_mark", 1, KEY)
        changes.append(marked.info("persistence")["rdb_changes_since_last_save"])
    assert changes[0] < changes[1] < changes[2]


def test_it_works_when_memory_is_full(marked: Any) -> None:
    marked.config_set("maxmemory", 1)
    try:
        assert marked.fcall("gmo_mark", 1, KEY)
    finally:
        marked.config_set("maxmemory", 0)
