"""Reads the specification of a flow back from its tables and jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from glidemq_orchestrate.errors import FlowExpired, FlowIncomplete, FlowNotFound
from glidemq_orchestrate.flows import definitions as calls
from glidemq_orchestrate.flows.backend import backend_of, read_status
from glidemq_orchestrate.flows.checked import CheckedFlow, CheckedNode
from glidemq_orchestrate.flows.compare import is_of_spec
from glidemq_orchestrate.flows.definitions import Manner
from glidemq_orchestrate.flows.dependencies import OnFailure, Rule
from glidemq_orchestrate.flows.generation import FlowRef, record_fields
from glidemq_orchestrate.flows.node_table import Row
from glidemq_orchestrate.flows.status import raise_if_superseded
from glidemq_orchestrate.flows.trips import parts
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.wire.call import Op, ask, ask_all
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import exact, parsed_object

PER_TRIP: Final = 50  # each with up to 1 MiB of data


class StoredFlow(NamedTuple):
    """A stored flow. ``extensions``: how often it had been extended when it was read."""

    flow: CheckedFlow
    extensions: str


def read_flow(ref: FlowRef, clock: Clock) -> Op[StoredFlow]:
    """The nodes as submitted, and those of extensions; not those that nodes added.

    Raises:
        FlowNotFound: The flow no longer exists.
        Superseded: Another generation has begun.
        FlowExpired: Some or all of its jobs no longer exist.
        FlowIncomplete: It was cancelled before its submission was complete.
    """
    backend = backend_of(ref)
    while True:
        record = yield from _living(ref)
        stored = yield from backend.stored(ref, record)
        if stored is not None:
            break
        if backend.is_carried or read_status(ref.home, ref.flow_id, record).state.is_terminal:
            raise FlowIncomplete(
                f"flow {ref.public_id} was cancelled while it was submitted. Fix: submit it again"
            )
        yield from backend.advance(ref, clock)  # added nodes may still be joining the flow
    rows, data, manners, texts = stored
    yield from _read_missing(ref, rows, data, manners)
    own = {} if texts is None else _from_table(manners, texts)
    stay = [name for name, row in rows.items() if is_of_spec(row) or manners[name].extension]
    dependents: dict[str, list[str]] = {name: [] for name in stay}
    after = {name: tuple([one for one in rows[name][4:] if one in dependents]) for name in stay}
    for name, names in after.items():
        for one in names:
            dependents[one].append(name)
    policies = own or (yield from _policies(ref, rows, manners, after))
    nodes = [
        _node(name, rows[name], data[name], manners[name], after[name], dependents[name], policies)
        for name in stay
    ]
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
    return StoredFlow(flow, record.get("extensions", "0"))


def _living(ref: FlowRef) -> Op[dict[str, str]]:
    """The fields of the record of a flow that still has its jobs."""
    record = yield from ask(record_fields(ref.home, ref.flow_id))
    if "digest" not in record:
        raise FlowNotFound(f"no flow {ref.public_id} in queue {ref.home.queue}")
    raise_if_superseded(read_status(ref.home, ref.flow_id, record))
    if "expired_at" in record:
        raise FlowExpired(f"the jobs of flow {ref.public_id} were removed after its retention")
    return record


def _read_missing(
    ref: FlowRef, rows: Mapping[str, Row], data: dict[str, str], manners: dict[str, Manner]
) -> Op[None]:
    """Add the definitions of the remaining nodes from their jobs."""
    for part in parts([(name, row) for name, row in rows.items() if name not in data], PER_TRIP):
        asking = [calls.work(QueueKeys(ref.home.prefix, row[1]), row[2]) for _, row in part]
        for (name, _), work in zip(part, (yield from ask_all(asking)), strict=True):
            if work is None:
                now = yield from ask(record_fields(ref.home, ref.flow_id))
                # If superseded, the sweep has removed the job.
                raise_if_superseded(read_status(ref.home, ref.flow_id, now))
                raise FlowExpired(
                    f"the job of node {name} of flow {ref.public_id} was removed with its definition. "
                    'Fix: submit the flow with on_existing="restart"'
                )
            data[name], manners[name] = work


def _from_table(manners: dict[str, Manner], texts: Mapping[str, str]) -> dict[str, dict[str, OnFailure]]:
    """Complete the manners of nodes from the policies of the table; returns policies like ``_policies``."""
    policies = {}
    for name, text in texts.items():
        fields = json.loads(text)
        rule, on_failure = fields.get("rule", ""), fields.get("on_failure", "")
        timeout = fields.get("queue_timeout")
        manners[name] = manners[name]._replace(rule=rule, on_failure=on_failure, queue_timeout_ms=timeout)
        policies[name] = {one: OnFailure(word) for one, word in fields.get("policies", {}).items()}
    return policies


def _policies(
    ref: FlowRef, rows: Mapping[str, Row], manners: Mapping[str, Manner], after: Mapping[str, Sequence[str]]
) -> Op[dict[str, dict[str, OnFailure]]]:
    """The failure policies for single dependencies, by node."""
    found: dict[str, dict[str, OnFailure]] = {}
    own = [name for name, names in after.items() if manners[name].rule and names]
    for part in parts(own, PER_TRIP):
        asking = []
        for name in part:
            refs = [f"{QueueKeys(ref.home.prefix, rows[one][1]).base}:{rows[one][2]}" for one in after[name]]
            asking.append(calls.edges(QueueKeys(ref.home.prefix, rows[name][1]), rows[name][2], refs))
        for name, texts in zip(part, (yield from ask_all(asking)), strict=True):
            policies = {one: text or manners[name].edge for one, text in zip(after[name], texts, strict=True)}
            found[name] = {one: OnFailure(text) for one, text in policies.items() if text}
    return found


def _node(  # noqa: PLR0913, PLR0917  the parts of a node
    name: str,
    row: Row,
    data: str,
    manner: Manner,
    after: tuple[str, ...],
    dependents: Sequence[str],
    policies: Mapping[str, Mapping[str, OnFailure]],
) -> CheckedNode:
    options, attempts, delay_ms, priority, is_placed, rule, on_failure, _, timeout_ms, extension = manner
    return CheckedNode(
        row[0], name, row[1], row[3], data, options, attempts, delay_ms, after, tuple(dependents), priority,
        is_placed, Rule(rule) if rule else None, OnFailure(on_failure) if on_failure else None,
        policies.get(name, {}), timeout_ms, extension,
    )  # fmt: skip
