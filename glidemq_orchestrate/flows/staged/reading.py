"""Reads a flow within one slot: its status, nodes, results, policies and outcome; waits for its end."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from glidemq_orchestrate import events
from glidemq_orchestrate.errors import FlowNotFound, WaitTimeout
from glidemq_orchestrate.flows.checked import CheckedFlow, CheckedNode, canonical
from glidemq_orchestrate.flows.definitions import (
    PAGE,
    POLICIES,
    WORK_FIELDS,
    Definition,
    NodeSettings,
    NodeWork,
    Policies,
    PolicyForm,
    Ran,
    StoredNodes,
    own_options,
    read_work,
)
from glidemq_orchestrate.flows.dependencies import UPSTREAM, OnFailure
from glidemq_orchestrate.flows.generation import FlowRef, flow_status
from glidemq_orchestrate.flows.home import expire_due, home_of
from glidemq_orchestrate.flows.node_table import (
    Inputs,
    Row,
    flat_row,
    flow_nodes,
    flow_results,
    node_inputs,
    node_of_job,
    nodes_page,
    read_results,
)
from glidemq_orchestrate.flows.staged.submit import JobNames, more_fields
from glidemq_orchestrate.flows.status import (
    FlowStatus,
    NodeStatus,
    raise_if_superseded,
)
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs import attempt as attempts
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import (
    Call,
    Op,
    ask,
    ask_all,
    command,
    every_page,
    members_page,
    parts,
)
from glidemq_orchestrate.wire.confirmation import unconfirmed
from glidemq_orchestrate.wire.keys import QueueKeys, read_ref
from glidemq_orchestrate.wire.stored import number

_EDGE: Final = "gmo:edge:"
REREAD_MS: Final = 5_000


def find(prefix: str, flow_id: str) -> Op[FlowRef]:
    """The reference to the generation with this stored id."""
    home = yield from ask(home_of(prefix, flow_id))
    if home is None:
        raise FlowNotFound(f"no flow {flow_id} on this server")
    return FlowRef(home, flow_id)


def status(ref: FlowRef) -> Op[FlowStatus]:
    """Read the record."""
    return (yield from ask(flow_status(ref.home, ref.flow_id)))


def nodes(ref: FlowRef) -> Op[list[NodeStatus]]:
    """Read every node, dependencies before dependents."""
    found = yield from ranked(ref)
    return [node for _, node in sorted(found.values(), key=lambda item: item[0])]


def ranked(ref: FlowRef) -> Op[dict[str, tuple[float, NodeStatus]]]:
    """Read every node with its rank, by name."""
    pages = yield from every_page(partial(flow_nodes, ref.home, ref.flow_id))
    return {node.name: (rank, node) for page in pages for rank, node in page}


def failed(ref: FlowRef) -> Op[list[NodeStatus]]:
    """Read the nodes that failed or did not run because of others, without their dependencies."""
    first = nodes_page(ref.home, ref.flow_id, "0", ("state",), lambda *_: None, 1)
    yield from ask(first)  # raises if the flow is gone
    key, found = f"{ref.home.flow(ref.flow_id)}:failed", list[NodeStatus]()
    pages = yield from every_page(lambda cursor: members_page(key, cursor, PAGE))
    for part in parts(sorted({one for page in pages for one in page})):
        calls = [node_of_job(*read_ref(ref.home.prefix, one)) for one in part]
        for node in (yield from ask_all(calls)):
            if node is None:  # only the table has its name
                return (yield from nodes(ref))
            found.append(node)
    return found


def results(ref: FlowRef) -> Op[tuple[dict[str, Any], list[str]]]:
    """Read the result of every completed node by name, and the names of nodes with removed results."""
    pages = yield from every_page(partial(flow_results, ref.home, ref.flow_id))
    texts = {name: text for page, _ in pages for name, text in page.items()}
    return read_results(texts), sorted({name for _, removed in pages for name in removed})


def wait(ref: FlowRef, timeout_ms: int | None, clock: Clock) -> Op[FlowStatus]:
    """Wait for the end of a flow. Its event wakes it; the record is re-read, since events can be trimmed."""
    position = yield from events.tail(ref.home)
    deadline = None if timeout_ms is None else clock.monotonic_ms() + timeout_ms
    while True:
        current = yield from status(ref)
        raise_if_superseded(current)
        if current.state.is_terminal:
            return current
        # Enforces the flow's deadlines even if no worker or supervisor serves the home queue.
        expired, due = yield from unconfirmed(ask(expire_due(ref.home, clock.now_ms())))
        reread = clock.monotonic_ms() + (0 if expired else REREAD_MS)
        if due >= 0:
            reread = min(reread, clock.monotonic_ms() + due + 1 - clock.now_ms())
        if deadline is not None:
            reread = min(reread, deadline)
        position = yield from _until_event(ref, position, reread, clock)
        if deadline is not None and clock.monotonic_ms() >= deadline:
            raise WaitTimeout(
                f"flow {ref.public_id} is still {current.state}: "
                f"{current.completed} of {current.total} nodes completed"
            )


def _until_event(ref: FlowRef, position: str, until_ms: int, clock: Clock) -> Op[str]:
    while (left := until_ms - clock.monotonic_ms()) > 0:
        for event in (yield from events.read(ref.home, position, left)):
            position = event.id
            if event.flow_id == ref.public_id:
                return position
    return position


def _row_and_work(name: str, text: str, fields: Sequence[str]) -> tuple[str, Row | None, NodeWork | None]:
    """Name, row and work of a node; no work if the job was removed or is about to be reset."""
    return name, flat_row(text), read_work(*fields[1:])


def stored(ref: FlowRef, record: Mapping[str, str]) -> Op[StoredNodes | None]:
    """Read the definitions of the nodes of a flow; None if not all of them are stored.

    For a large flow the number of objects dominates the cost, so there is no object per node here.
    """
    rows: dict[str, Row] = {}
    data: dict[str, str] = {}
    settings: dict[str, NodeSettings] = {}
    cursor = ""
    while cursor != "0":
        call = nodes_page(ref.home, ref.flow_id, cursor or "0", ("state", *WORK_FIELDS), _row_and_work, PAGE)
        cursor, page = yield from ask(call)
        for name, row, work in page:
            if row is not None:
                rows[name] = row
            if row is not None and work is not None:
                data[name], settings[name] = work
    if len(rows) < number(record.get("total")):
        return None
    return StoredNodes(dict(sorted(rows.items(), key=lambda item: item[1][0])), data, settings)


_OF_RUN: Final = ("state", "gmo:skipped", "gmo:grown", "data", "opts", "gmo:gone", *POLICIES)


def _read_ran(name: str, text: str, fields: Sequence[str]) -> tuple[str, Ran | None]:
    """The name of a node and how it has run; None with an unreadable row."""
    state, skipped, grown, data, options, lost, *policies = fields
    if (row := flat_row(text)) is None:
        return name, None
    own = {policy: text for policy, text in zip(POLICIES, policies, strict=True) if text}
    is_known = options and not lost
    known = Definition(canonical(data), own_options(options), own) if is_known else None
    return name, Ran(row, "skipped" if skipped else state, grown, known)


def ran(ref: FlowRef) -> Op[dict[str, Ran]]:
    """Read how each node has run, and its definition."""
    pages = yield from every_page(
        lambda cursor: nodes_page(ref.home, ref.flow_id, cursor, _OF_RUN, _read_ran, PAGE)
    )
    return {name: one for page in pages for name, one in page if one is not None}


class JobPolicies:
    """The policies of nodes in the fields of their jobs, as ``more_fields`` writes them."""

    def __init__(self, ref: FlowRef, flow: CheckedFlow, rows: Mapping[str, Row]) -> None:
        # Some jobs may be those of earlier generations.
        ids = {name: row[2] for name, row in rows.items()}
        self._names = JobNames(ref.home.prefix, ref.flow_id, flow.queue_of, carried=ids)

    def expected(self, node: CheckedNode) -> Policies:
        """The policies that a node of the specification should have."""
        fields = json.loads(more_fields(node, self._names) or "{}") if node.has_policies else {}
        return {name: text for name, text in fields.items() if name in POLICIES or name.startswith(_EDGE)}

    def edges(self, expected: Policies) -> Sequence[str]:
        """The fields of the job for single dependencies, to be read with its definition."""
        return sorted(expected.keys() - {*POLICIES})

    def stored(self, name: str, definition: Definition) -> Policies:
        """The policies that a node has."""
        del name
        return definition.policies


def policies(ref: FlowRef, flow: CheckedFlow, rows: Mapping[str, Row]) -> Op[PolicyForm]:
    """How the flow stores the policies of its nodes: in their jobs."""
    yield from ()  # no call
    return JobPolicies(ref, flow, rows)


def dependency_policies(
    ref: FlowRef, nodes: StoredNodes, after: Mapping[str, Sequence[str]]
) -> Op[dict[str, dict[str, OnFailure]]]:
    """The failure policies for single dependencies, by node."""
    rows, _, settings, _ = nodes
    found: dict[str, dict[str, OnFailure]] = {}
    own = [name for name, names in after.items() if settings[name].rule and names]
    for part in parts(own, PAGE):
        asking = []
        for name in part:
            refs = [f"{QueueKeys(ref.home.prefix, rows[one][1]).base}:{rows[one][2]}" for one in after[name]]
            asking.append(edge_policies(QueueKeys(ref.home.prefix, rows[name][1]), rows[name][2], refs))
        for name, texts in zip(part, (yield from ask_all(asking)), strict=True):
            known = {one: text or settings[name].edge for one, text in zip(after[name], texts, strict=True)}
            found[name] = {one: OnFailure(text) for one, text in known.items() if text}
    return found


def inputs(queue: QueueKeys, attempt: Attempt) -> Op[Inputs]:
    """Read the inputs of a node from its dependencies, in pages."""
    pages = yield from every_page(partial(node_inputs, queue, attempt.node_job_id))
    texts = {name: text for page, _ in pages for name, text in page.items()}
    return Inputs(texts, sorted({job_id for _, removed in pages for job_id in removed}))


def queue_timeout(queue: QueueKeys, attempt: Attempt) -> Op[int]:
    """How many ms after it may run a node fails if no worker has started it; 0 for no limit."""
    if not attempt.flow_id:
        return 0
    return (yield from ask(attempts.queue_timeout(queue, attempt.node_job_id)))


def delayed(ref: FlowRef) -> Op[dict[str, int]]:
    """Empty: the jobs have the delays of their nodes."""
    del ref
    yield from ()  # no call
    return {}


def read_record(fields: Mapping[str, str]) -> Mapping[str, str]:
    """The fields unchanged."""
    return fields


def are_retried(queue: QueueKeys, flow_id: str, refs: Sequence[str]) -> Call[list[bool]]:
    """Whether ``retry_flow`` would rerun each of these nodes of an ended flow."""

    def decode(reply: Any) -> list[bool]:
        return [bool(one) for one in replies.integers(reply)]

    return command("SMISMEMBER", f"{queue.flow(flow_id)}:failed", *refs, decode=decode)


def are_open(queue: QueueKeys, flow_id: str, refs: Sequence[str]) -> Call[list[bool]]:
    """Whether each of these nodes of a flow has not ended."""

    def decode(reply: Any) -> list[bool]:
        return [bool(one) for one in replies.integers(reply)]

    return command("SMISMEMBER", f"{queue.flow(flow_id)}:open", *refs, decode=decode)


def retried(ref: FlowRef, nodes: Sequence[NodeStatus]) -> Op[set[str]]:
    """The nodes of an ended flow that a retry reruns: failed ones, and those skipped because of others.

    The server decides, since a user's reason may look like that of a node skipped because of others.
    """
    found = {node.name for node in nodes if node.state == JobState.FAILED}
    skipped = [node for node in nodes if node.state == JobState.SKIPPED and node.reason.startswith(UPSTREAM)]
    for part in parts(skipped):
        refs = [f"{QueueKeys(ref.home.prefix, node.queue).base}:{node.job_id}" for node in part]
        known = yield from ask(are_retried(ref.home, ref.flow_id, refs))
        found |= {node.name for node, is_retried in zip(part, known, strict=True) if is_retried}
    return found


def resolved(ref: FlowRef, found: Sequence[NodeStatus]) -> Op[list[NodeStatus]]:
    """The nodes, with ends from the record for completely removed jobs."""
    unknown = [node for node in found if node.removed and node.state is JobState.UNKNOWN and node.job_id]
    ends: dict[str, JobState] = {}
    for part in parts(unknown):
        refs = [f"{QueueKeys(ref.home.prefix, node.queue).base}:{node.job_id}" for node in part]
        opens, failures = yield from ask_all(
            [
                are_open(ref.home, ref.flow_id, refs),
                are_retried(ref.home, ref.flow_id, refs),
            ]
        )
        for node, is_open, has_failed in zip(part, opens, failures, strict=True):
            if not is_open:
                ends[node.name] = JobState.FAILED if has_failed else JobState.COMPLETED
    return [replace(node, state=ends.get(node.name, node.state)) for node in found]


def edge_policies(queue: QueueKeys, job_id: str, refs: Sequence[str]) -> Call[list[str]]:
    """The failure policies of a node for these dependencies; '' for none."""

    def decode(reply: Any) -> list[str]:
        return [text or "" for text in reply]

    return command("HMGET", queue.job(job_id), *(f"{_EDGE}{ref}" for ref in refs), decode=decode)
