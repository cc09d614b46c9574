"""Failed jobs by group: counted, retried and removed together.

A group is derived from what failed jobs already store, so it also covers those of Node workers. Only a group
that a handler named itself is stored, in a field of its job (``docs/decisions/failures.md``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from typing import Final

from glidemq_orchestrate.errors import FlowExpired, FlowNotFound, ProtocolError, Superseded
from glidemq_orchestrate.flows.backend import backend_of, ref_of
from glidemq_orchestrate.flows.generation import FlowRef, first_generation
from glidemq_orchestrate.flows.home import home_of
from glidemq_orchestrate.flows.status import NodeStatus
from glidemq_orchestrate.foundation.values import whole
from glidemq_orchestrate.jobs import job_hash, pages
from glidemq_orchestrate.jobs.job import JobId
from glidemq_orchestrate.jobs.job_hash import JobField
from glidemq_orchestrate.jobs.options import RunOptions
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.queues import listing, removal
from glidemq_orchestrate.wire.call import Op, ask, ask_all, parts
from glidemq_orchestrate.wire.codec import readable
from glidemq_orchestrate.wire.keys import QueueKeys, read_generation
from glidemq_orchestrate.wire.stored import moment

SAMPLES: Final = 3
SAMPLE_CHARACTERS: Final = 500
FLOW_COST: Final = 100  # a flow counts as at least this many jobs
MAX_GROUP: Final = 256
QUEUE_TIMEOUT: Final = "queue timeout"
"""The group of nodes that no worker began in time: each reason names the job, the limit and a worker."""
NO_REASON: Final = "no reason"
CONSEQUENCES: Final = ("upstream failed: ", "upstream skipped: ")
_OF_ARRAY: Final = re.compile(r"\d+ of \d+ elements failed; element \d+: (?=\S)")
_CLASS: Final = re.compile(r"[A-Za-z_$][\w$.]*(?=: |:?$)")
_FIELDS: Final[tuple[JobField, ...]] = (
    "state", "failedReason", "finishedOn", "gmo:failure_group", "gmo:flow", "gmo:node", "opts",
)  # fmt: skip
_NAMED: Final[tuple[JobField, ...]] = ("finishedOn", "gmo:failure_group")


@dataclass(frozen=True, slots=True)
class FailureSample:
    """One failed job of a group; ``flow_id`` and ``node`` are None outside a flow. Long reasons are cut."""

    job_id: JobId
    queue: str
    reason: str
    failed_at: datetime | None
    flow_id: str | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failed jobs with the same cause, as far as it shows.

    Attributes:
        group: What the handler said (``ctx.fail(group=)``); otherwise the class of its exception, or the
            first line of the reason.
        count: The number of failed jobs. Nodes that only failed because of another one are not included.
        first_at: When the first of them failed.
        last_at: When the last of them failed.
        samples: The last ones with different reasons, at most three, newest first.
        nodes: How many of them are nodes of flows.
        held_back: How many other nodes of their flows did not run because of them.
    """

    group: str
    count: int
    first_at: datetime | None
    last_at: datetime | None
    samples: Sequence[FailureSample]
    nodes: int = 0
    held_back: int = 0


class FailureGroups(list[FailureGroup]):
    """The groups, largest first.

    Attributes:
        is_partial: Reading stopped at its limit, so there may be more failures.
        held_back_is_partial: Not all of their flows were read, so they may hold back more nodes.
    """

    is_partial = False
    held_back_is_partial = False


def group_of(reason: str, named: str = "", finished: str = "") -> str:
    """The group of a failure.

    Args:
        reason: The stored reason.
        named: The field ``gmo:failure_group``: the time of the failure for which it was written, the group.
        finished: When the job failed, as stored.
    """
    at, _, group = named.partition(" ")
    if group and at == finished:
        return readable(group)
    line = next((text for part in readable(reason).splitlines() if (text := part.strip())), NO_REASON)
    line = line[found.end() :] if (found := _OF_ARRAY.match(line)) else line
    if line.startswith(f"{QUEUE_TIMEOUT}: "):
        return QUEUE_TIMEOUT
    found = _CLASS.match(line)
    return (found[0] if found else line)[:MAX_GROUP]


@dataclass(frozen=True, slots=True)
class _Failure:
    """A failed job with its group, and the stored id of its flow, if any."""

    group: str
    sample: FailureSample
    flow: str = ""


@dataclass(slots=True)
class _Tally:
    """The failures of one group, added newest first."""

    count: int = 0
    nodes: int = 0
    held_back: int = 0
    first_at: datetime | None = None
    last_at: datetime | None = None
    samples: dict[str, FailureSample] = field(default_factory=dict)

    def add(self, sample: FailureSample) -> None:
        self.count += 1
        self.nodes += sample.flow_id is not None
        self.first_at = sample.failed_at or self.first_at
        self.last_at = self.last_at or sample.failed_at
        if len(self.samples) < SAMPLES:
            self.samples.setdefault(sample.reason, sample)


