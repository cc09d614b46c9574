"""Builders of the portable path: glide-mq's own functions and plain commands, each within one slot.

A node of a portable flow is held back by its dependencies and by gates: members of its ``deps`` set that no
job has. Gate 0 holds the roots until every node exists, and nodes with rules or a delay until these are met;
gate n what the n-th retry or restart runs again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from glidemq_orchestrate._protocol import replies
from glidemq_orchestrate._protocol.call import Call, command, function
from glidemq_orchestrate._protocol.flows.nodes import read_node
from glidemq_orchestrate._protocol.flows.portable_record import policies_key, waiting_key
from glidemq_orchestrate._protocol.flows.staging import traced
from glidemq_orchestrate.errors import ProtocolError
from glidemq_orchestrate.flows.checked import CheckedNode
from glidemq_orchestrate.flows.spec import NodeStatus
from glidemq_orchestrate.jobs.run_options import RunOptions
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.keys import GROUP, QueueKeys
from glidemq_orchestrate.stored import number

NO_ENTRY: Final = "0-1"
PAGE: Final = 500
# Whoever ends a job tells so many dependents in that very call; more are told by ``advance``, one call each.
MOST_TOLD: Final = 50
_KEEPING: Final = ("removeOnComplete", "removeOnFail")  # nodes are kept as long as their flow


def gate(queue: QueueKeys, number: int | str) -> str:
    """The member that holds a job of the queue back."""
    return f"{queue.base}:gmo-gate-{number}"


def read_ref(prefix: str, ref: str) -> tuple[QueueKeys, str]:
    """Queue and job id of a member of ``deps`` or ``parents``; a gate reads like a job that is not there."""
    queue, _, job_id = ref.removeprefix(f"{prefix}:{{").partition("}:")
    return QueueKeys(prefix, queue), job_id


def result(queue: QueueKeys, job_id: str) -> Call[tuple[str, str] | None]:
    """Name of the node and stored result of a job; None unless it has completed."""

    def decode(reply: Any) -> tuple[str, str] | None:
        state, text, options = reply
        _, name = RunOptions.from_wire(options or "").portable or ("", job_id)
        return (name, text or "null") if state == "completed" else None

    return command("HMGET", queue.job(job_id), "state", "returnvalue", "opts", decode=decode)


def write_table(home: QueueKeys, flow_id: str, rows: Mapping[str, str]) -> Call[None]:
    """Store rows of the node table."""
    words = [word for pair in rows.items() for word in pair]
    return command("HSET", f"{home.flow(flow_id)}:nodes", *words, decode=replies.anything)


def add_node(  # noqa: PLR0913  what a node is made of
    queue: QueueKeys,
    job_id: str,
    node: CheckedNode,
    *,
    flow_id: str,
    deps: Iterable[str],
    now_ms: int,
    trace: str = "",
) -> Call[bool]:
    """Create the job of a node, held back by all its deps; False when the id is taken."""
    members = list(deps)
    stored = json.loads(traced(node.options, trace))
    options = {name: value for name, value in stored.items() if name not in _KEEPING}
    options["gmo"] = {"flow": flow_id, "node": node.name}
    if len(node.dependents) > MOST_TOLD:
        options["gmo"]["wide"] = 1

    def decode(reply: Any) -> bool:
        if not str(reply).startswith("["):
            raise ProtocolError(f"job {job_id} of node {node.name} was refused: {reply}")
        return bool(json.loads(reply)[0] == job_id)

    keys = [queue.key(name) for name in ("id", "stream", "scheduled", "events")]
    args = (node.job, node.data, json.dumps(options), now_ms, node.delay_ms, 0, node.attempts, 0, job_id)
    return function("glidemq_addFlow", keys, (*args, len(members), *members), decode)


def owner(queue: QueueKeys, job_id: str) -> Call[str]:
    """The flow that a job was made for, '' for none."""

    def decode(reply: Any) -> str:
        return (RunOptions.from_wire(reply or "").portable or ("", ""))[0]

    return command("HGET", queue.job(job_id), "opts", decode=decode)


def add_members(queue: QueueKeys, kind: str, job_id: str, members: Iterable[str]) -> Call[None]:
    """Add to the ``deps`` or ``parents`` of a job."""
    return command("SADD", queue.key(f"{kind}:{job_id}"), *members, decode=replies.anything)


def held_by(queue: QueueKeys, job_id: str, numbers: Sequence[int]) -> Call[list[int]]:
    """Which of these gates hold, or held, the job back."""
    gates = [gate(queue, number) for number in numbers]

    def decode(reply: Any) -> list[int]:
        return [number for number, is_there in zip(numbers, reply, strict=True) if is_there]

    return command("SMISMEMBER", queue.deps(job_id), *gates, decode=decode)


def deps_page(queue: QueueKeys, job_id: str, cursor: str) -> Call[tuple[str, list[str]]]:
    """A page of what a job waits for: the next cursor (``0`` at the end) and the members."""
    return command(
        "SSCAN", queue.deps(job_id), cursor, "COUNT", PAGE, decode=lambda reply: (reply[0], list(reply[1]))
    )


def is_waiting(queue: QueueKeys, job_id: str) -> Call[bool]:
    """Whether a job waits for others."""
    return command("HGET", queue.job(job_id), "state", decode=lambda reply: bool(reply == "waiting-children"))


def complete_child(queue: QueueKeys, job_id: str, member: str) -> Call[int]:
    """Tell a job that one of its dependencies is done, or a gate open. Repeatable."""
    keys = [queue.key(f"deps:{job_id}"), queue.job(job_id), queue.key("stream"), queue.key("events")]
    return function("glidemq_completeChild", keys, (member, job_id), replies.integer, repeatable=True)


def policies(home: QueueKeys, flow_id: str, cursor: str) -> Call[tuple[str, dict[str, str]]]:
    """A page of the policies that nodes have, as ``_ops.flows.portable.table.policy_text`` writes them."""

    def decode(reply: Any) -> tuple[str, dict[str, str]]:
        return reply[0], replies.pairs(reply[1])

    return command("HSCAN", policies_key(home, flow_id), cursor, "COUNT", PAGE, decode=decode)


def write_policies(home: QueueKeys, flow_id: str, texts: Mapping[str, str]) -> Call[None]:
    """Store policies of nodes."""
    words = [word for pair in texts.items() for word in pair]
    return command("HSET", policies_key(home, flow_id), *words, decode=replies.anything)


def see_waiting(home: QueueKeys, flow_id: str, name: str, now_ms: int) -> list[Call[Any]]:
    """Calls that note when a node was first seen to wait for a worker, and answer when that was, in ms."""
    key = waiting_key(home, flow_id)
    return [
        command("HSETNX", key, name, now_ms, decode=replies.anything),
        command("HGET", key, name, decode=lambda reply: number(reply, now_ms) or now_ms),
    ]


def forget_waiting(home: QueueKeys, flow_id: str) -> Call[None]:
    """Forget since when nodes wait: they run again."""
    return command("UNLINK", waiting_key(home, flow_id), decode=replies.anything)


def open_gate(queue: QueueKeys, job_id: str, number: int | str) -> Call[int]:
    """Let a gate not hold a job back any more. Repeatable."""
    return complete_child(queue, job_id, gate(queue, number))


JobNow = tuple[str, str, str, int, bool]


def job(queue: QueueKeys, job_id: str) -> Call[JobNow]:
    """State ('' = gone), reason of its end, stored result, when it ended (ms) and whether it was begun."""
    fields = ("state", "failedReason", "returnvalue", "finishedOn", "processedOn", "gmo:skipped")

    def decode(reply: Any) -> JobNow:
        state, reason, result, ended, begun, skipped = (field or "" for field in reply)
        if skipped:
            state, reason = "skipped", skipped
        return state, reason, result or "null", number(ended), bool(begun)

    return command("HMGET", queue.job(job_id), *fields, decode=decode)


def skip(queue: QueueKeys, job_id: str, reason: str, now_ms: int) -> list[Call[None]]:
    """Calls that end a job that waits as skipped: completed without a result. Repeatable."""
    ended = ("state", "completed", "returnvalue", "null", "finishedOn", now_ms, "gmo:skipped", reason)
    event = ("event", "completed", "jobId", job_id, "returnvalue", "null", "skipped", reason)
    return [
        command("HSET", queue.job(job_id), *ended, decode=replies.anything),
        command("ZADD", queue.key("completed"), now_ms, job_id, decode=replies.anything),
        command("XADD", queue.key("events"), "MAXLEN", "~", 1000, "*", *event, decode=replies.anything),
    ]


def node_status(queue: QueueKeys, job_id: str, name: str, row: str, gone: str = "") -> Call[NodeStatus]:
    """A node as its job has it; without a job it has failed for the reason ``gone``, '': has completed."""
    fields = ("state", "attemptsMade", "processedOn", "finishedOn", "failedReason", "progress", "gmo:skipped")

    def decode(reply: Any) -> NodeStatus:
        *found, skipped = (field or "" for field in reply)
        if skipped:
            found[0], found[4] = JobState.SKIPPED, skipped
        elif not found[0] and gone:
            found[0], found[4] = JobState.FAILED, gone
        return read_node((name, row, *found))[1]

    return command("HMGET", queue.job(job_id), *fields, decode=decode)


def fail(queue: QueueKeys, job_id: str, reason: str, now_ms: int) -> Call[str]:
    """Let a job that nobody runs fail for good. Repeatable; a job that has ended stays as it is."""
    keys = [queue.key(name) for name in ("stream", "failed", "scheduled", "events")]
    keys += [queue.job(job_id), queue.key("metrics:failed")]
    args = (job_id, NO_ENTRY, reason, now_ms, 0, 0, GROUP, "0", 0, 0, 0)
    return function("glidemq_fail", keys, args, replies.text)


def end_node(  # noqa: PLR0913, PLR0917  what a node is ended with
    queue: QueueKeys, job_id: str, number: int, how: str, reason: str, now_ms: int
) -> Call[int]:
    """End a job, unless a later round runs it again. Repeatable; a job that has ended stays as it is.

    ``how``: ``failed`` or ``skipped`` ends one that waits for others, ``cancelled`` whatever has not ended.
    """
    args = (now_ms, job_id, number, how, reason)
    return function("gmo_end_node", [queue.job(job_id)], args, replies.integer)


def run_again(queue: QueueKeys, job_id: str, number: int) -> Call[int]:
    """Let a job that has ended wait behind the gate of a round, unless it did so already. Repeatable."""
    keys = [queue.job(job_id), queue.deps(job_id), queue.key("completed"), queue.key("failed")]
    args = (0, job_id, number, gate(queue, number))
    return function("gmo_run_again", keys, args, replies.integer)


def revoke(queue: QueueKeys, job_id: str, now_ms: int) -> Call[str]:
    """Take a job out of wherever it could start from, and tell whoever runs it. Repeatable."""
    keys = [queue.job(job_id), *(queue.key(name) for name in ("stream", "scheduled", "failed", "events"))]
    return function("glidemq_revoke", keys, (job_id, now_ms, GROUP), replies.text)


def explain(queue: QueueKeys, job_id: str, reason: str) -> Call[None]:
    """Say why a job was ended; a revocation says only that it was. Repeatable."""
    return command("HSET", queue.job(job_id), "failedReason", reason, decode=replies.anything)


def reset(queue: QueueKeys, job_id: str, number: int) -> list[Call[None]]:
    """``run_again`` by plain calls, which harm when they come late."""
    key = queue.job(job_id)
    fresh = ("state", "waiting-children", "attemptsMade", "0", "failedReason", "", "finishedOn", "")
    stale = ("revoked", "stalledCount", "progress", "processedOn", "gmo:token", "gmo:entry", "gmo:skipped")
    return [
        add_members(queue, "deps", job_id, [gate(queue, number)]),
        command("ZREM", queue.key("failed"), job_id, decode=replies.anything),
        command("ZREM", queue.key("completed"), job_id, decode=replies.anything),
        command("HDEL", key, *stale, "returnvalue", decode=replies.anything),
        # Last: who is cut off before still finds a job that has ended, and begins again.
        command("HSET", key, "gmo:round", number, *fresh, decode=replies.anything),
    ]


def drop_job(queue: QueueKeys, job_id: str) -> list[Call[None]]:
    """Calls that delete a job and all that belongs to it. Repeatable."""
    keys = (queue.deps(job_id), queue.parents(job_id), queue.log(job_id), queue.output(job_id))
    ended = [queue.key(name) for name in ("completed", "failed")]
    return [
        *(command("ZREM", key, job_id, decode=replies.anything) for key in ended),
        command("UNLINK", *keys, queue.job(job_id), decode=replies.anything),
    ]


def announce_end(home: QueueKeys, flow_id: str, state: str) -> Call[None]:
    """Wake whoever waits for the flow."""
    words = ("MAXLEN", "~", 1000, "*", "event", f"flow.{state}", "jobId", "", "flowId", flow_id)
    return command("XADD", home.key("events"), *words, decode=replies.anything)
