"""Reads the nodes of a portable flow from its table and their jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from glidemq_orchestrate.flows.dependencies import ORDINARY, OnFailure, Policy
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.node_table import job_now, read_rows
from glidemq_orchestrate.flows.portable.gates import PAGE
from glidemq_orchestrate.flows.trips import parts
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, command
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import number

_ENDED: Final = ("completed", "failed", "skipped")
NOT_BEGUN: Final = ("waiting", "prioritized", "group-waiting", "delayed")


def policy_rows(home: QueueKeys, flow_id: str, cursor: str) -> Call[tuple[str, dict[str, str]]]:
    """A page of the policies of nodes, in the form of ``policy_text``."""

    def decode(reply: Any) -> tuple[str, dict[str, str]]:
        return reply[0], replies.pairs(reply[1])

    return command("HSCAN", home.portable_policies(flow_id), cursor, "COUNT", PAGE, decode=decode)


def policy(home: QueueKeys, flow_id: str, name: str) -> Call[str]:
    """The policy of a node, '' for an ordinary one."""
    return command("HGET", home.portable_policies(flow_id), name, decode=lambda reply: reply or "")


def write_policies(home: QueueKeys, flow_id: str, texts: Mapping[str, str]) -> Call[None]:
    """Store policies of nodes."""
    words = [word for pair in texts.items() for word in pair]
    return command("HSET", home.portable_policies(flow_id), *words, decode=replies.anything)


def note_waiting(home: QueueKeys, flow_id: str, name: str, now_ms: int) -> list[Call[Any]]:
    """Calls that record when a node was first seen to wait for a worker, and return that time in ms."""
    key = home.portable_waiting(flow_id)
    return [
        command("HSETNX", key, name, now_ms, decode=replies.anything),
        command("HGET", key, name, decode=lambda reply: number(reply, now_ms) or now_ms),
    ]


def forget_waiting(home: QueueKeys, flow_id: str, names: Sequence[str]) -> Call[None]:
    """Forget since when these nodes have waited, since they rerun."""
    return command("HDEL", home.portable_waiting(flow_id), *names, decode=replies.anything)


def write_noted(home: QueueKeys, flow_id: str, rows: Mapping[str, str]) -> Call[None]:
    """Store nodes, each prefixed with the name of its note."""
    words = [word for pair in rows.items() for word in pair]
    return command("HSET", home.portable_notes(flow_id), *words, decode=replies.anything)


def noted(home: QueueKeys, flow_id: str, cursor: str) -> Call[tuple[str, dict[str, str]]]:
    """A page of the nodes of all notes."""

    def decode(reply: Any) -> tuple[str, dict[str, str]]:
        return reply[0], replies.pairs(reply[1])

    return command("HSCAN", home.portable_notes(flow_id), cursor, "COUNT", PAGE, decode=decode)


def forget_noted(home: QueueKeys, flow_id: str, rows: Sequence[str]) -> Call[None]:
    """Forget nodes of a note."""
    return command("HDEL", home.portable_notes(flow_id), *rows, decode=replies.anything)


def drop_tables(home: QueueKeys, flow_id: str) -> Call[None]:
    """Delete the tables of a flow."""
    keys = [f"{home.flow(flow_id)}:nodes", home.portable_policies(flow_id)]
    keys += [home.portable_waiting(flow_id), home.portable_notes(flow_id)]
    return command("UNLINK", *keys, decode=replies.anything)


@dataclass(slots=True)
class Node:
    """A node from the table and its job: see ``node_jobs.JobNow``.

    ``is_unsure``: ``state`` is the end decided here, but another client may decide differently: the first one
    counts.
    """

    name: str
    queue: QueueKeys
    job_id: str
    after: tuple[str, ...]
    row: str
    policy: Policy = ORDINARY
    state: str = ""
    reason: str = ""
    result: str = "null"
    ended_ms: int = 0
    has_begun: bool = False
    round: int = 0
    is_stray: bool = False
    is_unsure: bool = False
    removed: bool = False

    @property
    def ref(self) -> str:
        """The reference to it in dependents."""
        return f"{self.queue.base}:{self.job_id}"

    @property
    def has_gate(self) -> bool:
        """Whether a gate may block it since the submission."""
        return not self.after or self.policy is not ORDINARY

    @property
    def has_failed(self) -> bool:
        """Whether it has failed, or its job was removed and will never complete."""
        return self.state in ("failed", "")

    @property
    def is_ignored(self) -> bool:
        """Whether its failure does not fail the flow."""
        return self.policy.on_failure is OnFailure.IGNORE

    @property
    def end(self) -> str | None:
        """How it has ended; None if it has not or is unsure."""
        if self.is_unsure:
            return None
        return "failed" if self.has_failed else self.state if self.state in _ENDED else None


def read_nodes(ref: FlowRef) -> Op[list[Node]]:
    """Every node with the state of its job, dependencies before dependents."""
    policies = yield from read_policies(ref)
    nodes = []
    for name, row in (yield from read_rows(ref)).items():
        _rank, queue, job_id, _job, *after = row
        place = QueueKeys(ref.home.prefix, queue)
        policy = Policy.read(policies[name]) if name in policies else ORDINARY
        nodes.append(Node(name, place, job_id, tuple(after), json.dumps(row), policy))
    for part in parts(nodes):
        jobs = yield from ask_all([job_now(node.queue, node.job_id) for node in part])
        for node, job in zip(part, jobs, strict=True):
            node.state, node.reason, node.result, node.ended_ms = job[:4]
            node.has_begun, node.round, node.is_stray, node.removed = job[4:]
    return nodes


def read_policies(ref: FlowRef) -> Op[dict[str, str]]:
    """The stored policies by node name."""
    found: dict[str, str] = {}
    cursor = "0"
    while True:
        cursor, page = yield from ask(policy_rows(ref.home, ref.flow_id, cursor))
        found |= page
        if cursor == "0":
            return found