class _Tallies(dict[str, _Tally]):
    """The tally of each group."""

    def add(self, failure: _Failure) -> None:
        self.setdefault(failure.group, _Tally()).add(failure.sample)

    def hold_back(self, nodes: Sequence[NodeStatus], group_by_node: Mapping[str, str]) -> None:
        """Count the nodes of a flow that its failed nodes held back."""
        for cause in causes(nodes).values():
            if cause in group_by_node:
                self[group_by_node[cause]].held_back += 1

    def groups(self) -> FailureGroups:
        """The groups, largest first."""
        found = [
            FailureGroup(
                name,
                tally.count,
                tally.first_at,
                tally.last_at,
                tuple(tally.samples.values()),
                tally.nodes,
                tally.held_back,
            )
            for name, tally in self.items()
        ]
        return FailureGroups(sorted(found, key=lambda one: (-one.count, one.group)))


def causes(nodes: Sequence[NodeStatus]) -> dict[str, str]:
    """The failed node that held each of these nodes back, by name, for those that one did."""
    by_name = {node.name: node for node in nodes}
    found: dict[str, str] = {}
    for node in nodes:
        at, passed = node, {node.name}
        while (before := by_name.get(cause_of(at))) is not None and before.name not in passed:
            at = before
            passed.add(at.name)
        if at is not node and at.state is JobState.FAILED:
            found[node.name] = at.name
    return found


def cause_of(node: NodeStatus) -> str:
    """The node because of which it did not run; '' if it ran, or failed for a reason of its own."""
    if node.state not in (JobState.FAILED, JobState.SKIPPED):
        return ""
    return next(
        (node.reason.removeprefix(start) for start in CONSEQUENCES if node.reason.startswith(start)), ""
    )


def queue_failures(queue: QueueKeys, max_examined: int | None) -> Op[FailureGroups]:
    """The groups of the failed jobs of a queue; reads the newest jobs first."""
    listing.check_bounds(0, max_examined)
    tallies, seen, flows = _Tallies(), set[str](), dict[str, dict[str, str]]()
    at: int | None = 0
    looked, is_partial, is_cut = 0, False, False
    while at is not None and not is_partial:
        ids, at = yield from listing.sorted_step(queue, "failed", at, newest_first=True)
        for one in (yield from _read(queue, [job_id for job_id in ids if job_id not in seen])):
            tallies.add(one)
            if one.flow and one.sample.node:
                flows.setdefault(one.flow, {})[one.sample.node] = one.group
        seen.update(ids)
        looked += max(len(ids), listing.EMPTY_PAGE)
        is_partial = at is not None and max_examined is not None and looked >= max_examined
    for flow, group_by_node in flows.items():
        if max_examined is not None and looked >= max_examined:
            is_cut = True
            break
        nodes = yield from _failed(queue.prefix, flow)
        tallies.hold_back(nodes, group_by_node)
        looked += max(len(nodes), FLOW_COST)
    found = tallies.groups()
    found.is_partial, found.held_back_is_partial = is_partial, is_partial or is_cut
    return found


def merged_groups(every: Sequence[FailureGroups]) -> FailureGroups:
    """The groups of several queues as those of one."""
    by_name: dict[str, list[FailureGroup]] = {}
    for one in chain.from_iterable(every):
        by_name.setdefault(one.group, []).append(one)
    found = FailureGroups(map(_merged, by_name.values()))
    found.sort(key=lambda one: (-one.count, one.group))
    found.is_partial = any(groups.is_partial for groups in every)
    found.held_back_is_partial = any(groups.held_back_is_partial for groups in every)
    return found


def _merged(same: Sequence[FailureGroup]) -> FailureGroup:
    oldest, every = datetime.min.replace(tzinfo=UTC), chain.from_iterable(one.samples for one in same)
    samples = sorted(every, key=lambda one: one.failed_at or oldest, reverse=True)
    different = {sample.reason: sample for sample in reversed(samples)}
    return FailureGroup(
        same[0].group,
        sum(one.count for one in same),
        min((one.first_at for one in same if one.first_at), default=None),
        max((one.last_at for one in same if one.last_at), default=None),
        tuple([sample for sample in samples if different[sample.reason] is sample][:SAMPLES]),
        sum(one.nodes for one in same),
        sum(one.held_back for one in same),
    )


def _failed(prefix: str, flow: str) -> Op[list[NodeStatus]]:
    """The failed nodes of a flow, and those that they held back; none if it was superseded or removed."""
    home = yield from ask(home_of(prefix, read_generation(flow)[0]))
    found = (yield from ask(first_generation(home, flow))) if home else None
    if home is None or found is None:
        return []
    ref = ref_of(home, found)
    with suppress(FlowNotFound, FlowExpired, Superseded):
        return (yield from backend_of(ref).failed(ref))
    return []


def _read(queue: QueueKeys, job_ids: Sequence[str]) -> Op[list[_Failure]]:
    """The failed jobs among these, without nodes that only failed because of another one."""
    rows = yield from listing.each(pages.heads(queue, job_ids, _FIELDS))
    return [
        one
        for job_id, row in zip(job_ids, rows, strict=True)
        if not isinstance(row, ProtocolError) and (one := _failure(queue, job_id, row)) is not None
    ]


