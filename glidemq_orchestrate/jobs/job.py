"""A job as users see it, read from its hash and never written back; its dependencies and dependents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NewType

from glidemq_orchestrate.errors import ChildrenFailed, DecodeError, InvalidJob
from glidemq_orchestrate.foundation.durations import milliseconds
from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.jobs.attempt import lease_of, worker_of
from glidemq_orchestrate.jobs.job_hash import (
    FIELD_FLOW,
    FIELD_NODE,
    JOB_FIELDS,
    JOB_FIELDS_WITHOUT_PAYLOAD,
    JobField,
    end_of_stub,
    missing,
)
from glidemq_orchestrate.jobs.option_values import Fallback, JobRef
from glidemq_orchestrate.jobs.options import DEFAULT_LEASE, RunOptions
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, command, members
from glidemq_orchestrate.wire.codec import decode, readable
from glidemq_orchestrate.wire.keys import QueueKeys, is_gate, read_generation, read_member
from glidemq_orchestrate.wire.stored import moment, number, parsed, read_progress, span

JobId = NewType("JobId", str)


@dataclass(frozen=True, slots=True)
class Job:
    """A job at the moment it was read. Times are UTC, and None until they are set.

    ``result`` is the return value of the handler; ``failed_reason`` stays after a later success.

    Attributes:
        delay: The current delay option; not the pause before a retry.
        ordering_key: The key whose jobs run in order.
        cost: Tokens that it takes from the bucket of its key; None for the default of 1.
        expires_at: It is not started after this time.
        revoked: Whether it was revoked; an active job may still complete.
        lost_attempts: The number of attempts lost with their worker.
        parent: A job that waits for it; ``Queue.parents`` lists all.
        schedule: The schedule that added it. Of those that Node workers fire, only the jobs that are repeated
            after their end name it.
        tokens: Tokens reported for the token limit.
        tags: Words by which it is found; see ``Queue.tagged``.
        fallback_index: 0 for the first attempt, then one more for each, even past the end of the fallbacks.
        worker: The Python worker that runs it or ran it last; an id of ``Queue.workers``.
        lease_until: For an active job: when others may take it over, unless its worker renews the lease,
            which it does about every second. The lease lasts the job's ``lease``, or else that of the
            worker. In server time: compare with ``Queue.now``.
        broken: Data or result is not JSON, or unpacks to more than 1 MiB; then both are None. Or the stored
            state is not valid; then ``state`` is ``UNKNOWN``.
    """

    id: JobId
    queue: str
    name: str
    state: JobState
    data: Any
    result: Any
    failed_reason: str | None
    attempts_made: int
    max_attempts: int
    progress: Any
    created_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    flow_id: str | None
    node: str | None
    options: RunOptions
    delay: timedelta
    priority: int
    lifo: bool
    ordering_key: str | None
    cost: float | None
    expires_at: datetime | None
    revoked: bool
    lost_attempts: int
    parent: JobRef | None
    schedule: str | None
    tokens: int
    fallback_index: int
    broken: bool = False
    worker: str | None = None
    lease_until: datetime | None = None
    tags: tuple[str, ...] = ()

    @property
    def attempts(self) -> int:
        """The number of attempts started since it last started over; ``attempts_made`` counts failures."""
        return self.attempts_made + (self.state in (JobState.ACTIVE, JobState.COMPLETED))

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        """The replacements that attempts after the first use."""
        return self.options.fallbacks

    @property
    def current_fallback(self) -> Fallback | None:
        """The replacement that the next or running attempt uses; None for the original and past the end."""
        at = self.fallback_index - 1
        return self.fallbacks[at] if 0 <= at < len(self.fallbacks) else None

    @classmethod
    def from_wire(cls, queue: str, fields: Mapping[str, str], *, lenient: bool = False) -> Job:
        """Build from the fields of a job hash.

        Raises:
            DecodeError: The stored data or result is not JSON, and not ``lenient``.
        """
        job_id, state = fields.get("id", ""), JobState.read(fields.get("state"))
        broken = state is JobState.UNKNOWN
        try:
            data = decode(fields.get("data"), where=f"data of job {job_id}")
            result = decode(fields.get("returnvalue"), where=f"result of job {job_id}")
        except DecodeError:
            if not lenient:
                raise
            data, result, broken = None, None, True
        options = RunOptions.from_wire(fields.get("opts", ""))
        worker = worker_of(fields.get("gmo:token", ""))
        lease = options.lease or lease_of(worker or "") or DEFAULT_LEASE
        return cls(
            id=JobId(job_id),
            queue=queue,
            name=fields.get("name", ""),
            state=state,
            data=data,
            result=result,
            failed_reason=readable(reason) if (reason := fields.get("failedReason")) else None,
            attempts_made=number(fields.get("attemptsMade")),
            max_attempts=max(number(fields.get("maxAttempts")), 1),
            progress=read_progress(fields.get("progress")),
            created_at=moment(fields.get("timestamp")),
            started_at=moment(started(*map(fields.get, START_FIELDS))),
            finished_at=moment(fields.get("finishedOn")),
            flow_id=read_generation(flow)[0] if (flow := fields.get(FIELD_FLOW)) else flow,
            node=fields.get(FIELD_NODE),
            options=options,
            delay=span(fields.get("delay")),
            priority=number(fields.get("priority")),
            lifo=fields.get("lifo") == "1",
            ordering_key=fields.get("groupKey") or fields.get("orderingKey") or None,
            cost=number(fields.get("cost")) / 1000 if fields.get("cost") else None,
            expires_at=moment(fields.get("expireAt")),
            revoked=fields.get("revoked") == "1",
            lost_attempts=max(number(fields.get("stalledCount")), number(fields.get("gmo:lost"))),
            parent=_single_parent(fields),
            schedule=fields.get("gmo:schedule") or fields.get("schedulerName") or None,
            tokens=number(fields.get("tpmTokens")),
            fallback_index=number(fields.get("fallbackIndex")),
            broken=broken,
            worker=worker,
            lease_until=_lease_until(state, fields.get("lastActive"), lease),
            tags=options.tags if (tags := fields.get("gmo:tags")) is None else tuple(_texts(tags)),
        )


def _lease_until(state: JobState, renewed: str | None, lease: timedelta) -> datetime | None:
    if state is not JobState.ACTIVE or moment(renewed) is None:
        return None
    return moment(str(number(renewed) + milliseconds(lease)))


def _single_parent(fields: Mapping[str, str]) -> JobRef | None:
    queue, job_id = fields.get("parentQueue"), fields.get("parentId")
    if not queue or not job_id:
        return None
    try:
        return JobRef(queue, job_id)
    except InvalidJob:
        return None


@dataclass(frozen=True, slots=True)
class JobLogs:
    """A range of log lines of a job.

    Attributes:
        lines: The oldest first.
        total: The number of lines logged so far.
        first: The number of the first of these lines, from 0. It is higher than requested if lines were
            removed: a log keeps at least its last 10,000 lines.
    """

    lines: list[str]
    total: int
    first: int = 0


START_FIELDS: Final[tuple[JobField, ...]] = ("state", "processedOn", "finishedOn", "gmo:token")
"""The arguments of ``started``."""


def started(state: str | None, begun: str | None, finished: str | None, token: str | None) -> str | None:
    """The stored time when the last run began; None if it never ran or the time is unknown.

    glide-mq's own functions replace it by the time of a failure, even for a job that never ran. Our workers
    keep it, and are recognized by the token.
    """
    is_replaced = state == "failed" and bool(begun) and begun == finished and worker_of(token or "") is None
    return None if is_replaced else begun


def job_fields(queue: QueueKeys, job_id: str, *, with_payload: bool = True) -> Call[dict[str, str]]:
    """The text fields of a job; empty for a missing one. ``with_payload`` includes data and result."""
    names = JOB_FIELDS if with_payload else JOB_FIELDS_WITHOUT_PAYLOAD

    def decode(reply: Any) -> dict[str, str]:
        return {name: value for name, value in zip(names, reply, strict=True) if value is not None}

    return job_hash.get_some(queue, job_id, names, decode)


def job_exists(queue: QueueKeys, job_id: str) -> Call[bool]:
    """Whether the job exists; the remains of a removed job have no state."""
    return command("HEXISTS", queue.job(job_id), "state", decode=bool)


def get_job(queue: QueueKeys, job_id: str, *, lenient: bool = False) -> Op[Job]:
    """Read one job."""
    fields = yield from ask(job_fields(queue, job_id))
    if "state" not in fields:
        raise missing(queue, job_id)
    return Job.from_wire(queue.queue, fields, lenient=lenient)


def children_values(queue: QueueKeys, job_id: str) -> Op[dict[JobRef, Any]]:
    """The results of a job's dependencies.

    Raises:
        ChildrenFailed: One ended without a result. Does not apply to dependencies between nodes.
    """
    found = yield from ask(members(queue.deps(job_id)))
    places = [place for member in found if not is_gate(member) for place in read_member(member)]
    names: tuple[JobField, ...] = ("state", "returnvalue", "failedReason", "gmo:removed", "gmo:flow", "opts")
    rows = yield from ask_all([job_hash.get_some(keys, child, names, list) for keys, child in places])
    values: dict[JobRef, Any] = {}
    failed: dict[JobRef, str] = {}
    for (keys, child), (state, result, reason, stub, flow, options) in zip(places, rows, strict=True):
        ref = JobRef(keys.queue, child)
        if state == JobState.COMPLETED:
            values[ref] = decode(result, where=f"result of job {child}")
        elif state is None and end_of_stub(stub or "") in ("", JobState.COMPLETED):
            failed[ref] = "it was removed"
        elif state == JobState.FAILED and not flow and not RunOptions.from_wire(options or "").portable:
            failed[ref] = readable(reason or "") or "it has failed"
    if failed:
        raise ChildrenFailed(job_id, failed, values)
    return values


def parents(queue: QueueKeys, job_id: str) -> Op[list[JobRef]]:
    """The jobs that wait for a job."""
    fields = yield from ask(
        job_hash.get_some(
            queue, job_id, ("parentId", "parentQueue", "parentIds", "parentQueues", "state"), list
        )
    )
    if fields[4] is None:
        raise missing(queue, job_id)
    found = yield from ask(members(queue.parents(job_id)))
    refs = [JobRef(keys.queue, parent) for member in found for keys, parent in read_member(member)]
    single = [(fields[1], fields[0])] if fields[0] and fields[1] else []
    for parent_queue, parent_id in [*single, *zip(_texts(fields[3]), _texts(fields[2]), strict=False)]:
        refs.append(JobRef(parent_queue, parent_id))
    return list(dict.fromkeys(refs))


def _texts(text: str | None) -> list[str]:
    found = parsed(text)
    return [str(part) for part in found] if isinstance(found, list) else []
