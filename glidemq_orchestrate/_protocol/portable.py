"""Builders of the portable path: glide-mq's own functions and plain commands, each within one slot.

A node of a portable flow is held back by its dependencies and by gates: members of its ``deps`` set that no
job has. Gate 0 holds the roots until every node exists, and nodes with rules or a delay until these are met;
gate n what the n-th retry or restart runs again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from glidemq_orchestrate._protocol import replies
from glidemq_orchestrate._protocol.call import Call, command, function
from glidemq_orchestrate._protocol.orchestrate import read_node
from glidemq_orchestrate._stored import number
from glidemq_orchestrate.checked_flow import CheckedNode
from glidemq_orchestrate.errors import ProtocolError
from glidemq_orchestrate.flow import FlowState, NodeStatus
from glidemq_orchestrate.job import JobState, RunOptions
from glidemq_orchestrate.keys import GROUP, QueueKeys, flow_home, flow_homes

NO_ENTRY: Final = "0-1"
PATH: Final = "portable"
MAX_LABELS: Final = 16


def gate(queue: QueueKeys, number: int) -> str:
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


def mark_once(home: QueueKeys, flow_id: str, field: str, value: str = "1") -> Call[bool]:
    """Set a mark; whether this call has set it."""
    return command("HSETNX", home.flow(flow_id), field, value, decode=bool)


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


def index(
    home: QueueKeys, flow_id: str, labels: Mapping[str, str], state: FlowState, at: str
) -> list[Call[None]]:
    """Calls that list a flow among those of its home, in one state, as ``index.lua`` does. Repeatable."""
    flows, gone = home.flows(), replies.anything
    others = [other for other in FlowState if other is not state]
    return [
        command("ZADD", flows, at, flow_id, decode=gone),
        *(command("ZADD", key, at, flow_id, decode=gone) for key in _label_keys(home, labels)),
        *(command("ZREM", f"{flows}:state:{other}", flow_id, decode=gone) for other in others),
        command("ZADD", f"{flows}:state:{state}", at, flow_id, decode=gone),
        command("SADD", flow_homes(home.prefix), home.queue, decode=gone),
    ]


def unindex(home: QueueKeys, flow_id: str, labels: Mapping[str, str]) -> list[Call[None]]:
    """Calls that take a flow off every list of its home. Repeatable."""
    lists = [f"{home.flows()}:state:{state}" for state in FlowState]
    keys = [home.flows(), *_label_keys(home, labels), *lists]
    return [command("ZREM", key, flow_id, decode=replies.anything) for key in keys]


def has_flows(home: QueueKeys) -> Call[bool]:
    """Whether the queue is the home of a flow."""
    return command("EXISTS", home.flows(), decode=bool)


def _label_keys(home: QueueKeys, labels: Mapping[str, str]) -> list[str]:
    return [f"{home.flows()}:label:{key}={value}" for key, value in list(labels.items())[:MAX_LABELS]]


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
        return (RunOptions.from_wire(reply or "").portable or ("", ""))[0]

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


def policies(home: QueueKeys, flow_id: str) -> Call[dict[str, str]]:
    """The policies of the nodes that have some, as ``portable_table.policy_text`` writes them."""
    return command("HGETALL", f"{home.flow(flow_id)}:policies", decode=replies.pairs)


def write_policies(home: QueueKeys, flow_id: str, texts: Mapping[str, str]) -> Call[None]:
    """Store policies of nodes."""
    words = [word for pair in texts.items() for word in pair]
    return command("HSET", f"{home.flow(flow_id)}:policies", *words, decode=replies.anything)


def see_waiting(home: QueueKeys, flow_id: str, name: str, now_ms: int) -> list[Call[Any]]:
    """Calls that note when a node was first seen to wait for a worker, and answer when that was, in ms."""
    key = f"{home.flow(flow_id)}:waiting"
    return [
        command("HSETNX", key, name, now_ms, decode=replies.anything),
        command("HGET", key, name, decode=lambda reply: number(reply, now_ms) or now_ms),
    ]


def forget_waiting(home: QueueKeys, flow_id: str) -> Call[None]:
    """Forget since when nodes wait: they run again."""
    return command("UNLINK", f"{home.flow(flow_id)}:waiting", decode=replies.anything)


def open_gate(queue: QueueKeys, job_id: str, number: int) -> Call[int]:
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


def explain(queue: QueueKeys, job_id: str, reason: str) -> Call[None]:
    """Say why a job was ended; a revocation says only that it was. Repeatable."""
    return command("HSET", queue.job(job_id), "failedReason", reason, decode=replies.anything)


def reset(queue: QueueKeys, job_id: str) -> list[Call[None]]:
    """Calls that make a job that has ended wait again; a gate must hold it back by then."""
    key = queue.job(job_id)
    fresh = ("state", "waiting-children", "attemptsMade", "0", "failedReason", "", "finishedOn", "")
    stale = ("revoked", "stalledCount", "progress", "processedOn", "gmo:token", "gmo:entry", "gmo:skipped")
    return [
        command("ZREM", queue.key("failed"), job_id, decode=replies.anything),
        command("ZREM", queue.key("completed"), job_id, decode=replies.anything),
        command("HDEL", key, *stale, "returnvalue", decode=replies.anything),
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
        command("UNLINK", key, f"{key}:nodes", f"{key}:policies", f"{key}:waiting", decode=replies.anything),
        command("UNLINK", flow_home(home.prefix, flow_id), decode=replies.anything),
    ]


def tell_end(home: QueueKeys, flow_id: str, state: str) -> Call[None]:
    """Wake whoever waits for the flow."""
    words = ("MAXLEN", "~", 1000, "*", "event", f"flow.{state}", "jobId", "", "flowId", flow_id)
    return command("XADD", home.key("events"), *words, decode=replies.anything)
