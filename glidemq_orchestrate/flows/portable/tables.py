"""The nodes of a portable flow, from its tables and their jobs; decides whether a waiting node runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from glidemq_orchestrate.flows.checked import CheckedFlow, CheckedNode, policy_text
from glidemq_orchestrate.flows.definitions import Definition, Policies, PolicyForm, StoredNodes
from glidemq_orchestrate.flows.dependencies import (
    ORDINARY,
    UPSTREAM,
    OnFailure,
    Policy,
    Rule,
    counts_as,
    verdict,
)
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.node_table import Row, job_now, read_rows
from glidemq_orchestrate.flows.portable.node_jobs import PAGE
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import (
    PER_TRIP,
    Call,
    Op,
    ask_all,
    command,
    every_row,
    fields_page,
    parts,
    write_fields,
)
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import number

_ENDED: Final = ("completed", "failed", "skipped")
NOT_BEGUN: Final = ("waiting", "prioritized", "group-waiting", "delayed")


def policy(home: QueueKeys, flow_id: str, name: str) -> Call[str]:
    """The policy of a node, '' for an ordinary one."""
    return command("HGET", home.portable_policies(flow_id), name, decode=lambda reply: reply or "")


def write_policies(home: QueueKeys, flow_id: str, texts: Mapping[str, str]) -> Call[None]:
    """Store policies of nodes."""
    return write_fields(home.portable_policies(flow_id), texts)


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
    return write_fields(home.portable_notes(flow_id), rows)


def noted(home: QueueKeys, flow_id: str, cursor: str) -> Call[tuple[str, dict[str, str]]]:
    """A page of the nodes of all notes."""
    return fields_page(home.portable_notes(flow_id), cursor, PAGE)


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
    """A node from the table and its job: see ``JobNow``.

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
        return self.policy.is_ignored

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
    """The stored policies by node name, in the form of ``policy_text``."""
    key = ref.home.portable_policies(ref.flow_id)
    return (yield from every_row(lambda cursor: fields_page(key, cursor, PAGE)))


_FAILED: Final = "upstream failed: "


@dataclass(slots=True)
class Decisions:
    """The decisions on waiting nodes."""

    run: list[Node]
    fail: list[Node]
    skip: list[Node]


def decide(nodes: Sequence[Node], begun_ms: Callable[[int], int], now_ms: int) -> Decisions:
    """Decide on every waiting node; sets the state and reason of those that end.

    Works in topological order, so that a failure reaches its last dependent in one pass; but an end that is
    ``is_unsure`` decides nothing. ``begun_ms``: when a round began.
    """
    by_name = {node.name: node for node in nodes}
    decisions = Decisions([], [], [])
    for node in nodes:
        if node.state != "waiting-children":
            continue
        what, dependency, is_sure = _verdict(node, by_name)
        if what == "run" and _due_ms(node, by_name, begun_ms) <= now_ms:
            decisions.run.append(node)
        elif what in ("failed", "skipped"):
            node.state, node.is_unsure = what, not is_sure
            node.reason = _reason(dependency)
            node.ended_ms = now_ms
            (decisions.fail if what == "failed" else decisions.skip).append(node)
    return decisions


def delayed_until(nodes: Sequence[Node], begun_ms: Callable[[int], int]) -> dict[str, int]:
    """When each node that only waits for its own delay may run, in ms since the epoch."""
    by_name = {node.name: node for node in nodes}
    waiting = [node for node in nodes if node.state == "waiting-children" and node.policy.delay_ms]
    return {
        node.name: _due_ms(node, by_name, begun_ms) for node in waiting if _verdict(node, by_name)[0] == "run"
    }


def _verdict(node: Node, by_name: Mapping[str, Node]) -> tuple[str | None, Node | None, bool]:
    """The verdict of the node's rule, the dependency that caused it, and whether all clients agree on it.

    With ``all_success`` the first failed or skipped dependency decides; clients may see different ones first.
    """
    effects: list[tuple[str, Node]] = []
    for dependency in (by_name[name] for name in node.after):
        if end := dependency.end:
            own = (node.policy.policies or {}).get(dependency.name)
            effects.append((counts_as(end, own or dependency.policy.on_failure), dependency))
    found = Counter(effect for effect, _ in effects)
    completed, failed, skipped = (found[end] for end in _ENDED)
    what = verdict(node.policy.rule, completed, failed, skipped, total=len(node.after))
    against = next((one for effect, one in effects if effect == what), effects[0][1] if effects else None)
    is_sure = node.policy.rule is not Rule.ALL_SUCCESS or (
        completed + failed + skipped == len(node.after) and not (failed and skipped)
    )
    return what, against, is_sure


def _reason(dependency: Node | None) -> str:
    """Why a node cannot run: names the root of a chain of failures."""
    if dependency is None:
        return UPSTREAM
    if dependency.end == "failed" and dependency.reason.startswith(_FAILED):
        return dependency.reason
    return f"{UPSTREAM}{dependency.end}: {dependency.name}"


def _due_ms(node: Node, by_name: Mapping[str, Node], begun_ms: Callable[[int], int]) -> int:
    """When a delayed node may run: its delay counts from the end of its last dependency in its round."""
    if not node.policy.delay_ms:
        return 0
    return (
        max(begun_ms(node.round), *(by_name[name].ended_ms for name in node.after), 0) + node.policy.delay_ms
    )


class TablePolicies:
    """The policies of nodes in a table of their flow."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def expected(self, node: CheckedNode) -> Policies:
        """The policies that a node of the specification should have."""
        return _as_fields(policy_text(node))

    def edges(self, expected: Policies) -> Sequence[str]:
        """None: the job has no policies."""
        del expected
        return ()

    def stored(self, name: str, definition: Definition) -> Policies:
        """The policies that a node has."""
        del definition
        return _as_fields(self._texts.get(name, ""))


def _as_fields(text: str) -> Policies:
    fields: dict[str, Any] = json.loads(text or "{}")
    return {f"gmo:{name}": json.dumps(value, sort_keys=True) for name, value in fields.items()}


def policies(ref: FlowRef, flow: CheckedFlow, rows: Mapping[str, Row]) -> Op[PolicyForm]:
    """How the flow stores the policies of its nodes: in a table."""
    del flow, rows
    return TablePolicies((yield from read_policies(ref)))


def dependency_policies(
    ref: FlowRef, nodes: StoredNodes, after: Mapping[str, Sequence[str]]
) -> Op[dict[str, dict[str, OnFailure]]]:
    """The failure policies for single dependencies, by node; completes the settings of the nodes."""
    del ref, after
    yield from ()  # no call
    found = {}
    for name, text in nodes.policies.items():
        fields = json.loads(text)
        rule, on_failure = fields.get("rule", ""), fields.get("on_failure", "")
        settings = nodes.settings[name]
        nodes.settings[name] = settings._replace(
            rule=rule, on_failure=on_failure, queue_timeout_ms=fields.get("queue_timeout")
        )
        found[name] = {one: OnFailure(word) for one, word in fields.get("policies", {}).items()}
    return found


MAX_BYTES: Final = 524_288


def parts_of_size(pairs: Iterable[tuple[str, str]]) -> Iterator[dict[str, str]]:
    """Slices that the server writes in a millisecond or two."""
    part: dict[str, str] = {}
    length = 0
    for name, text in pairs:
        if part and (len(part) == PER_TRIP or length + len(text) > MAX_BYTES):
            yield part
            part, length = {}, 0
        part[name] = text
        length += len(text)
    if part:
        yield part
