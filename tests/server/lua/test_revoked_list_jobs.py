"""What was revoked in the LIFO or priority list stays there until it is popped; nothing may trip over it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.server.lua.conftest import Queue

T = 1700000000000
LISTS = [("lifo", {"lifo": 1}), ("priority", {"priority": 1})]


@pytest.mark.parametrize(("name", "given"), LISTS)
def test_retried_job_is_in_its_list_once(q: Queue, name: str, given: dict[str, int]) -> None:
    q.add(**given)
    q.promote(T)
    q.revoke("1")
    assert q.valkey.lrange(q.key(name), 0, -1) == ["1"]
    q.retry_jobs(0, T)
    assert not q.valkey.exists(q.key(name)), "popped now, the delayed job would run while it is scheduled"
    q.promote(T)
    assert q.valkey.lrange(q.key(name), 0, -1) == ["1"]


@pytest.mark.parametrize(("name", "given"), LISTS)
def test_drained_job_is_in_no_set(q: Queue, name: str, given: dict[str, int]) -> None:
    q.add(**given)
    q.promote(T)
    q.revoke("1")
    assert q.drain() == 1
    assert (q.job("1"), q.scores("failed"), q.valkey.exists(q.key(name))) == ({}, {}, 0)