def _failure(queue: QueueKeys, job_id: str, row: Sequence[str | None]) -> _Failure | None:
    state, reason, finished, named, flow, node, options = (value or "" for value in row)
    if not flow:
        flow, node = portable_node(options)
    if state != JobState.FAILED or (flow and reason.startswith(CONSEQUENCES)):
        return None
    flow_id = read_generation(flow)[0] if flow else None
    text = _sample_text(readable(reason))
    sample = FailureSample(JobId(job_id), queue.queue, text, moment(finished), flow_id, node or None)
    return _Failure(group_of(reason, named, finished), sample, flow)


def portable_node(options: str) -> tuple[str, str]:
    """From its options, the stored id of the flow and the name of a node on the portable path; else ''."""
    return ('"gmo"' in options and RunOptions.from_wire(options).portable) or ("", "")


def _sample_text(reason: str) -> str:
    return reason if len(reason) <= SAMPLE_CHARACTERS else reason[: SAMPLE_CHARACTERS - 1] + "…"


def retry_group(queue: QueueKeys, group: str, limit: int, now_ms: int) -> Op[int]:
    """Rerun the failed jobs of a group that are no nodes, oldest first; returns how many."""
    whole("limit", limit, 1)
    end, left = yield from removal.failed_by_now(queue)
    count = kept = 0
    while left > 0 and count < limit:
        ids = yield from ask(removal.ended_before(queue, "failed", end, kept, min(left, removal.SLICE)))
        if not ids:
            break
        jobs = [one for one in (yield from _read(queue, ids)) if one.group == group and not one.flow]
        some, passed = _first(ids, jobs, limit - count)
        words, stay = yield from removal.retry_some(queue, some, ids[:passed], end, now_ms)
        count, kept, left = count + words.count("retried"), kept + stay, left - passed
    return count


def remove_group(queue: QueueKeys, group: str, limit: int, now_ms: int) -> Op[list[JobId]]:
    """Delete the failed jobs of a group, oldest first; returns their ids."""
    whole("limit", limit, 1)
    removed, kept = list[JobId](), 0
    while len(removed) < limit:
        ids = yield from _slice(queue, kept, removal.SLICE)
        if not ids:
            break
        jobs = [one for one in (yield from _read(queue, ids)) if one.group == group]
        some, passed = _first(ids, jobs, limit - len(removed))
        pairs = [(job_id, "") for job_id in some]
        words = (yield from removal.remove_some(queue, pairs, "cleaned", now_ms)) if pairs else []
        removed += [
            JobId(job_id) for job_id, word in zip(some, words, strict=True) if word in removal.DELETED
        ]
        kept += passed - sum(word not in removal.KEPT for word in words)
    return removed


def _slice(queue: QueueKeys, first: int, count: int) -> Op[list[str]]:
    return ask(pages.sorted_ids(queue.key("failed"), first, count, newest_first=False))


def _first(ids: Sequence[str], jobs: Sequence[_Failure], limit: int) -> tuple[list[JobId], int]:
    """The first of these jobs, and how many ids of their slice they end."""
    some = [one.sample.job_id for one in jobs[:limit]]
    return some, ids.index(some[-1]) + 1 if len(jobs) > limit else len(ids)


def flow_failures(ref: FlowRef) -> Op[FailureGroups]:
    """The groups of the failed nodes of a flow."""
    nodes = yield from backend_of(ref).failed(ref)
    failures = yield from _read_nodes(ref, nodes)
    tallies = _Tallies()
    for one in reversed(failures):
        tallies.add(one)
    tallies.hold_back(nodes, {one.sample.node or "": one.group for one in failures})
    return tallies.groups()


def failed_nodes(ref: FlowRef, group: str, limit: int) -> Op[list[str]]:
    """The names of the nodes of a flow that failed in a group, oldest first."""
    whole("limit", limit, 1)
    failures = yield from _read_nodes(ref, (yield from backend_of(ref).failed(ref)))
    return [one.sample.node or "" for one in failures if one.group == group][:limit]


def _read_nodes(ref: FlowRef, nodes: Sequence[NodeStatus]) -> Op[list[_Failure]]:
    """The failed nodes among these, oldest first, without those that only failed because of another one."""
    failed = [node for node in nodes if node.state is JobState.FAILED and not cause_of(node)]
    found: list[_Failure] = []
    for part in parts(failed):
        calls = [
            job_hash.get_some(QueueKeys(ref.home.prefix, node.queue), node.job_id, _NAMED, list)
            for node in part
        ]
        for node, (finished, named) in zip(part, (yield from ask_all(calls)), strict=True):
            text = _sample_text(node.reason)
            sample = FailureSample(
                JobId(node.job_id), node.queue, text, node.finished_at, ref.public_id, node.name
            )
            group = group_of(node.reason, named or "", finished or "")
            found.append(_Failure(group, sample, ref.flow_id))
    return sorted(found, key=lambda one: one.sample.failed_at.timestamp() if one.sample.failed_at else 0)
