"""Stages and removes portable flows: all jobs are created blocked, then one write starts them.

An interrupted submission is continued by the next one of an equal flow, or aborted by the sweep; two
concurrent ones help each other. One field decides, and only its first write counts: ``begin:0`` means that
the flow has begun, or that it was aborted. A client that finds it begun stages nothing more; one that finds
it aborted removes the remains and starts over.

A generation is submitted in the same way under its own id, and is not yet current when it has begun:
``succession`` decides that. Nodes carried over from the previous generation are created as completed, with a
copy of the result, so the previous generation is no longer needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final
from uuid import uuid4

from glidemq_orchestrate.errors import (
    FlowConflict,
    FlowIncomplete,
    GenerationTaken,
    GlideMQError,
    Superseded,
    TransportError,
)
from glidemq_orchestrate.flows.checked import CheckedFlow, CheckedNode, policy_text
from glidemq_orchestrate.flows.generation import TOMBSTONE, Before, FlowRef, current_generation
from glidemq_orchestrate.flows.home import (
    confirm_claim,
    drop_claim_after,
    keep_claim,
    leave_homes,
    release_id,
    take_id,
)
from glidemq_orchestrate.flows.node_table import write_table
from glidemq_orchestrate.flows.portable import node_jobs, owners, records
from glidemq_orchestrate.flows.portable.node_jobs import add_dependents, add_deps, gate
from glidemq_orchestrate.flows.portable.records import Record
from glidemq_orchestrate.flows.portable.tables import drop_tables, parts_of_size, read_nodes, write_policies
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import milliseconds
from glidemq_orchestrate.jobs.tags import tag_new_jobs
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, parts, send_all
from glidemq_orchestrate.wire.keys import QueueKeys, node_job_id, read_generation

MAX_STAGINGS: Final = 5
MAX_RELISTINGS: Final = 5
MEMBERS: Final = 500
RESULTS: Final = 20  # each up to 1 MiB


def stage(ref: FlowRef, flow: CheckedFlow, clock: Clock, before: Before | None = None) -> Op[None]:
    """Write a flow node by node and begin it; a flow that has begun is not changed. Idempotent.

    ``before``: the generation that it may supersede, see ``succession``.

    Raises:
        FlowConflict: Another flow has the id, or a job of a node exists outside it. Nothing is left behind.
        FlowIncomplete: Other clients repeatedly aborted the submission. Safe to repeat.
        Superseded, GenerationTaken: Another generation has begun. Nothing is left behind.
    """
    for _ in range(MAX_STAGINGS):
        yield from _begin_record(ref, flow, clock.now_ms())
        current = yield from ask(current_generation(ref.home, ref.flow_id))
        if current is not None and _is_before(ref, current.stored_as):
            raise (yield from _too_late(ref))
        found = yield from ask(records.record(ref.home, ref.flow_id))
        if "digest" not in found.fields:  # a sweep has removed it as abandoned
            yield from take_id(ref.home, ref.flow_id)
            continue
        if found.fields["digest"] != flow.digest:
            raise FlowConflict(f"flow id {ref.public_id} belongs to another flow")
        if found.number >= 0:
            return
        if not found.is_dropped and (yield from _stage_all(ref, flow, before, clock)):
            if before is None:
                yield from relist(ref)
            return
        yield from remove(ref)
        yield from take_id(ref.home, ref.flow_id)
    raise FlowIncomplete(f"flow {ref.public_id} was aborted by other clients while it was being submitted")


def _is_before(ref: FlowRef, current: str) -> bool:
    """Whether a generation is not and cannot become the current one."""
    return current != ref.flow_id and ref.generation <= read_generation(current)[1]


def _too_late(ref: FlowRef) -> Op[GlideMQError]:
    """Make sure that a late generation does not begin; returns the error for it.

    The record of an older generation stays for the history.
    """
    if ref.generation and (yield from ask(records.noted_generation(ref.home, ref.flow_id))) != ref.flow_id:
        yield from lose(ref)
        return GenerationTaken(f"another generation of flow {ref.public_id} began")
    by = ref.generation + 1
    yield from ask(records.write_once(ref.home, ref.flow_id, "superseded", by))
    yield from ask(records.drop(ref.home, ref.flow_id, uuid4().hex))
    return Superseded(
        f"generation {ref.generation} of flow {ref.public_id} was superseded by generation {by}"
    )


def lose(ref: FlowRef) -> Op[None]:
    """Remove a generation that has lost its number to another one. Idempotent."""
    yield from ask(records.lose(ref.home, ref.flow_id, uuid4().hex))
    yield from remove(ref)


def _begin_record(ref: FlowRef, flow: CheckedFlow, now_ms: int) -> Op[None]:
    """Write the record of a flow unless it exists. Lists it first, so that the sweep finds it after a kill.

    The path comes before the digest: a client that finds a digest reads the path.
    """
    begun: dict[str, str | int] = {"path": records.PATH, "heard_at": now_ms}
    calls: list[Call[Any]] = [
        records.enlist(ref.home, ref.flow_id, now_ms),
        records.write(ref.home, ref.flow_id, begun),
        records.write_once(ref.home, ref.flow_id, "digest", flow.digest),
    ]
    if flow.request:
        calls.append(records.write_once(ref.home, ref.flow_id, "request", flow.request))
    yield from ask_all(calls)


def _stage_all(ref: FlowRef, flow: CheckedFlow, before: Before | None, clock: Clock) -> Op[bool]:
    """Stage the flow and begin it, or abort it on an error; False if another client aborted it."""
    try:
        return (yield from _stage_and_begin(ref, flow, before, clock))
    except TransportError:
        raise
    except GlideMQError:
        yield from discard(ref)
        raise


def _stage_and_begin(ref: FlowRef, flow: CheckedFlow, before: Before | None, clock: Clock) -> Op[bool]:
    home, flow_id, now_ms = ref.home, ref.flow_id, clock.now_ms()
    yield from ask(records.write_once(home, flow_id, "created_at", now_ms))
    yield from ask(records.write(home, flow_id, _header(ref, flow, before)))
    yield from _write_tables(ref, flow, clock)
    part: Sequence[CheckedNode] = ()
    for more in parts(flow.nodes[::-1]):  # dependents first, so that no dependency exists without them
        if word := (yield from _heartbeat(ref, clock)):
            yield from _drop_orphans(ref, part)
            return word == records.RUN
        part = more
        yield from _add_nodes(ref, flow, part, clock, now_ms)
        yield from _carry_over(ref, flow, part)
    # Everything above was accepted: now the flow may begin.
    yield from confirm_claim(home, flow_id)
    if flow.owner is not None:
        yield from owners.own_round(ref, flow.owner, 0, clock)
    is_first = yield from ask(records.begin(home, flow_id, 0, clock.now_ms()))
    word = yield from ask(records.began(home, flow_id))
    if word == records.GONE:
        yield from ask(records.drop_record(home, flow_id))
    if not is_first:
        yield from _drop_orphans(ref, part)
    return word == records.RUN


def _drop_orphans(ref: FlowRef, nodes: Sequence[CheckedNode]) -> Op[None]:
    """Drop the jobs of these nodes if the flow was removed after its retention.

    In the meantime another client submitted it, and it ran and ended: jobs added since then are orphans. The
    claim on its id, which was just made permanent, ends with its tombstone.
    """
    if (yield from ask(records.record(ref.home, ref.flow_id))).is_expired:
        yield from ask(drop_claim_after(ref.home.prefix, ref.flow_id, milliseconds(TOMBSTONE)))
        if not (yield from ask(records.record(ref.home, ref.flow_id))).is_expired:  # it was begun again
            yield from ask(keep_claim(ref.home.prefix, ref.flow_id))
        names = ((QueueKeys(ref.home.prefix, node.queue), node.name) for node in nodes)
        yield from drop_own(ref, [(queue, node_job_id(ref.flow_id, name)) for queue, name in names])


def drop_own(ref: FlowRef, places: Sequence[tuple[QueueKeys, str]]) -> Op[None]:
    """Drop those of these jobs that were created for the flow. Idempotent."""
    owners = yield from ask_all([node_jobs.owner(*place) for place in places])
    ours = [place for place, owner in zip(places, owners, strict=True) if owner == ref.flow_id]
    yield from send_all(call for place in ours for call in node_jobs.drop_job(*place))


def _heartbeat(ref: FlowRef, clock: Clock) -> Op[str]:
    """Record that the submission continues; returns the decision if there is one, else ''."""
    calls: list[Call[Any]] = [
        records.began(ref.home, ref.flow_id),
        records.write(ref.home, ref.flow_id, {"heard_at": clock.now_ms()}),
    ]
    return str((yield from ask_all(calls))[0])


def _header(ref: FlowRef, flow: CheckedFlow, before: Before | None) -> dict[str, str | int]:
    """The fields that all clients submitting this flow write identically."""
    fields: dict[str, str | int] = {
        "path": records.PATH,  # again: a sweep may have removed the record just before its digest was written
        "id": ref.flow_id,
        "name": flow.name,
        "total": len(flow.nodes),
        "home": ref.home.queue,
        "labels": json.dumps(dict(flow.labels)),
    }
    limits = {"deadline": flow.deadline_ms, "retention": flow.retention_ms}
    fields |= {name: value for name, value in limits.items() if value is not None}
    if flow.fail_fast:
        fields["fail_fast"] = 1
    if before is not None:
        fields |= {"after": before.stored_as, "how": before.how}
    return fields


def _write_tables(ref: FlowRef, flow: CheckedFlow, clock: Clock) -> Op[None]:
    """Write the row of every node, and the policies of nodes that have any.

    Lists the flow each time: if another client submitted it, and it has been removed since, the sweep removes
    these tables too.
    """
    enlisting = records.enlist(ref.home, ref.flow_id, clock.now_ms())
    for rows in _rows(ref, flow.nodes):
        yield from ask_all([rows, enlisting])
    texts = ((node.name, text) for node in flow.nodes if (text := policy_text(node)))
    for part in parts_of_size(texts):
        yield from ask_all([write_policies(ref.home, ref.flow_id, part), enlisting])


def _rows(ref: FlowRef, nodes: Sequence[CheckedNode]) -> Iterator[Call[None]]:
    """Write the rows of these nodes."""
    rows = ((node.name, _row(ref.flow_id, node)) for node in nodes)
    return (write_table(ref.home, ref.flow_id, part) for part in parts_of_size(rows))


def _row(flow_id: str, node: CheckedNode) -> str:
    row = [node.rank, node.queue, node_job_id(flow_id, node.name), node.job, *node.after]
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False)


def _add_nodes(
    ref: FlowRef, flow: CheckedFlow, nodes: Sequence[CheckedNode], clock: Clock, now_ms: int
) -> Op[None]:
    """Create the jobs of these nodes and link them, in both directions.

    Their rows are written again in the same trip: if the flow was removed since the last one, and this client
    is killed now, the sweep would not find the jobs without their rows.

    Raises:
        FlowConflict: A job with the id of one of them exists outside the flow.
    """

    def place(name: str) -> tuple[QueueKeys, str]:
        return QueueKeys(ref.home.prefix, flow.queue_of[name]), node_job_id(ref.flow_id, name)

    def members(names: Sequence[str]) -> Iterator[list[str]]:
        for part in parts(names, MEMBERS):
            places = (place(name) for name in part)
            yield [f"{queue.base}:{job_id}" for queue, job_id in places]

    adding: list[Call[Any]] = []
    linking: list[Call[None]] = []
    for node in nodes:
        queue, job_id = place(node.name)
        first, *rest = members(node.after) if node.after else [[]]
        deps = [*first, gate(queue, 0)] if not first or policy_text(node) else first
        adding.append(
            node_jobs.add_node(
                queue, job_id, node, flow_id=ref.flow_id, deps=deps, now_ms=now_ms, trace=flow.trace
            )
        )
        linking += [add_deps(queue, job_id, more) for more in rest]
        if len(node.dependents) <= node_jobs.MAX_NOTIFIED:
            linking += [add_dependents(queue, job_id, some) for some in members(node.dependents)]
    finding = [*_rows(ref, nodes), records.enlist(ref.home, ref.flow_id, clock.now_ms())]
    added: list[bool] = (yield from ask_all([*adding, *finding]))[: len(adding)]
    taken = [place(node.name) for node, is_new in zip(nodes, added, strict=True) if not is_new]
    owners = yield from ask_all([node_jobs.owner(*one) for one in taken])
    for (_, job_id), flow_id in zip(taken, owners, strict=True):
        if flow_id != ref.flow_id:
            raise FlowConflict(f"job {job_id} already exists outside this flow")
    yield from send_all(linking)
    for node in nodes:
        if tags := node_jobs.tags_of(node):
            queue, job_id = place(node.name)
            yield from tag_new_jobs(queue, [(job_id, tags)], now_ms)


def _carry_over(ref: FlowRef, flow: CheckedFlow, nodes: Sequence[CheckedNode]) -> Op[None]:
    """Complete the jobs of carried-over nodes with copies of their results. Idempotent.

    Raises:
        GenerationTaken: A job of the previous generation has been removed.
    """
    for part in parts([node for node in nodes if node.name in flow.carried], RESULTS):
        queues = [QueueKeys(ref.home.prefix, node.queue) for node in part]
        reading = [
            node_jobs.end_of(queue, flow.carried[node.name]) for queue, node in zip(queues, part, strict=True)
        ]
        writing: list[Call[None]] = []
        for queue, node, end in zip(queues, part, (yield from ask_all(reading)), strict=True):
            if end is None:
                raise GenerationTaken(f"node {node.name} of flow {ref.public_id} was removed in the meantime")
            writing += node_jobs.complete(queue, node_job_id(ref.flow_id, node.name), end)
        yield from ask_all(writing)


def discard(ref: FlowRef) -> Op[bool]:
    """Abort and remove a flow that has not begun; returns False if it has. Idempotent."""
    yield from ask(records.drop(ref.home, ref.flow_id, uuid4().hex))
    return (yield from remove(ref))


def remove(ref: FlowRef) -> Op[bool]:
    """Remove an aborted flow: its own jobs, then the record, then the claim. Idempotent.

    The record of a generation that was superseded while it was submitted stays for the history.
    """
    token = yield from ask(records.began(ref.home, ref.flow_id))
    if token in ("", records.RUN, records.GONE):
        return False
    found = yield from ask(records.record(ref.home, ref.flow_id))
    for part in parts((yield from read_nodes(ref))):
        # Another client may have removed it, and a third one submitted it again.
        if (yield from ask(records.began(ref.home, ref.flow_id))) != token:
            return False
        yield from drop_own(ref, [(node.queue, node.job_id) for node in part if node.state])
    if (yield from ask(records.began(ref.home, ref.flow_id))) != token:
        return False
    yield from forget(ref, found)
    if found.is_superseded:
        return True
    yield from ask(records.drop_record(ref.home, ref.flow_id))
    yield from release_id(ref.home, ref.flow_id)
    return True


def forget(ref: FlowRef, record: Record) -> Op[None]:
    """Delist a flow everywhere and delete its tables. Idempotent."""
    yield from ask(drop_tables(ref.home, ref.flow_id))
    delisting = records.unindex(ref.home, ref.flow_id, labels_of(record))
    yield from ask_all([*delisting, records.expire_never(ref.home, ref.flow_id)])
    yield from leave_homes(ref.home)


def relist(ref: FlowRef) -> Op[None]:
    """List a flow under its state, and again if that changes in the meantime. Idempotent.

    A client that is killed in between may leave it listed under an older state. So it also lists the flow for
    the sweep, which repeats all of this once the flow has ended. It does so both before and after, as the
    sweep may run in between.
    """
    own = None
    for _ in range(MAX_RELISTINGS):
        record = yield from ask(records.record(ref.home, ref.flow_id))
        if record.number < 0 or record.is_expired:
            return
        listed, at = listed_as(record), str(record.fields.get("created_at", 0))
        # The client that listed an older state removes that, even if another one has listed this state since.
        if listed == (own or record.fields.get("listed")):
            return
        own = listed
        listing = records.index(ref.home, ref.flow_id, labels_of(record), record.state, at)
        enlisting = records.enlist(ref.home, ref.flow_id, int(at))
        yield from ask_all([enlisting, *listing, enlisting])
        yield from ask(records.write(ref.home, ref.flow_id, {"listed": listed, "state": record.state}))


def listed_as(record: Record) -> str:
    """What the record notes once the flow is listed under its state."""
    return f"{record.state} {record.number}"


def labels_of(record: Record) -> dict[str, str]:
    """The labels of a flow."""
    labels: dict[str, str] = json.loads(record.fields.get("labels", "{}"))
    return labels
