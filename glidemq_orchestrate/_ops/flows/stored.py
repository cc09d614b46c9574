"""The specification of a flow, read back from its tables and its jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from glidemq_orchestrate._ops.flows.compare import is_of_spec
from glidemq_orchestrate._ops.flows.portable.table import Row, read_policies, read_rows
from glidemq_orchestrate._ops.flows.portable.trips import parts
from glidemq_orchestrate._ops.flows.staged import FlowRef, advance, raise_if_superseded
from glidemq_orchestrate._protocol.call import Op, ask, ask_all
from glidemq_orchestrate._protocol.flows import definitions as calls
from glidemq_orchestrate._protocol.flows.definitions import Work
from glidemq_orchestrate._protocol.flows.flow import read_status
from glidemq_orchestrate._protocol.flows.portable.record import Record
from glidemq_orchestrate.clock import Clock
from glidemq_orchestrate.errors import FlowExpired, FlowIncomplete, FlowNotFound
from glidemq_orchestrate.flows.checked import CheckedFlow, CheckedNode
from glidemq_orchestrate.flows.rules import OnFailure, Rule
from glidemq_orchestrate.keys import QueueKeys
from glidemq_orchestrate.stored import exact, number, parsed_object

PER_TRIP: Final = 50  # each with up to 1 MiB of data


class Stored(NamedTuple):
    """A flow as it is stored. ``extensions``: how often it was extended by then."""

    flow: CheckedFlow
    extensions: str


def read_flow(ref: FlowRef, clock: Clock) -> Op[Stored]:
    """The nodes as they were submitted, and those that were added from outside; not those that nodes added.

    Raises:
        FlowNotFound: The flow no longer exists.
        Superseded: Another generation has begun.
        FlowExpired: Its jobs no longer exist, or that of a node does not.
        FlowIncomplete: It was cancelled before all of it was submitted.
    """
    while True:
        record = yield from ask(calls.record(ref.home, ref.flow_id))
        if "digest" not in record:
            raise FlowNotFound(f"no flow {ref.public_id} in queue {ref.home.queue}")
        current = read_status(ref.home, ref.flow_id, record)
        raise_if_superseded(current)
        if "expired_at" in record:
            raise FlowExpired(f"the jobs of flow {ref.public_id} were removed after its retention")
        rows, works = yield from _read_all(ref)
        is_whole = ref.path == "staged" or Record.read(record).number >= 0
        if is_whole and len(rows) >= number(record.get("total")):
            break
        if current.state.is_terminal or ref.path == "portable":
            raise FlowIncomplete(
                f"flow {ref.public_id} was cancelled while it was submitted: submit it again"
            )
        yield from advance(ref, clock)  # nodes that were added are still joining the flow
    works |= yield from _works(ref, {name: row for name, row in rows.items() if name not in works})
    own: dict[str, dict[str, OnFailure]] = {}
    if ref.path == "portable":
        works, own = _from_table(works, (yield from read_policies(ref)))
    stay = [name for name, row in rows.items() if is_of_spec(row) or works[name].extension]
    dependents: dict[str, list[str]] = {name: [] for name in stay}
    after = {name: tuple([one for one in rows[name][4:] if one in dependents]) for name in stay}
    for name, names in after.items():
        for one in names:
            dependents[one].append(name)
    policies = own or (yield from _policies(ref, rows, works, after))
    nodes = [_node(name, rows[name], works[name], after[name], dependents[name], policies) for name in stay]
    flow = CheckedFlow(
        name=record.get("name", ""),
        labels={key: str(value) for key, value in parsed_object(record.get("labels")).items()},
        nodes=tuple(nodes),
        queue_of={node.name: node.queue for node in nodes},
        home=ref.home.queue,
        digest=record["digest"],
        retention_ms=exact(record["retention"]) if "retention" in record else None,
        deadline_ms=exact(record["deadline"]) if "deadline" in record else None,
        fail_fast="fail_fast" in record,
    )
    return Stored(flow, record.get("extensions", "0"))


def _read_all(ref: FlowRef) -> Op[tuple[dict[str, Row], dict[str, Work]]]:
    """The rows of a flow, dependencies before dependents, and what jobs say read with them."""
    if ref.path == "portable":
        return (yield from read_rows(ref)), {}
    rows: dict[str, Row] = {}
    works: dict[str, Work] = {}
    cursor = ""
    while cursor != "0":
        cursor, page = yield from ask(calls.works(ref.home, ref.flow_id, cursor or "0"))
        for name, (row, work) in page.items():
            rows[name] = row
            if work is not None:
                works[name] = work
    return dict(sorted(rows.items(), key=lambda item: item[1][0])), works


def _works(ref: FlowRef, rows: Mapping[str, Row]) -> Op[dict[str, Work]]:
    """What the job of each node says."""
    found: dict[str, Work] = {}
    for part in parts(list(rows.items()), PER_TRIP):
        asking = [calls.work(QueueKeys(ref.home.prefix, row[1]), row[2]) for _, row in part]
        for (name, _), work in zip(part, (yield from ask_all(asking)), strict=True):
            if work is None:
                now = yield from ask(calls.record(ref.home, ref.flow_id))
                raise_if_superseded(read_status(ref.home, ref.flow_id, now))  # then the sweep has removed it
                raise FlowExpired(
                    f"the job of node {name} of flow {ref.public_id} was removed, and with it what the node "
                    'does: submit the flow with on_existing="restart"'
                )
            found[name] = work
    return found


def _from_table(
    works: Mapping[str, Work], texts: Mapping[str, str]
) -> tuple[dict[str, Work], dict[str, dict[str, OnFailure]]]:
    """What the nodes of a portable flow do by their jobs and the table of policies; policies as below."""
    found, policies = dict(works), {}
    for name, text in texts.items():
        fields = json.loads(text)
        rule, on_failure = fields.get("rule", ""), fields.get("on_failure", "")
        timeout = fields.get("queue_timeout")
        found[name] = works[name]._replace(rule=rule, on_failure=on_failure, queue_timeout_ms=timeout)
        policies[name] = {one: OnFailure(word) for one, word in fields.get("policies", {}).items()}
    return found, policies


def _policies(
    ref: FlowRef, rows: Mapping[str, Row], works: Mapping[str, Work], after: Mapping[str, Sequence[str]]
) -> Op[dict[str, dict[str, OnFailure]]]:
    """What the failures of dependencies mean to those nodes that set that themselves."""
    found: dict[str, dict[str, OnFailure]] = {}
    own = [name for name, names in after.items() if works[name].rule and names]
    for part in parts(own, PER_TRIP):
        asking = []
        for name in part:
            refs = [f"{QueueKeys(ref.home.prefix, rows[one][1]).base}:{rows[one][2]}" for one in after[name]]
            asking.append(calls.edges(QueueKeys(ref.home.prefix, rows[name][1]), rows[name][2], refs))
        for name, texts in zip(part, (yield from ask_all(asking)), strict=True):
            policies = {one: text or works[name].edge for one, text in zip(after[name], texts, strict=True)}
            found[name] = {one: OnFailure(text) for one, text in policies.items() if text}
    return found


def _node(  # noqa: PLR0913, PLR0917  the parts of a node
    name: str,
    row: Row,
    work: Work,
    after: tuple[str, ...],
    dependents: Sequence[str],
    policies: Mapping[str, Mapping[str, OnFailure]],
) -> CheckedNode:
    data, options, attempts, delay_ms, priority, is_placed, rule, on_failure, _, timeout_ms, extension = work
    return CheckedNode(
        row[0], name, row[1], row[3], data, options, attempts, delay_ms, after, tuple(dependents), priority,
        is_placed, Rule(rule) if rule else None, OnFailure(on_failure) if on_failure else None,
        policies.get(name, {}), timeout_ms, extension,
    )  # fmt: skip
