"""Dependencies between jobs of one queue that belong to no flow: added, removed, and respected by a cancel.

``lua/glidemq_orchestrate/parts/edges.lua`` says how they are stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from glidemq_orchestrate.errors import GlideMQError, HasDependents, InvalidJob, JobStateConflict
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.jobs.job import JobId
from glidemq_orchestrate.queues import removal
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, Word, ask, function
from glidemq_orchestrate.wire.keys import QueueKeys, read_member

MAX_JOBS: Final = 100
_REFUSED: Final = {
    "flow": "is a node of a flow. Fix: change the flow, with extend, rerun or another specification",
    "ordered": "has an ordering key, which fixes its place",
    "its children": "waits for child jobs that its handler has added",
    "cycle": "cannot wait for these jobs: one of them waits for it, or has more than 1,000 dependencies",
}
_WAIT_FOR_NOTHING: Final = frozenset({"waiting", "delayed", "prioritized"})


@dataclass(frozen=True, slots=True)
class ChangedDependencies:
    """What became of the jobs in a change of dependencies.

    Attributes:
        changed: Those that the job now waits for, or no longer waits for.
        ended: Those that had completed or failed: the job does not wait for them.
        unknown: Those that do not exist; when dependencies are removed, those that were none.
    """

    changed: Sequence[JobId]
    ended: Sequence[JobId] = ()
    unknown: Sequence[JobId] = ()


@dataclass(frozen=True, slots=True)
class CancelledJobs:
    """What became of the jobs of a cancel.

    Attributes:
        cancelled: Those that have ended as failed, with the reason ``revoked``; dependents first.
        stopping: Those that run: their workers are notified; they may still complete.
        ended: Those that had completed or failed.
        unknown: Those that do not exist.
    """

    cancelled: Sequence[JobId]
    stopping: Sequence[JobId]
    ended: Sequence[JobId]
    unknown: Sequence[JobId]


def add_dependencies(
    queue: QueueKeys, job_id: str, others: Iterable[str], now_ms: int
) -> Op[ChangedDependencies]:
    """Make a job wait for others."""
    ids = checked_ids(others)
    if not ids:
        return ChangedDependencies(())
    words = yield from _change(queue, job_id, "on", ids, now_ms)
    by = _by_word(zip(ids, words, strict=True))
    return ChangedDependencies(by("added", "same"), by("ended"), by("unknown"))


def remove_dependencies(
    queue: QueueKeys, job_id: str, others: Iterable[str] | None, now_ms: int
) -> Op[ChangedDependencies]:
    """Make a job wait for others no longer; None: for none."""
    ids = None if others is None else checked_ids(others)
    if ids is None:
        yield from _change(queue, job_id, "off", (), now_ms)
        return ChangedDependencies(())
    words = (yield from _change(queue, job_id, "off", ids, now_ms)) if ids else []
    by = _by_word(zip(ids, words, strict=True))
    return ChangedDependencies(by("removed"), (), by("unknown"))


def _change(
    queue: QueueKeys, job_id: str, what: Literal["on", "off"], others: Sequence[str], now_ms: int
) -> Op[list[str]]:
    word, words = yield from ask(change_dependencies(queue, job_id, what, others, now_ms))
    while word == "more":
        word, _ = yield from ask(change_dependencies(queue, job_id, what, others, now_ms))
    if word == "left":
        yield from removal.drop_lost_entry(queue, job_id)
    elif word != "ok":
        problem = _REFUSED.get(word) or f"is {word}: only jobs that wait to be started have dependencies"
        if word == "cycle" and job_id in others:
            problem = "cannot wait for itself"
        if what == "off" and word in _WAIT_FOR_NOTHING:
            problem = f"is {word}: it waits for no other job"
        raise JobStateConflict(job_id, word, problem)
    return words


def _by_word(pairs: Iterable[tuple[str, str]]) -> Any:
    found = [(JobId(job_id), word) for job_id, word in pairs]
    return lambda *words: tuple(job_id for job_id, word in found if word in words)


def checked_ids(ids: Iterable[str]) -> list[str]:
    """The ids, each once.

    Raises:
        InvalidJob: They are a text, too many, or not texts.
    """
    if isinstance(ids, str):
        raise InvalidJob(f"the jobs must be a list of ids, got the text {described(ids)}")
    given = list(ids)
    for one in given:
        if not isinstance(one, str):
            raise InvalidJob(f"the jobs must be a list of ids, which are texts, got a {type(one).__name__}")
    found = list(dict.fromkeys(given))
    if len(found) > MAX_JOBS:
        raise InvalidJob(f"the jobs must be at most {MAX_JOBS} ids, got {len(found)}")
    return found


def change_dependencies(
    queue: QueueKeys, job_id: str, what: Literal["on", "off"], others: Sequence[str], now_ms: int
) -> Call[tuple[str, list[str]]]:
    """Change the dependencies of a job; returns a word, and one for each of the others. Idempotent."""

    def decode(reply: Any) -> tuple[str, list[str]]:
        word, words = reply
        return replies.text(word), replies.texts(words)

    args = (now_ms, job_id, what, *others)
    return function("gmo_change_dependencies", [queue.job(job_id)], args, decode)


def _has_dependents(changed: str, job_id: str, dependent: str) -> HasDependents:
    for other, other_id in read_member(dependent):  # in another queue
        return HasDependents(job_id, other_id, other.queue, changed=changed)
    return HasDependents(job_id, dependent, changed=changed)


def cancel_jobs(queue: QueueKeys, ids: Iterable[str], now_ms: int, *, cascade: bool) -> Op[CancelledJobs]:
    """Cancel jobs, unless others would wait for them for ever."""
    every = checked_ids(ids)
    if not every:
        return CancelledJobs((), (), (), ())
    args: tuple[Word, ...] = (now_ms, int(cascade), *every)
    words: dict[str, str] = {}
    while True:
        word, *rest = yield from ask(function("gmo_cancel_jobs", [queue.key("id")], args, replies.texts))
        if word not in ("ok", "more"):
            ended = sum(what in ("cancelled", "left") for what in words.values())
            raise _not_cancelled(word, rest, ended)
        for job_id, what in zip(rest[::2], rest[1::2], strict=True):
            words.setdefault(job_id, what)
        if word == "ok":
            break
    for job_id, what in words.items():
        if what == "left":
            yield from removal.drop_lost_entry(queue, job_id)
    by = _by_word(words.items())
    return CancelledJobs(by("cancelled", "left"), by("flagged"), by("ended"), by("unknown"))


def _not_cancelled(word: str, rest: Sequence[str], cancelled: int) -> GlideMQError:
    """Why the other jobs are not cancelled; some were, if another client added a dependency meanwhile."""
    changed = f"{cancelled} jobs were cancelled before" if cancelled else "nothing was changed"
    if word == "flow":
        return JobStateConflict(
            rest[0],
            word,
            "is a node of a flow. Fix: cancel the flow, or only the node (glidemq flow cancel-node)",
        )
    if word == "waits":
        return _has_dependents(changed, *rest)
    return InvalidJob(
        f"more than 200 jobs would be cancelled; {changed}. "
        "Fix: first cancel jobs that no other job waits for"
    )
