"""The log records of a worker, about its jobs and about failures."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from glidemq_orchestrate.attempts.exchange import UNBEGUN, Kind, Outcome
from glidemq_orchestrate.attempts.handler_code import HandlerCode
from glidemq_orchestrate.attempts.upkeep import ReclaimedJobs
from glidemq_orchestrate.attempts.workers import OtherCode
from glidemq_orchestrate.errors import GlideMQError, TransportError
from glidemq_orchestrate.foundation.texts import in_line
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.worker.handlers.code import difference
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.registered import JobEvent
from glidemq_orchestrate.worker.handlers.tracebacks import text_of

logger = logging.getLogger("glidemq_orchestrate.worker")

LARGE_RESULT: Final = 256 * 1024
REPEAT_SECONDS: Final = 60.0
MAX_LINES_A_SECOND: Final = 50

_ENDS: Final = {
    Kind.DONE: ("job_completed", "%s: completed in %.2f s"),
    Kind.SKIP: ("job_skipped", "%s: skipped after %.2f s: %s"),
    Kind.LATER: ("job_later", "%s: ran for %.2f s and continues later"),
    Kind.CHILDREN: ("job_waits", "%s: ran for %.2f s and waits for its children"),
    Kind.SUSPEND: ("job_suspended", "%s: ran for %.2f s and waits for a signal"),
}


def failure_of(outcome: Outcome) -> str:
    """Why an attempt failed. If the server refused what its handler returned, only the job has the reason."""
    return "its result was refused; the job has the reason" if outcome.kind is Kind.DONE else outcome.text


class OneLine(logging.Filter):
    """Keeps a record in one line: an id with a line end could forge log records."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Escape control characters in the arguments of the message; no record is dropped."""
        if isinstance(record.args, tuple):
            record.args = tuple(_escaped(value) for value in record.args)
        return True


def _escaped(value: object) -> object:
    if isinstance(value, str):
        return value if value.isprintable() else in_line(value)
    return _Escaped(value) if isinstance(value, BaseException) else value


