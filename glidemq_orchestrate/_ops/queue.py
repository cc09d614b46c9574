"""Adding and reading single jobs."""

from __future__ import annotations

from glidemq_orchestrate._protocol import glidemq
from glidemq_orchestrate._protocol.call import Op, ask
from glidemq_orchestrate.codec import JsonLike, encode
from glidemq_orchestrate.errors import InvalidJob, JobNotFound
from glidemq_orchestrate.job import Job, JobId, JobOptions
from glidemq_orchestrate.keys import QueueKeys


def add_job(queue: QueueKeys, name: str, data: JsonLike, options: JobOptions, now_ms: int) -> Op[JobId]:
    """Check, encode and add one job."""
    if not name:
        raise InvalidJob("a job needs a name: the name of the handler that runs it")
    payload = encode(data, where=f"data of job {name}")
    return JobId((yield from ask(glidemq.add_job(queue, name, payload, options, now_ms))))


def get_job(queue: QueueKeys, job_id: str) -> Op[Job]:
    """Read one job."""
    fields = yield from ask(glidemq.job_fields(queue, job_id))
    if "state" not in fields:
        raise JobNotFound(f"no job {job_id} in queue {queue.queue}")
    return Job.from_wire(queue.queue, fields)
