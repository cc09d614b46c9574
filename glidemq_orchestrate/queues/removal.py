"""Removes and revokes jobs, which may be nodes of flows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from glidemq_orchestrate.errors import (
    JobStateConflict,
)
from glidemq_orchestrate.flows import backend
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs import pages
from glidemq_orchestrate.jobs.changes import complete_child, drop_entry, remove_jobs, revoke_job
from glidemq_orchestrate.jobs.job import job_exists
from glidemq_orchestrate.jobs.job_hash import missing
from glidemq_orchestrate.wire.call import Op, ask, ask_all
from glidemq_orchestrate.wire.keys import QueueKeys, read_member

NODE: Final = "node"
PAGE: Final = 1000


Revoked = Literal["revoked", "flagged"]


def revoke(queue: QueueKeys, job_id: str, clock: Clock) -> Op[Revoked]:
    """End a job that is not running; flag a running one."""
    word, flow_id = yield from ask(revoke_job(queue, job_id, clock.now_ms()))
    if flow_id:
        yield from backend.advance(queue, flow_id, clock)
    if word == "left":
        yield from _drop_entry(queue, job_id)
    if word in ("revoked", "left"):
        return "revoked"
    if word == "flagged":
        return "flagged"
    raise JobStateConflict(job_id, word, f"is already {word}")


def remove(queue: QueueKeys, job_id: str, now_ms: int) -> Op[None]:
    """Delete a job and all its data."""
    (word,) = yield from remove_some(queue, [(job_id, "")], "removed", now_ms)
    if word == "missing":
        raise missing(queue, job_id)
    if word == "flow":
        raise JobStateConflict(job_id, "flow", "is a node of a flow that has not ended. Fix: cancel the flow")


def remove_some(queue: QueueKeys, jobs: Sequence[tuple[str, str]], event: str, now_ms: int) -> Op[list[str]]:
    """Delete up to 100 jobs by pairs of job id and stream entry; returns a word for each."""
    words, elsewhere = yield from ask(remove_jobs(queue, jobs, event, now_ms))
    if nodes := [job_id for (job_id, _), word in zip(jobs, words, strict=True) if word == NODE]:
        removed = yield from _remove_nodes(queue, nodes, event, now_ms)
        words = [removed.get(job_id, word) for (job_id, _), word in zip(jobs, words, strict=True)]
    for member, parent, parent_id in _foreign(elsewhere):
        # Some glidemq libraries create a hash for a removed parent.
        if (yield from ask(job_exists(parent, parent_id))):
            yield from ask(complete_child(parent, parent_id, member))
    for (job_id, _), word in zip(jobs, words, strict=True):
        if word == "left":
            yield from _drop_entry(queue, job_id)
    return words


def _remove_nodes(queue: QueueKeys, nodes: Sequence[str], event: str, now_ms: int) -> Op[dict[str, str]]:
    """Delete nodes whose ended flows are unknown to this server; returns a word for each."""
    marks = yield from backend.removal_marks(queue, nodes)
    words = dict.fromkeys(nodes, "flow")
    if marks:
        found, _ = yield from ask(remove_jobs(queue, list(marks.items()), event, now_ms))
        words |= dict(zip(marks, found, strict=True))
    return words


def _drop_entry(queue: QueueKeys, job_id: str) -> Op[None]:
    """Find and delete the stream entry of a job that is not near its expected position, a page at a time."""
    start = "-"
    while True:
        entries = yield from ask(pages.stream_page(queue, start, PAGE))
        for entry_id, found in entries:
            if found == job_id:
                yield from ask_all(drop_entry(queue, entry_id))
                return
        if len(entries) < PAGE:
            return
        start = f"({entries[-1][0]}"


def _foreign(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, QueueKeys, str]]:
    return [(member, keys, job_id) for member, ref in pairs for keys, job_id in read_member(ref)]