class _Escaped:
    """An exception whose text is one line."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __str__(self) -> str:
        return in_line(str(self._error))

    def __repr__(self) -> str:
        return in_line(repr(self._error))


class Lines:
    """Lines of one kind: at most ``MAX_LINES_A_SECOND``; the others of a second are counted in one line.

    At DEBUG, all are logged.

    Args:
        level: Of the line that counts.
        what: What it counts, as in "2,431 more jobs ended well".
        action: Its ``action``.
    """

    def __init__(self, level: int, what: str, action: str) -> None:
        self._level, self._what, self._action = level, what, action
        self._second, self._lines, self._uncounted = 0.0, 0, 0

    def have_room(self) -> bool:
        """Whether another line may be written in this second; logs how many were left out before."""
        now = time.monotonic()
        if now - self._second >= 1:
            self.flush()
            self._second, self._lines = now, 0
        self._lines += 1
        if self._lines <= MAX_LINES_A_SECOND or logger.isEnabledFor(logging.DEBUG):
            return True
        if not self._uncounted:
            asyncio.get_running_loop().call_later(1.0, self.flush)
        self._uncounted += 1
        return False

    def flush(self) -> None:
        """Log how many had no line of their own."""
        if self._uncounted:
            text = f"%s more {self._what} (at most %d lines a second)"
            extra = {"action": self._action, "jobs": self._uncounted}
            logger.log(self._level, text, f"{self._uncounted:,}", MAX_LINES_A_SECOND, extra=extra)
        self._uncounted = 0


class JobLog:
    """Logs how each attempt ended, in one line: the job or its node and flow, the outcome, the seconds.

    Of what can happen to very many jobs at the same moment, only some have a line of their own: ends that
    are good, refused outcomes, starts after the loss of a worker, and failures of elements of arrays.
    """

    def __init__(self) -> None:
        self._known_as_large: set[tuple[str, str]] = set()
        self._good = Lines(logging.INFO, "jobs ended well", "jobs_ended")
        self._refused = Lines(logging.WARNING, "outcomes were not accepted", "outcomes_refused")
        self._again = Lines(logging.WARNING, "run again after a worker was lost", "after_losses")
        self._failed = Lines(logging.ERROR, "elements of arrays failed", "elements_failed")
        self._retried = Lines(logging.INFO, "elements of arrays failed and run again", "elements_retrying")

    def verdict(self, outcome: Outcome, verdict: str) -> None:
        """Log the verdict of the server on an outcome."""
        attempt = outcome.attempt
        if verdict == "ok":
            if len(outcome.text) > LARGE_RESULT and outcome.kind is Kind.DONE:
                self._warn_of_size(attempt, len(outcome.text))
            if logger.isEnabledFor(logging.INFO):
                self._accepted(outcome)
        elif verdict == "retrying":
            if attempt.element is None or self._retried.have_room():
                pause = outcome.second / 1000
                text = "%s: attempt %d failed after %.2f s, runs again in %.4g s: %s"
                again = attempt.attempts_made + 1, attempt.seconds, pause, outcome.text
                log_job(logging.INFO, text, attempt, "retrying", *again)
        elif verdict == "failed":
            if attempt.element is None or self._failed.have_room():
                text = "%s: failed after %.2f s (attempt %d): %s"
                values = attempt.seconds, attempt.attempts_made + 1, failure_of(outcome)
                log_job(logging.ERROR, text, attempt, "job_failed", *values)
        elif self._refused.have_room():
            # Also the reply to a repeated report whose first reply was lost.
            text = "%s: outcome not accepted: %s"
            log_job(logging.WARNING, text, attempt, "outcome_refused", verdict)

    def runs_again(self, attempt: Attempt) -> None:
        """Log that an attempt begins whose job was held by a worker that was lost."""
        if self._again.have_room():
            text = "%s: runs again after its worker was lost; that costs no attempt"
            if attempt.slice:  # such an element runs alone
                attempt = replace(attempt, element=attempt.slice.indexes[0])
            log_job(logging.WARNING, text, attempt, "after_loss")

    def _accepted(self, outcome: Outcome) -> None:
        """Log an end, a skip or a pause at INFO, and what is only handed back at DEBUG."""
        if outcome.kind is Kind.BACK or (outcome.kind is Kind.LATER and outcome.second == UNBEGUN):
            log_job(logging.DEBUG, "%s: returned to its queue", outcome.attempt, "returned")
            return
        if not self._good.have_room():
            return
        if outcome.kind is Kind.ELEMENTS:
            count, seconds = outcome.elements, outcome.attempt.seconds
            text = "%s: %s elements completed in %.2f s"
            log_job(logging.INFO, text, outcome.attempt, "elements_completed", f"{count:,}", seconds)
            return
        action, text = _ENDS[outcome.kind]
        reason = (outcome.text,) if outcome.kind is Kind.SKIP else ()
        log_job(logging.INFO, text, outcome.attempt, action, outcome.attempt.seconds, *reason)

    def flush(self) -> None:
        """Log how many had no line of their own."""
        for lines in (self._good, self._refused, self._again, self._failed, self._retried):
            lines.flush()

    def _warn_of_size(self, attempt: Attempt, size: int) -> None:
        """Warn once per job name: large results fill the memory of the server."""
        if (attempt.queue, attempt.name) in self._known_as_large:
            return
        self._known_as_large.add((attempt.queue, attempt.name))
        text = (
            "queue %s: results of %s are large (%s characters). Each is in the job and in its event, and a "
            "queue stores few such events. Fix: write them to a file, table or object store, and return "
            "their location"
        )
        logger.warning(text, attempt.queue, attempt.name, f"{size:,}", extra=about("large_result", attempt))


def log_other_code(queue: QueueKeys, code: Mapping[str, HandlerCode], others: Iterable[OtherCode]) -> None:
    """Log at the start of a worker which others run handlers of the same names with other code."""
    for other in others:
        first, *more = other.handlers
        names = f"handler {first}" + (f" and {len(more)} more" if more else "")
        logger.warning(
            "queue %s: worker %s on %s (pid %d) has other code for %s (%s), and runs some of the jobs. "
            "Fix: stop that worker if its code is old; otherwise rename the handler here or there",
            queue.queue,
            other.id,
            other.host,
            other.pid,
            names,
            difference(code[first], other.there),
            extra={"action": "other_code", "queue": queue.queue},
        )


def log_lost_workers(lost: Iterable[tuple[QueueKeys, ReclaimedJobs]]) -> None:
    """Log which workers were lost, and how many of their jobs run again."""
    for keys, one in lost:
        some = f" ({', '.join(one.ids)}{', ...' if one.begun > len(one.ids) else ''})" if one.ids else ""
        text = (
            "queue %s: worker %s was lost, or sent no heartbeat within its lease: %d of its jobs run again, "
            "which costs no attempt; %d of them had started%s"
        )
        values = keys.queue, one.worker or "(unknown)", one.jobs, one.begun, some
        extra = {"action": "worker_lost", "queue": keys.queue, "worker": one.worker}
        logger.warning(text, *values, extra=extra)


def log_job(level: int, text: str, job: Attempt, action: str, *values: object) -> None:
    """Log about a job; ``text`` begins with a place for its name."""
    extra = about(action, job)
    if job.seconds:
        extra |= {"seconds": round(job.seconds, 3), "attempt": job.attempts_made + 1}
    logger.log(level, text, job_name(job), *values, extra=extra)


def job_name(job: Attempt | JobEvent) -> str:
    """A job as its users know it: a node of a flow, or a job id with the name of its handler."""
    if job.flow_id and job.node:
        element = job.element if isinstance(job, Attempt) else None
        return f"node {job.node}{'' if element is None else f'[{element}]'} of flow {job.flow_id}"
    return f"job {job.job_id} ({job.name})"


def about(action: str, job: Attempt | JobEvent) -> dict[str, Any]:
    """The fields of a log record about a job."""
    return {
        "action": action,
        "queue": job.queue,
        "job_id": job.job_id,
        "handler": job.name,
        "flow_id": job.flow_id,
        "node": job.node,
    }


class FailureLog:
    """Logs the failures that a service survives: immediately at first, then once a minute with a count.

    If a server cannot be reached, everything that needs it fails in the same way: that has one line. The
    others, and that they work again, are logged at DEBUG.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._known: dict[str, tuple[str, float, int]] = {}
        self._outages: dict[str, tuple[str, float]] = {}
        """The text of an outage -> which activity has logged it, and when."""
        self._shown: set[str] = set()
        """The activities of which a failure was logged."""

    def report(self, what: str, exc: BaseException) -> None:
        """Log a failure, unless the same one was logged within the last minute."""
        text, now = f"{type(exc).__name__}: {text_of(exc)}", time.monotonic()
        known, since, count = self._known.get(what, ("", 0.0, 0))
        if text == known and now - since < REPEAT_SECONDS:
            self._known[what] = text, since, count + 1
            return
        self._known[what] = text, now, 0
        again = f" ({count} more times since)" if count and text == known else ""
        is_outage = isinstance(exc, TransportError)
        level, action = (logging.WARNING, "reconnect") if is_outage else (logging.ERROR, "survived")
        if is_outage and self._is_shown(what, text, now):
            level = logging.DEBUG
        else:
            self._shown.add(what)
        error = None if isinstance(exc, GlideMQError) else exc
        extra = {"action": action, "worker": self._name}
        values = self._name, what, again, text
        logger.log(level, "%s: %s failed and is retried%s: %s", *values, exc_info=error, extra=extra)

    def _is_shown(self, what: str, text: str, now: float) -> bool:
        """Whether another activity has logged this outage within the last minute; else this one does."""
        recent = {one: by for one, by in self._outages.items() if now - by[1] < REPEAT_SECONDS}
        self._outages = recent
        return recent.setdefault(text, (what, now))[0] != what

    def clear(self, what: str) -> None:
        """Log that the activity works again; its next failure is logged immediately."""
        if self._known.pop(what, None) is None:
            return
        self._outages = {text: by for text, by in self._outages.items() if by[0] != what}
        level = logging.INFO if what in self._shown else logging.DEBUG
        self._shown.discard(what)
        extra = {"action": "recovered", "worker": self._name}
        logger.log(level, "%s: %s works again", self._name, what, extra=extra)


