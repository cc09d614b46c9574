"""The nodes of a portable flow as its table and their jobs have them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from glidemq_orchestrate._ops.flows.portable.trips import parts
from glidemq_orchestrate._ops.flows.staged import FlowRef
from glidemq_orchestrate._protocol.flows.nodes import Row
from glidemq_orchestrate._protocol.flows.portable import node_jobs, tables
from glidemq_orchestrate._protocol.flows.stalled import node_table
from glidemq_orchestrate.flows.checked import CheckedNode
from glidemq_orchestrate.flows.rules import OnFailure, Rule
from glidemq_orchestrate.wire.call import Op, ask, ask_all
from glidemq_orchestrate.wire.keys import QueueKeys

UPSTREAM: Final = "upstream "
_ENDED: Final = ("completed", "failed", "skipped")
NOT_BEGUN: Final = ("waiting", "prioritized", "group-waiting", "delayed")


@dataclass(frozen=True, slots=True)
class Policy:
    """Settings that few nodes have, stored apart from the table. See ``CheckedNode``."""

    rule: Rule = Rule.ALL_SUCCESS
    on_failure: OnFailure | None = None
    policies: Mapping[str, OnFailure] | None = None
    queue_timeout_ms: int | None = None
    delay_ms: int = 0

    @classmethod
    def read(cls, text: str) -> Policy:
        """From the form in which it is stored."""
        wire: dict[str, Any] = json.loads(text)
        on_failure = wire.get("on_failure")
        return cls(
            Rule(wire.get("rule", Rule.ALL_SUCCESS)),
            OnFailure(on_failure) if on_failure else None,
            {name: OnFailure(policy) for name, policy in wire.get("policies", {}).items()},
            wire.get("queue_timeout"),
            wire.get("delay", 0),
        )


ORDINARY: Final = Policy()


def policy_text(node: CheckedNode) -> str:
    """The policy of a node as it is stored; '' for an ordinary one."""
    wire: dict[str, Any] = {
        "rule": node.rule,
        "on_failure": node.on_failure,
        "policies": dict(node.policies),
        "queue_timeout": node.queue_timeout_ms,
        "delay": node.delay_ms,
    }
    given = {name: value for name, value in wire.items() if value}
    return json.dumps(given) if given else ""


@dataclass(slots=True)
class Node:
    """A node as the table and its job have it: see ``node_jobs.JobNow``.

    ``is_unsure``: ``state`` is the end decided here, and another client may decide otherwise: the server
    takes the first.
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
        """How dependents refer to it."""
        return f"{self.queue.base}:{self.job_id}"

    @property
    def has_gate(self) -> bool:
        """Whether a gate may have held it back since the submission."""
        return not self.after or self.policy is not ORDINARY

    @property
    def has_failed(self) -> bool:
        """Whether it has failed, or its job was removed and so will never complete."""
        return self.state in ("failed", "")

    @property
    def is_ignored(self) -> bool:
        """Whether its failure does not fail the flow."""
        return self.policy.on_failure is OnFailure.IGNORE

    @property
    def end(self) -> str | None:
        """How it has ended; None while it has not, or is unsure."""
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
        jobs = yield from ask_all([node_jobs.job(node.queue, node.job_id) for node in part])
        for node, job in zip(part, jobs, strict=True):
            node.state, node.reason, node.result, node.ended_ms = job[:4]
            node.has_begun, node.round, node.is_stray, node.removed = job[4:]
    return nodes


def read_rows(ref: FlowRef) -> Op[dict[str, Row]]:
    """The row of every node by name, dependencies before dependents; also of a flow of the other path."""
    found: dict[str, Row] = {}
    cursor = "0"
    while True:
        cursor, page = yield from ask(node_table(ref.home, ref.flow_id, cursor))
        found |= page
        if cursor == "0":
            return dict(sorted(found.items(), key=lambda item: item[1][0]))


def read_policies(ref: FlowRef) -> Op[dict[str, str]]:
    """The stored policies by node name."""
    found: dict[str, str] = {}
    cursor = "0"
    while True:
        cursor, page = yield from ask(tables.policies(ref.home, ref.flow_id, cursor))
        found |= page
        if cursor == "0":
            return found
