"""Changes the priority, delay, data, progress and log of a job, and reruns a failed job."""

from __future__ import annotations

from datetime import timedelta

from glidemq_orchestrate.errors import (
    ConfigurationError,
    JobStateConflict,
)
from glidemq_orchestrate.foundation.durations import milliseconds
from glidemq_orchestrate.jobs import calls as job_calls
from glidemq_orchestrate.jobs import logs as job_logs
from glidemq_orchestrate.jobs.bounds import check_text, whole
from glidemq_orchestrate.jobs.job import JobLogs
from glidemq_orchestrate.jobs.job_hash import missing
from glidemq_orchestrate.jobs.options import MAX_PRIORITY
from glidemq_orchestrate.wire.call import Op, ask
from glidemq_orchestrate.wire.codec import JsonLike, encode
from glidemq_orchestrate.wire.keys import QueueKeys


def retry(queue: QueueKeys, job_id: str, now_ms: int) -> Op[None]:
    """Run a failed job again, immediately."""
    (word,) = yield from ask(job_calls.retry_jobs(queue, [job_id], now_ms))
    if word == "missing":
        raise missing(queue, job_id)
    if word == "flow":
        raise JobStateConflict(job_id, "failed", "is a node of a flow. Fix: retry the flow")
    if word != "retried":
        raise JobStateConflict(job_id, word, f"is {word}, not failed")


def change_priority(queue: QueueKeys, job_id: str, priority: int) -> Op[None]:
    """Change the priority of a job."""
    whole("priority", priority, 0, MAX_PRIORITY)
    yield from ask(job_calls.change_priority(queue, job_id, priority))


def change_delay(queue: QueueKeys, job_id: str, delay: timedelta, now_ms: int) -> Op[None]:
    """Change the delay of a job."""
    yield from ask(job_calls.change_delay(queue, job_id, milliseconds(delay), now_ms))


def promote(queue: QueueKeys, job_id: str) -> Op[None]:
    """Make a delayed job ready."""
    yield from ask(job_calls.promote_job(queue, job_id))


def add_log(queue: QueueKeys, job_id: str, line: str) -> Op[None]:
    """Append a log line to an existing job."""
    check_text("log line", line)
    yield from ask(job_calls.add_log(queue, job_id, line))


def logs(queue: QueueKeys, job_id: str, first: int, limit: int) -> Op[JobLogs]:
    """Read log lines."""
    if limit < 0:
        raise ConfigurationError("limit must not be negative")
    (found,) = yield from job_logs.read([job_logs.LogRange(queue, job_id, first, limit)])
    return found


def update(queue: QueueKeys, job_id: str, field: str, value: JsonLike, now_ms: int) -> Op[None]:
    """Change data or progress."""
    text = encode(value, where=f"{field} of job {job_id}")
    yield from ask(job_calls.update_job(queue, job_id, field, text, now_ms))


def report_tokens(queue: QueueKeys, job_id: str, tokens: int, now_ms: int) -> Op[None]:
    """Report the number of tokens that a job used."""
    whole("tokens", tokens, 0)
    yield from ask(job_calls.update_job(queue, job_id, "tpmTokens", tokens, now_ms))
