"""Builders of the portable path: glide-mq's own functions and plain commands, each within one slot.

A node of a portable flow is held back by its dependencies and by gates: members of its ``deps`` set that no
job has. Gate 0 holds the roots until every node exists, gate n what the n-th retry runs again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from glidemq_orchestrate._protocol import replies
from glidemq_orchestrate._protocol.call import Call, command, function
from glidemq_orchestrate._protocol.orchestrate import read_node
from glidemq_orchestrate.checked_flow import CheckedNode
from glidemq_orchestrate.errors import ProtocolError
from glidemq_orchestrate.flow import NodeStatus
from glidemq_orchestrate.job import JobState
from glidemq_orchestrate.keys import GROUP, QueueKeys, flow_home

NO_ENTRY: Final = "0-1"
PATH: Final = "portable"


def gate(queue: QueueKeys, number: int) -> str:
    """The member that holds a job of the queue back."""
    return f"{queue.base}:gmo-gate-{number}"


def claim(home: QueueKeys, flow_id: str) -> Call[None]:
    """Say which queue is the home of a flow, unless that is said already."""
    return command("SET", flow_home(home.prefix, flow_id), home.queue, "NX", decode=replies.anything)


def claim_record(home: QueueKeys, flow_id: str, digest: str) -> Call[None]:
    """Say what the flow is, unless that is said already."""
    return command("HSETNX", home.flow(flow_id), "digest", digest, decode=replies.anything)


def record(home: QueueKeys, flow_id: str) -> Call[dict[str, str]]:
    """All fields of the record."""
    return command("HGETALL", home.flow(flow_id), decode=replies.pairs)


def write_record(home: QueueKeys, flow_id: str, fields: Mapping[str, str | int]) -> Call[None]:
    """Store fields of the record."""
    words = [word for pair in fields.items() for word in pair]
    return command("HSET", home.flow(flow_id), *words, decode=replies.anything)


def mark_once(home: QueueKeys, flow_id: str, field: str) -> Call[bool]:
    """Set a mark; whether this call has set it."""
    return command("HSETNX", home.flow(flow_id), field, "1", decode=bool)


def clear_record(home: QueueKeys, flow_id: str, fields: Iterable[str]) -> Call[None]:
    """Delete fields of the record."""
    return command("HDEL", home.flow(flow_id), *fields, decode=replies.anything)


def write_table(home: QueueKeys, flow_id: str, rows: Mapping[str, str]) -> Call[None]:
    """Store rows of the node table."""
    words = [word for pair in rows.items() for word in pair]
    return command("HSET", f"{home.flow(flow_id)}:nodes", *words, decode=replies.anything)


def listed(home: QueueKeys) -> Call[list[str]]:
    """The portable flows of a home that may need something, the oldest first."""
    return command("ZRANGE", home.key("gmo:portable"), 0, 99, decode=list)


def enlist(home: QueueKeys, flow_id: str, now_ms: int) -> Call[None]:
    """List a portable flow."""
    return command("ZADD", home.key("gmo:portable"), now_ms, flow_id, decode=replies.anything)


def delist(home: QueueKeys, flow_id: str) -> Call[None]:
    """Take it off the list."""
    return command("ZREM", home.key("gmo:portable"), flow_id, decode=replies.anything)


def add_node(  # noqa: PLR0913  what a node is made of
    queue: QueueKeys, job_id: str, node: CheckedNode, *, flow_id: str, deps: Iterable[str], now_ms: int
) -> Call[bool]:
    """Create the job of a node, held back by all its deps; False when the id is taken."""
    members = list(deps)
    options = json.loads(node.options) | {"gmo": {"flow": flow_id, "node": node.name}}

    def decode(reply: Any) -> bool:
        if not str(reply).startswith("["):
            raise ProtocolError(f"a node was refused: {reply}")
        return bool(json.loads(reply)[0] == job_id)

    keys = [queue.key(name) for name in ("id", "stream", "scheduled", "events")]
    args = (node.job, node.data, json.dumps(options), now_ms, node.delay_ms, 0, node.attempts, 0, job_id)
    return function("glidemq_addFlow", keys, (*args, len(members), *members), decode)


def owner(queue: QueueKeys, job_id: str) -> Call[str]:
    """The flow that a job was made for, '' for none."""

    def decode(reply: Any) -> str:
        mark = json.loads(reply or "{}").get("gmo")
        return str(mark["flow"]) if isinstance(mark, dict) else ""

    return command("HGET", queue.job(job_id), "opts", decode=decode)


def add_members(queue: QueueKeys, kind: str, job_id: str, members: Iterable[str]) -> Call[None]:
    """Add to the ``deps`` or ``parents`` of a job."""
    return command("SADD", queue.key(f"{kind}:{job_id}"), *members, decode=replies.anything)


def has_gate(queue: QueueKeys, job_id: str, number: int) -> Call[bool]:
    """Whether a gate holds, or held, the job back."""
    return command("SISMEMBER", queue.key(f"deps:{job_id}"), gate(queue, number), decode=bool)


def complete_child(queue: QueueKeys, job_id: str, member: str) -> Call[int]:
    """Tell a job that one of its dependencies is done, or a gate open. Repeatable."""
    keys = [queue.key(f"deps:{job_id}"), queue.job(job_id), queue.key("stream"), queue.key("events")]
    return function("glidemq_completeChild", keys, (member, job_id), replies.integer)


def job(queue: QueueKeys, job_id: str) -> Call[tuple[str, str, str]]:
    """State ('' = gone), reason of the failure, and stored result."""
    words = ("HMGET", queue.job(job_id), "state", "failedReason", "returnvalue")
    return command(*words, decode=lambda reply: (reply[0] or "", reply[1] or "", reply[2] or "null"))


def node_status(queue: QueueKeys, job_id: str, name: str, row: str) -> Call[NodeStatus]:
    """A node as its job has it."""
    fields = ("state", "attemptsMade", "processedOn", "finishedOn", "failedReason", "progress", "gmo:skipped")

    def decode(reply: Any) -> NodeStatus:
        *found, skipped = (field or "" for field in reply)
        if skipped:
            found[0], found[4] = JobState.SKIPPED, skipped
        return read_node((name, row, *found))[1]

    return command("HMGET", queue.job(job_id), *fields, decode=decode)


def fail(queue: QueueKeys, job_id: str, reason: str, now_ms: int) -> Call[str]:
    """Let a job that nobody runs fail for good. Repeatable; a job that has ended stays as it is."""
    keys = [queue.key(name) for name in ("stream", "failed", "scheduled", "events")]
    keys += [queue.job(job_id), queue.key("metrics:failed")]
    args = (job_id, NO_ENTRY, reason, now_ms, 0, 0, GROUP, "0", 0, 0, 0)
    return function("glidemq_fail", keys, args, replies.text)


def revoke(queue: QueueKeys, job_id: str, now_ms: int) -> Call[str]:
    """Take a job out of wherever it could start from, and tell whoever runs it. Repeatable."""
    keys = [queue.job(job_id), *(queue.key(name) for name in ("stream", "scheduled", "failed", "events"))]
    return function("glidemq_revoke", keys, (job_id, now_ms, GROUP), replies.text)


def reset(queue: QueueKeys, job_id: str) -> list[Call[None]]:
    """Calls that make a failed job wait again; a gate must hold it back by then."""
    key = queue.job(job_id)
    fresh = ("state", "waiting-children", "attemptsMade", "0", "failedReason", "", "finishedOn", "")
    stale = ("revoked", "stalledCount", "progress", "processedOn", "gmo:token", "gmo:entry")
    return [
        command("ZREM", queue.key("failed"), job_id, decode=replies.anything),
        command("HDEL", key, *stale, decode=replies.anything),
        command("HSET", key, *fresh, decode=replies.anything),
    ]


def drop_job(queue: QueueKeys, job_id: str) -> Call[None]:
    """Delete a job that never started."""
    keys = (queue.job(job_id), queue.key(f"deps:{job_id}"), queue.key(f"parents:{job_id}"))
    return command("UNLINK", *keys, decode=replies.anything)


def drop_record(home: QueueKeys, flow_id: str) -> list[Call[None]]:
    """Delete the record of a flow that never started, the claim on its id last."""
    key = home.flow(flow_id)
    return [
        command("UNLINK", key, f"{key}:nodes", decode=replies.anything),
        command("UNLINK", flow_home(home.prefix, flow_id), decode=replies.anything),
    ]


def tell_end(home: QueueKeys, flow_id: str, state: str) -> Call[None]:
    """Wake whoever waits for the flow."""
    words = ("MAXLEN", "~", 1000, "*", "event", f"flow.{state}", "jobId", "", "flowId", flow_id)
    return command("XADD", home.key("events"), *words, decode=replies.anything)
