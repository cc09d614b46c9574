"""Reruns nodes of a portable flow, and ends them manually. Each such change is a round.

A round is first noted, by a write that only the first client wins. Then its nodes are put behind its gate,
and it begins. Any client that advances the flow carries out the note, so a kill after the note loses nothing.
A kill before it leaves unused nodes in the table of notes, about 50 bytes each, until the flow is removed.

Slow clients are harmless. A round puts a job behind its gate only once, and no older round ends it. The
followers of a node are put there before the node itself: so once the node has lost its old end, none of them
is missing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Final, Literal
from uuid import uuid4

from glidemq_orchestrate.flows.definitions import needed_names
from glidemq_orchestrate.flows.dependencies import UPSTREAM
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.node_table import What
from glidemq_orchestrate.flows.owner import Owner
from glidemq_orchestrate.flows.portable import node_jobs, owners, records
from glidemq_orchestrate.flows.portable.node_jobs import Only, add_deps, gate, held_by, send_fenced
from glidemq_orchestrate.flows.portable.reading import record_of
from glidemq_orchestrate.flows.portable.records import Record
from glidemq_orchestrate.flows.portable.staging import relist
from glidemq_orchestrate.flows.portable.tables import (
    NOT_BEGUN,
    Node,
    forget_noted,
    forget_waiting,
    noted,
    parts_of_size,
    read_nodes,
    write_noted,
)
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, every_row, parts, send_all

GIVEN: Final = ("completed", "skipped", "failed")


def note(  # noqa: PLR0913  the parts of a note
    ref: FlowRef,
    record: Record,
    what: What | Literal["retry", "late"],
    clock: Clock,
    *,
    names: Collection[str] = (),
    request: str = "",
    text: str = "",
    owner: Owner | None = None,
) -> Op[bool]:
    """Note what the next round does; False if another round was noted first. ``begin`` carries it out.

    ``what``: see ``RequestedChange``, for these names; ``retry``: rerun what did not complete; ``late``: as
    ``follow``, but skipped followers stay: their end does not depend on what a Node worker reported late.
    """
    number, name = record.number + 1, uuid4().hex
    rows = {_row(name, node): "" for node in names} | {_row(name, ""): text}
    for part in parts_of_size(rows.items()):
        yield from ask(write_noted(ref.home, ref.flow_id, part))
    if owner is not None:
        yield from owners.own_round(ref, owner, number, clock)
    content = {"what": what, "nodes": name, "request": request, "goes_on": not record.end}
    enlisting = records.enlist(ref.home, ref.flow_id, clock.now_ms())
    noting = records.note(ref.home, ref.flow_id, number, content)
    # Before and after: the client that ended the last round may delist the flow in between.
    calls: list[Call[Any]] = [enlisting, records.expire_never(ref.home, ref.flow_id), noting, enlisting]
    _, _, is_first, _ = yield from ask_all(calls)
    if not is_first:
        yield from _forget(ref, list(rows))
    return bool(is_first)


def _row(note_name: str, node: str) -> str:
    return f"{note_name}\n{node}"


def begin(ref: FlowRef, record: Record, clock: Clock) -> Op[None]:
    """Carry out the note of the next round, and begin it. Idempotent, also concurrently.

    A node with a completely removed job cannot rerun: it stays failed.
    """
    number = record.number + 1
    rows = yield from _noted(ref, record.note["nodes"])
    names = {row.partition("\n")[2] for row in rows} - {""}
    turn = _NextRound(ref, number, record.note["request"], clock)
    what = record.note["what"]
    if what in GIVEN:
        yield from turn.give(names, what, rows.get(_row(record.note["nodes"], ""), ""))
    else:
        yield from turn.run_again(names, what)
    enlisting = records.enlist(ref.home, ref.flow_id, clock.now_ms())
    beginning = records.begin(ref.home, ref.flow_id, number, clock.now_ms())
    calls: list[Call[Any]] = [records.expire_never(ref.home, ref.flow_id), enlisting, beginning, enlisting]
    _, _, is_first, _ = yield from ask_all(calls)
    if is_first and record.end:
        yield from ask(records.announce(ref.home, ref.flow_id, "retried"))
    yield from relist(ref)
    yield from _forget(ref, list(rows))


def _noted(ref: FlowRef, name: str) -> Op[dict[str, str]]:
    """The rows of a note."""
    found = yield from every_row(partial(noted, ref.home, ref.flow_id))
    return {row: text for row, text in found.items() if row.startswith(_row(name, ""))}


def _forget(ref: FlowRef, rows: Sequence[str]) -> Op[None]:
    yield from send_all(forget_noted(ref.home, ref.flow_id, part) for part in parts(rows))


class _NextRound:
    """Moves nodes of a flow into a round that is noted but has not begun."""

    def __init__(self, ref: FlowRef, number: int, request: str, clock: Clock) -> None:
        self.ref, self.number, self.request, self.clock = ref, number, request, clock

    def run_again(self, names: Collection[str], what: str) -> Op[None]:
        """Put nodes behind the gate: these, or all that did not complete; some with their followers."""
        nodes = yield from read_nodes(self.ref)
        if what == "retry":
            retried = [node for node in nodes if _is_to_retry(node)]
            needed = needed_names(nodes, {node.name for node in retried})
            yield from self._reset([node for node in nodes if node.name in needed])
            yield from self._reset(retried)
            return
        chosen = [node for node in nodes if node.name in names]
        if what in {"follow", "late"}:
            affected = [node for node in nodes if what == "follow" or node.state != "skipped"]
            yield from self._reset(followers(affected, names))
        else:
            yield from self._hold_back(nodes, names)
        yield from self._reset(chosen, self.request)

    def _hold_back(self, nodes: Sequence[Node], names: Collection[str]) -> Op[None]:
        """Put open followers of these nodes that have no running handler behind the gate too."""
        following = {node.name for node in nodes if not set(node.after).isdisjoint(names)} - set(names)
        waiting = [n for n in nodes if n.name in following and n.state == "waiting-children"]
        yield from send_all(
            add_deps(node.queue, node.job_id, [gate(node.queue, self.number)]) for node in waiting
        )
        if waiting:  # some may have been released before the gate was added
            nodes = yield from read_nodes(self.ref)
        released = [n for n in nodes if n.name in following and n.state in (*NOT_BEGUN, "active")]
        yield from self._reset(released, only="idle")
        yield from self._reset((yield from self._interrupted([n for n in nodes if n.name in following])))

    def _interrupted(self, nodes: Sequence[Node]) -> Op[list[Node]]:
        """Nodes that failed only because a client without our functions was interrupted in ``_reset``."""
        failed = [n for n in nodes if n.state == "failed" and n.round < self.number]
        found: list[Node] = []
        for part in parts(failed):
            held = yield from ask_all([held_by(n.queue, n.job_id, [self.number]) for n in part])
            found += [node for node, some in zip(part, held, strict=True) if some]
        return found

    def give(self, names: Collection[str], how: str, text: str) -> Op[None]:
        """End nodes this way; followers of nodes that had already ended rerun."""
        while True:
            nodes = yield from read_nodes(self.ref)
            left = [node for node in nodes if node.name in names and node.state and node.round < self.number]
            if not left or (yield from self._has_begun()):
                break
            ended = {node.name for node in left if node.end}
            yield from self._reset([node for node in followers(nodes, ended) if node.name not in names])
            yield from self._reset([node for node in left if node.end], self.request)
            yield from self._reset([node for node in left if not node.end], self.request, only="open")
        todo: list[tuple[Call[int], Sequence[Call[Any]]]] = []
        for node in nodes:
            if node.name in names and node.state == "waiting-children" and node.round == self.number:
                place, now_ms = (node.queue, node.job_id), self.clock.now_ms()
                plain: Sequence[Call[Any]] = [node_jobs.fail(*place, text, now_ms)]
                if how != "failed":
                    plain = (node_jobs.give if how == "completed" else node_jobs.skip)(*place, text, now_ms)
                todo.append((node_jobs.end_node(*place, self.number, how, text, now_ms), plain))
        yield from send_fenced(todo)

    def _reset(self, nodes: Sequence[Node], request: str = "", *, only: Only = "any") -> Op[None]:
        """Put nodes behind the gate, unless they are or were there."""
        for part in parts(nodes):
            # Without our functions, nodes already begun in this round must not be reset.
            if (yield from self._has_begun()):
                return
            now_ms = self.clock.now_ms()
            yield from ask(forget_waiting(self.ref.home, self.ref.flow_id, [node.name for node in part]))
            todo: list[tuple[Call[int], Sequence[Call[Any]]]] = []
            for node in part:
                place = (node.queue, node.job_id)
                call = node_jobs.run_again(*place, self.number, now_ms, request=request, only=only)
                plain: Sequence[Call[Any]] = ()
                is_running = only == "idle" and node.state == "active"  # or it was only fetched: unknown here
                if node.state and node.round < self.number and not is_running:
                    plain = node_jobs.reset(*place, self.number, request)
                if plain and not node.end:
                    held = add_deps(*place, [gate(node.queue, self.number)])
                    taken = [node_jobs.revoke(*place, now_ms), node_jobs.fail(*place, "", now_ms)]
                    plain = [held, *taken, *plain]
                todo.append((call, plain))
            yield from send_fenced(todo)

    def _has_begun(self) -> Op[bool]:
        return (yield from record_of(self.ref)).number >= self.number


def _is_to_retry(node: Node) -> bool:
    """Whether it did not complete, except if it was skipped by its own rule."""
    was_skipped_for_others = node.state == "skipped" and node.reason.startswith(UPSTREAM)
    return node.state == "failed" or was_skipped_for_others


def followers(nodes: Sequence[Node], names: Collection[str]) -> list[Node]:
    """The nodes that depend on these, directly or not, without these themselves."""
    affected, found = set(names), []
    for node in nodes:  # dependencies come before dependents
        if not affected.isdisjoint(node.after):
            affected.add(node.name)
            found.append(node)
    return [node for node in found if node.name not in names]
