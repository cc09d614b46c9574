"""The dependencies of a job, and the jobs that wait for it."""

from __future__ import annotations

from glidemq_orchestrate.errors import (
    ChildrenFailed,
)
from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.jobs.fields import JobField
from glidemq_orchestrate.jobs.job_hash import end_of_stub, missing
from glidemq_orchestrate.jobs.options import JobRef
from glidemq_orchestrate.jobs.run_options import RunOptions
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.wire import commands
from glidemq_orchestrate.wire.call import Op, ask, ask_all
from glidemq_orchestrate.wire.codec import Json, decode, readable
from glidemq_orchestrate.wire.keys import QueueKeys, is_gate, read_member
from glidemq_orchestrate.wire.stored import parsed


def children_values(queue: QueueKeys, job_id: str) -> Op[dict[JobRef, Json]]:
    """The results of a job's dependencies.

    Raises:
        ChildrenFailed: One ended without a result. Does not apply to dependencies between nodes.
    """
    found = yield from ask(commands.members(queue.deps(job_id)))
    places = [place for member in found if not is_gate(member) for place in read_member(member)]
    names: tuple[JobField, ...] = ("state", "returnvalue", "failedReason", "gmo:removed", "gmo:flow", "opts")
    rows = yield from ask_all([job_hash.get_some(keys, child, names, list) for keys, child in places])
    values: dict[JobRef, Json] = {}
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
    found = yield from ask(commands.members(queue.parents(job_id)))
    refs = [JobRef(keys.queue, parent) for member in found for keys, parent in read_member(member)]
    single = [(fields[1], fields[0])] if fields[0] and fields[1] else []
    for parent_queue, parent_id in [*single, *zip(_texts(fields[3]), _texts(fields[2]), strict=False)]:
        refs.append(JobRef(parent_queue, parent_id))
    return list(dict.fromkeys(refs))


def _texts(text: str | None) -> list[str]:
    found = parsed(text)
    return [str(part) for part in found] if isinstance(found, list) else []