MAX_LINES: Final = 1_000
MAX_CHARACTERS: Final = 4_000
_OWN: Final = "glidemq_orchestrate"


class _ToJob(logging.Handler):
    """Stores the log records of one thread with its job; at most the first 1,000 of an attempt."""

    def __init__(self, ctx: Context) -> None:
        super().__init__(logging.INFO)
        self._ctx, self._thread, self._process, self._lines = ctx, threading.get_ident(), os.getpid(), 0

    def filter(self, record: logging.LogRecord) -> bool:
        is_ours = record.thread == self._thread and record.process == self._process  # not of a forked copy
        return is_ours and record.name.partition(".")[0] != _OWN

    def emit(self, record: logging.LogRecord) -> None:
        self._lines += 1
        if self._lines > MAX_LINES:
            return
        try:
            self._ctx.log(f"{record.levelname} {record.getMessage()}"[:MAX_CHARACTERS])
            if self._lines == MAX_LINES:
                self._ctx.log("further lines are only in the log of the worker")
        except Exception:  # noqa: BLE001  as all logging handlers do
            self.handleError(record)


_jobs: Final[dict[int, _ToJob]] = {}
"""Log handlers by the thread in which the function of a job runs."""


@contextmanager
def captured(ctx: Context) -> Iterator[None]:
    """Store the records that this thread logs in the block with the job too, at INFO and above."""
    _install()
    thread = threading.get_ident()
    before = _jobs.get(thread)
    _jobs[thread] = _ToJob(ctx)
    try:
        yield
    finally:
        del _jobs[thread]
        if before is not None:
            _jobs[thread] = before


@functools.cache
def _install() -> None:
    loggers: Any = logging.Logger
    loggers.callHandlers = _with_capture(loggers.callHandlers)


def _with_capture(call: Callable[[Any, logging.LogRecord], None]) -> Callable[[Any, logging.LogRecord], None]:
    @functools.wraps(call)
    def called(self: Any, record: logging.LogRecord) -> None:
        call(self, record)
        job = _jobs.get(threading.get_ident())
        if job is not None and record.levelno >= job.level:
            job.handle(record)

    return called
