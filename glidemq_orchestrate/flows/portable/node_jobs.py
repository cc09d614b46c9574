"""Creates, blocks, reads and ends the job of a portable node, within the slot of its queue.

A job is blocked by the members of its ``deps`` set: its dependencies, and gates, which are members without a
job. Gate 0 blocks the roots until every node exists, and nodes with a rule or a delay until that is met. Gate
n blocks the nodes that the n-th retry reruns.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from glidemq_orchestrate.errors import GlideMQError, LibraryMissing, ProtocolError
from glidemq_orchestrate.flows.checked import CheckedNode, kept, traced
from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.jobs.changes import complete_child
from glidemq_orchestrate.jobs.job_hash import OF_ONE_RUN, JobField, end_of_stub
from glidemq_orchestrate.jobs.options import RunOptions
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, Word, ask_each, command, function, parts, send_all
from glidemq_orchestrate.wire.keys import GROUP, QueueKeys
from glidemq_orchestrate.wire.stored import number

NO_ENTRY: Final = "0-1"
# The call that ends a job notifies up to this many dependents; ``advance`` notifies more.
MAX_NOTIFIED: Final = 50


Only = Literal["any", "open", "idle"]
_ONLY: Final[dict[Only, int]] = {"any": 0, "open": 1, "idle": 2}
_END: Final[tuple[JobField, ...]] = (
    "returnvalue", "finishedOn", "processedOn", "attemptsMade", "progress", "gmo:accepted"
)  # fmt: skip


class NodeResult(NamedTuple):
    """The name and the stored result of a node, for its dependents.

    Without a result, it was removed or has not ended (``is_open``).
    """

    name: str
    text: str | None
    is_open: bool = False


def result(queue: QueueKeys, job_id: str) -> Call[NodeResult | None]:
    """The result of a job; None if it was skipped, has failed, or is an unended job that is not a node."""

    def decode(reply: Any) -> NodeResult | None:
        state, text, options, skipped, stub = reply
        found = RunOptions.from_wire(options or "").portable
        name = found[1] if found else job_id
        if found and state not in (None, "completed", "failed"):
            return NodeResult(name, None, is_open=True)
        if state is None and end_of_stub(stub or "") in ("", "completed"):
            return NodeResult(name, None)
        return NodeResult(name, text or "null") if state == "completed" and not skipped else None

    fields: tuple[JobField, ...] = ("state", "returnvalue", "opts", "gmo:skipped", "gmo:removed")
    return job_hash.get_some(queue, job_id, fields, decode)


def add_node(  # noqa: PLR0913  the parts of a node
    queue: QueueKeys,
    job_id: str,
    node: CheckedNode,
    *,
    flow_id: str,
    deps: Iterable[str],
    now_ms: int,
    trace: str = "",
) -> Call[bool]:
    """Create the job of a node, blocked by all its deps; returns False if a job has the id."""
    members = list(deps)
    options = json.loads(traced(kept(node.options), trace))
    options["gmo"] = {"flow": flow_id, "node": node.name}
    if len(node.dependents) > MAX_NOTIFIED:
        options["gmo"]["wide"] = 1

    def decode(reply: Any) -> bool:
        if not str(reply).startswith("["):
            raise ProtocolError(f"job {job_id} of node {node.name} was refused: {reply}")
        return bool(json.loads(reply)[0] == job_id)

    keys = queue.keys("id", "stream", "scheduled", "events")
    args = (node.job, node.data, json.dumps(options), now_ms, node.delay_ms, 0, node.attempts, 0, job_id)
    return function("glidemq_addFlow", keys, (*args, len(members), *members), decode)


def tags_of(node: CheckedNode) -> list[str]:
    """The tags of a node."""
    return json.loads(node.options).get("tags", []) if '"tags"' in node.options else []


def owner(queue: QueueKeys, job_id: str) -> Call[str]:
    """The flow for which a job was created, '' for none."""

    def decode(reply: Any) -> str:
        return (RunOptions.from_wire(reply or "").portable or ("", ""))[0]

    return job_hash.get(queue, job_id, "opts", decode)


def skip(queue: QueueKeys, job_id: str, reason: str, now_ms: int) -> list[Call[None]]:
    """Calls that end a waiting job as skipped: completed without a result. Idempotent."""
    return _complete(queue, job_id, "null", now_ms, skipped=reason)


def give(queue: QueueKeys, job_id: str, result: str, now_ms: int) -> list[Call[None]]:
    """Calls that end a waiting job as completed with a given result. Idempotent."""
    return _complete(queue, job_id, result, now_ms)


def _complete(
    queue: QueueKeys, job_id: str, result: str, now_ms: int, *, skipped: str | None = None
) -> list[Call[None]]:
    end: dict[JobField, Word] = {"returnvalue": result, "finishedOn": now_ms}
    event = ["event", "completed", "jobId", job_id, "returnvalue", result]
    if skipped is not None:
        end["gmo:skipped"] = skipped
        event += ["skipped", skipped]
    return [
        *complete(queue, job_id, end),
        command("XADD", queue.key("events"), "MAXLEN", "~", 1000, "*", *event, decode=replies.anything),
    ]


def fail(queue: QueueKeys, job_id: str, reason: str, now_ms: int) -> Call[str]:
    """Permanently fail a job that no worker runs. Idempotent. An ended job is not changed."""
    keys = queue.keys("stream", "failed", "scheduled", "events")
    keys += [queue.job(job_id), queue.key("metrics:failed")]
    args = (job_id, NO_ENTRY, reason, now_ms, 0, 0, GROUP, "0", 0, 0, 0)
    return function("glidemq_fail", keys, args, replies.text)


def end_of(queue: QueueKeys, job_id: str) -> Call[dict[JobField, Word] | None]:
    """The fields with the end of a job; None unless it has completed and was not skipped."""

    def decode(reply: Any) -> dict[JobField, Word] | None:
        state, skipped, *values = reply
        if state != "completed" or skipped:
            return None
        return {name: value for name, value in zip(_END, values, strict=True) if value is not None}

    return job_hash.get_some(queue, job_id, ("state", "gmo:skipped", *_END), decode)


def complete(queue: QueueKeys, job_id: str, end: Mapping[JobField, Word]) -> list[Call[None]]:
    """Calls that complete a waiting job like another one, without an event. Idempotent."""
    at = number(end.get("finishedOn"))
    return [
        job_hash.put(queue, job_id, {**end, "state": "completed"}),
        command("ZADD", queue.key("completed"), at, job_id, decode=replies.anything),
    ]


def end_node(  # noqa: PLR0913, PLR0917  the parts of an end
    queue: QueueKeys, job_id: str, number: int, how: str, reason: str, now_ms: int
) -> Call[int]:
    """End a job, unless a later round has restarted it. Idempotent. An ended job is not changed.

    ``how``: ``failed``, ``skipped`` or ``completed`` (``reason`` is the result) ends a job that waits for
    others; ``unstarted`` one that no worker has begun; ``cancelled`` any open one.
    """
    args = (now_ms, job_id, number, how, reason)
    return function("gmo_end_node", [queue.job(job_id)], args, replies.integer)


def run_again(  # noqa: PLR0913  which job, in which round, and for whom
    queue: QueueKeys, job_id: str, number: int, now_ms: int, *, request: str = "", only: Only = "any"
) -> Call[int]:
    """Put a job behind the gate of a round, unless it was put there before. Idempotent.

    An open job is taken from its worker, or from the place where it waits for a worker. ``only``:
    ``open`` for open jobs only; ``idle`` for jobs without a running handler only. ``request`` is stored in
    the job. Returns whether the job is in this round or a later one.
    """
    keys = [queue.job(job_id), queue.deps(job_id), queue.key("completed"), queue.key("failed")]
    args = (now_ms, job_id, number, gate(queue, number), _ONLY[only], request)
    return function("gmo_run_again", keys, args, replies.integer)


def revoke(queue: QueueKeys, job_id: str, now_ms: int) -> Call[str]:
    """Revoke a job: it will not start, and a worker that runs it is signalled. Idempotent."""
    keys = [queue.job(job_id), *queue.keys("stream", "scheduled", "failed", "events")]
    return function("glidemq_revoke", keys, (job_id, now_ms, GROUP), replies.text)


def explain(queue: QueueKeys, job_id: str, reason: str) -> Call[None]:
    """Record why a job was ended, since a revocation does not. Idempotent."""
    return job_hash.put(queue, job_id, {"failedReason": reason})


def reset(queue: QueueKeys, job_id: str, number: int, request: str = "") -> list[Call[None]]:
    """``run_again`` of an ended job by plain calls, which are unsafe if they arrive late."""
    fresh: dict[JobField, Word] = {
        "gmo:round": number, "state": "waiting-children", "attemptsMade": "0", "failedReason": "",
        "finishedOn": "",
    }  # fmt: skip
    if request:
        fresh["gmo:requests"] = request
    return [
        add_deps(queue, job_id, [gate(queue, number)]),
        command("ZREM", queue.key("failed"), job_id, decode=replies.anything),
        command("ZREM", queue.key("completed"), job_id, decode=replies.anything),
        job_hash.delete(queue, job_id, OF_ONE_RUN),
        command("UNLINK", queue.signals(job_id), decode=replies.anything),
        # Last: after an interruption before this, the job has still ended and all of it is repeated.
        job_hash.put(queue, job_id, fresh),
    ]


def drop_job(queue: QueueKeys, job_id: str) -> list[Call[None]]:
    """Calls that delete a job and all its data. Idempotent."""
    keys = (queue.deps(job_id), queue.parents(job_id), queue.log(job_id), queue.output(job_id))
    ended = queue.keys("completed", "failed")
    return [
        *(command("ZREM", key, job_id, decode=replies.anything) for key in ended),
        command("UNLINK", *keys, queue.job(job_id), decode=replies.anything),
    ]


PAGE: Final = 500


def gate(queue: QueueKeys, number: int | str) -> str:
    """The member for a gate of this queue."""
    return f"{queue.base}:gmo-gate-{number}"


def add_deps(queue: QueueKeys, job_id: str, members: Iterable[str]) -> Call[None]:
    """Add dependencies or gates to a job."""
    return command("SADD", queue.deps(job_id), *members, decode=replies.anything)


def add_dependents(queue: QueueKeys, job_id: str, members: Iterable[str]) -> Call[None]:
    """Add jobs that are notified of the end of a job."""
    return command("SADD", queue.parents(job_id), *members, decode=replies.anything)


def held_by(queue: QueueKeys, job_id: str, numbers: Sequence[int]) -> Call[list[int]]:
    """Which of these gates block the job, or did."""
    gates = [gate(queue, number) for number in numbers]

    def decode(reply: Any) -> list[int]:
        return [number for number, is_there in zip(numbers, reply, strict=True) if is_there]

    return command("SMISMEMBER", queue.deps(job_id), *gates, decode=decode)


def completed_while_waiting(queue: QueueKeys, job_id: str) -> Call[int]:
    """How many dependencies, gates and children of a waiting job have completed; -1 if it does not wait."""

    def decode(reply: Any) -> int:
        state, completed = reply
        return number(completed) if state == "waiting-children" else -1

    return job_hash.get_some(queue, job_id, ("state", "depsCompleted"), decode)


def how_many(queue: QueueKeys, job_id: str) -> Call[int]:
    """How many dependencies, gates and children a job has."""
    return command("SCARD", queue.deps(job_id), decode=replies.integer)


def open_gate(queue: QueueKeys, job_id: str, number: int | str) -> Call[int]:
    """Release a job from a gate. Idempotent."""
    return complete_child(queue, job_id, gate(queue, number))


def send_fenced(todo: Iterable[tuple[Call[int], Sequence[Call[Any]]]]) -> Op[None]:
    """Send calls of our functions, each with the plain calls to use if the function is missing."""
    for part in parts(list(todo)):
        replies = yield from ask_each([call for call, _ in part])
        plain: list[Call[Any]] = []
        for (_, instead), reply in zip(part, replies, strict=True):
            if isinstance(reply, LibraryMissing):
                plain += instead
            elif isinstance(reply, GlideMQError):
                raise reply
        yield from send_all(plain)
