"""The nodes of a portable flow as they are now, and what is to be done with those that wait."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from glidemq_orchestrate._ops.flows.staged import FlowRef
from glidemq_orchestrate._protocol.call import Call, Op, ask, ask_all, ask_each
from glidemq_orchestrate._protocol.flows import portable as calls
from glidemq_orchestrate._protocol.flows.stalled import node_table
from glidemq_orchestrate.errors import GlideMQError, LibraryMissing
from glidemq_orchestrate.flows.checked import CheckedNode
from glidemq_orchestrate.flows.rules import OnFailure, Rule, counts_as, verdict
from glidemq_orchestrate.keys import QueueKeys

T = TypeVar("T")

PER_TRIP: Final = 200
MAX_BYTES: Final = 524_288
GONE: Final = "its job was removed"
UPSTREAM: Final = "upstream "
_FAILED: Final = "upstream failed: "
_ENDED: Final = ("completed", "failed", "skipped")
NOT_BEGUN: Final = ("waiting", "prioritized", "group-waiting", "delayed")


@dataclass(frozen=True, slots=True)
class Policy:
    """What few nodes have; kept apart from the table. See ``CheckedNode``."""

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
    said = {name: value for name, value in wire.items() if value}
    return json.dumps(said) if said else ""


@dataclass(slots=True)
class Node:
    """A node as its table and its job have it. ``state`` may be ``skipped``, and '' when the job is gone."""

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

    @property
    def ref(self) -> str:
        """The form in which dependents name it."""
        return f"{self.queue.base}:{self.job_id}"

    @property
    def has_gate(self) -> bool:
        """Whether a gate may have held it back since the submission."""
        return not self.after or self.policy is not ORDINARY

    @property
    def has_failed(self) -> bool:
        """Whether it has failed, or its job is gone and will never complete."""
        return self.state in ("failed", "")

    @property
    def is_ignored(self) -> bool:
        """Whether its failure does not fail the flow."""
        return self.policy.on_failure is OnFailure.IGNORE

    @property
    def end(self) -> str | None:
        """How it has ended; None while it has not."""
        return "failed" if self.has_failed else self.state if self.state in _ENDED else None


@dataclass(slots=True)
class Decisions:
    """What is to be done with nodes that wait."""

    run: list[Node]
    fail: list[Node]
    skip: list[Node]


def decide(nodes: Sequence[Node], started_ms: int, now_ms: int) -> Decisions:
    """Decide about every node that waits; those that end get their new state and reason here.

    Goes in topological order, so that an end reaches its last dependent in one go.
    """
    by_name = {node.name: node for node in nodes}
    told = Decisions([], [], [])
    for node in nodes:
        if node.state != "waiting-children":
            continue
        what, dependency = _verdict(node, by_name)
        if what == "run" and _due_ms(node, by_name, started_ms) <= now_ms:
            told.run.append(node)
        elif what in ("failed", "skipped"):
            node.state = what
            node.reason = _reason(dependency)
            node.ended_ms = now_ms
            (told.fail if what == "failed" else told.skip).append(node)
    return told


def _verdict(node: Node, by_name: Mapping[str, Node]) -> tuple[str | None, Node | None]:
    """What becomes of a node, and the dependency that decides against it."""
    effects: list[tuple[str, Node]] = []
    for dependency in (by_name[name] for name in node.after):
        if end := dependency.end:
            own = (node.policy.policies or {}).get(dependency.name)
            effects.append((counts_as(end, own or dependency.policy.on_failure), dependency))
    found = Counter(effect for effect, _ in effects)
    completed, failed, skipped = (found[end] for end in _ENDED)
    what = verdict(node.policy.rule, completed, failed, skipped, total=len(node.after))
    against = next((one for effect, one in effects if effect == what), effects[0][1] if effects else None)
    return what, against


def _reason(dependency: Node | None) -> str:
    if dependency is None:
        return UPSTREAM
    if dependency.end == "failed" and dependency.reason.startswith(_FAILED):
        return dependency.reason
    return f"{UPSTREAM}{dependency.end}: {dependency.name}"


def _due_ms(node: Node, by_name: Mapping[str, Node], started_ms: int) -> int:
    since = max((by_name[name].ended_ms for name in node.after), default=started_ms)
    return since + node.policy.delay_ms if node.policy.delay_ms else 0


def read_nodes(ref: FlowRef) -> Op[list[Node]]:
    """Every node with the state of its job, dependencies before dependents."""
    found: dict[str, tuple[float, Node]] = {}
    policies = yield from _policies(ref)
    cursor = "0"
    while True:
        cursor, page = yield from ask(node_table(ref.home, ref.flow_id, cursor))
        for name, row in page.items():
            rank, queue, job_id, _job, *after = row
            place = QueueKeys(ref.home.prefix, queue)
            policy = Policy.read(policies[name]) if name in policies else ORDINARY
            found[name] = (rank, Node(name, place, job_id, tuple(after), json.dumps(row), policy))
        if cursor == "0":
            break
    nodes = [node for _, node in sorted(found.values(), key=lambda pair: pair[0])]
    for part in parts(nodes):
        jobs = yield from ask_all([calls.job(node.queue, node.job_id) for node in part])
        for node, job in zip(part, jobs, strict=True):
            node.state, node.reason, node.result, node.ended_ms, node.has_begun = job
    return nodes


def _policies(ref: FlowRef) -> Op[dict[str, str]]:
    found: dict[str, str] = {}
    cursor = "0"
    while True:
        cursor, page = yield from ask(calls.policies(ref.home, ref.flow_id, cursor))
        found |= page
        if cursor == "0":
            return found


def send_all(todo: Iterable[Call[T]]) -> Op[None]:
    """Send calls whose answers do not matter, many a trip."""
    for part in parts(list(todo)):
        yield from ask_all(part)


def send_fenced(todo: Iterable[tuple[Call[int], Sequence[Call[Any]]]]) -> Op[None]:
    """Send calls of our functions, each of them with the plain calls that must do where these are missing."""
    for part in parts(list(todo)):
        replies = yield from ask_each([call for call, _ in part])
        plain: list[Call[Any]] = []
        for (_, instead), reply in zip(part, replies, strict=True):
            if isinstance(reply, LibraryMissing):
                plain += instead
            elif isinstance(reply, GlideMQError):
                raise reply
        yield from send_all(plain)


def parts(items: Sequence[T], size: int = PER_TRIP) -> Iterator[Sequence[T]]:
    """As many at a time as go into one trip."""
    for first in range(0, len(items), size):
        yield items[first : first + size]


def parts_of_size(pairs: Iterable[tuple[str, str]]) -> Iterator[dict[str, str]]:
    """As many pairs at a time as the server writes in a millisecond or two."""
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
