"""Tags: words by which jobs are found. ``lua/shared/tags.lua`` says how they are stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from glidemq_orchestrate.errors import GlideMQError, JobNotFound
from glidemq_orchestrate.foundation.values import TAG
from glidemq_orchestrate.jobs.options import checked_tags
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_each, command, function, parts
from glidemq_orchestrate.wire.keys import QueueKeys

PAGE: Final = 200


@dataclass(frozen=True, slots=True)
class TagCount:
    """A tag, and how many jobs have it."""

    tag: str
    count: int


def change_tags(
    queue: QueueKeys, job_id: str, what: Literal["add", "remove"], tags: Iterable[str], now_ms: int
) -> Op[list[str]]:
    """Add tags to a job, or take them off; returns all its tags."""
    return (yield from ask(tag_job(queue, job_id, what, checked_tags(tags), now_ms)))


def tag_job(
    queue: QueueKeys, job_id: str, what: Literal["add", "remove"], tags: Sequence[str], now_ms: int
) -> Call[list[str]]:
    """Add at most 32 checked tags to a job, or take them off. Idempotent."""
    return function("gmo_tag_job", [queue.job(job_id)], (now_ms, job_id, what, *tags), replies.texts)


def tag_new_jobs(queue: QueueKeys, jobs: Iterable[tuple[str, Sequence[str]]], now_ms: int) -> Op[None]:
    """Add tags to new jobs; those that have already been removed have none."""
    for part in parts([(job_id, tags) for job_id, tags in jobs if tags]):
        calls = [tag_job(queue, job_id, "add", tags, now_ms) for job_id, tags in part]
        for reply in (yield from ask_each(calls)):
            if isinstance(reply, GlideMQError) and not isinstance(reply, JobNotFound):
                raise reply


def tag_counts(queue: QueueKeys, first: int, count: int) -> Call[list[TagCount]]:
    """The tags, most used first."""

    def decode(reply: Any) -> list[TagCount]:
        return [TagCount(tag, int(float(count))) for tag, count in zip(reply[::2], reply[1::2], strict=True)]

    words = ("ZREVRANGE", queue.key("qx:tags"), first, first + count - 1, "WITHSCORES")
    return command(*words, decode=decode)


def tagged_ids(queue: QueueKeys, tag: str, first: int, count: int, now_ms: int) -> Op[tuple[int, list[str]]]:
    """How many jobs have a tag, and some of them, those that have had it longest first."""
    TAG.check(tag)
    ids, total = list[str](), 0
    while True:
        size = min(count - len(ids), PAGE)
        total, page = yield from ask(_tagged_page(queue, tag, first + len(ids), size, now_ms))
        ids += page
        if len(page) < size or len(ids) >= count:
            return total, ids


def _tagged_page(
    queue: QueueKeys, tag: str, first: int, count: int, now_ms: int
) -> Call[tuple[int, list[str]]]:
    def decode(reply: Any) -> tuple[int, list[str]]:
        total, ids = reply
        return replies.integer(total), replies.texts(ids)

    return function("gmo_tagged_jobs", [queue.key("id")], (now_ms, tag, first, count), decode)
