"""Arrays in histories: which nodes are arrays, how a worker runs a slice, what must hold of their elements.

An element counts as a job of the book, ``<job id of the array>[<position>]``. The server ends the node
itself, with the last element; what it says of the end is compared with the accepted ends of the elements.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Final

from glidemq_orchestrate import ArrayNode, FlowNode
from glidemq_orchestrate.attempts.exchange import KEPT, Kind, Outcome
from glidemq_orchestrate.flows.elements import Array, read_results
from glidemq_orchestrate.jobs.attempt import Attempt, Slice
from glidemq_orchestrate.testing.chaos import promises
from glidemq_orchestrate.testing.chaos.book import JobKey
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.worker.slices import line_of, read_items
from tests.properties.simulation.choices import Choices
from tests.properties.simulation.plan import Plan

SIZES: Final = [1, 2, 3, 7]
PREFIX: Final = "glide"
EPOCH: Final = 13
ADDED: Final = "added"
"""The item of an element that the first one adds."""
_OF_JOB: Final = 3
_ENDS: Final = {"d": "completed", "s": "skipped", "f": "failed"}


def draw_arrays(choices: Choices, plan: Plan) -> Plan:
    """The same plan; in some, nodes are arrays. Those have no limits, and users change elements, no nodes."""
    has_changes = any(" " in what for _, what in plan.steps)
    if plan.path == "portable" or has_changes or plan.spec.queue_timeout or not choices.chance(0.35):
        return plan
    nodes = [_perhaps_array(choices, node) for node in plan.spec.nodes]
    has_limits = plan.spec.deadline is not None or any(node.queue_timeout for node in nodes)
    steps = sorted([*plan.steps, *_draw_changes(choices, nodes, has_limits=has_limits)])
    return replace(plan, spec=replace(plan.spec, nodes=nodes), steps=tuple(steps))


def _draw_changes(choices: Choices, nodes: Sequence[FlowNode], *, has_limits: bool) -> list[tuple[int, str]]:
    """What users do with single elements."""
    arrays = [node for node in nodes if isinstance(node, ArrayNode)]
    if not arrays or has_limits or not choices.chance(0.4):
        return []
    changes = list[tuple[int, str]]()
    for _ in range(choices.between(1, 3)):
        array = choices.pick(arrays)
        element = f"{array.name}[{choices.between(0, len(array.over) - 1)}]"
        what = choices.pick(["completed", "skipped", "failed", "follow", "follow"])
        changes.append((choices.between(0, 4_000), f"{what} {element}"))
    return changes


def _perhaps_array(choices: Choices, node: FlowNode) -> FlowNode:
    assert isinstance(node.data, dict)
    if node.data["grows"] or not choices.chance(0.5):
        return node
    size = choices.between(1, 7)
    data = node.data | {"ms": min(int(str(node.data["ms"])), 400)}  # a slice takes as long as a node
    is_range = choices.chance(0.5)
    data["adds"] = 0 if is_range else choices.pick([0, 0, 1, 3])
    options = replace(node.options, lifo=False, ordering=None, timeout=None)
    return ArrayNode(
        node.name,
        queue=node.queue,
        job=node.job,
        data=data,
        after=node.after,
        options=options,
        rule=node.rule,
        on_failure=node.on_failure,
        over=range(0, 10 * size, 10) if is_range else [10 * index for index in range(size)],
        max_running=choices.pick([None, None, 1, 2]),
        as_jobs=choices.chance(0.4),
    )


def fails(data: Mapping[str, Any], index: int) -> bool:
    """Whether an element is the one that fails in an array that does."""
    return data["end"] == "failed" and index == 0


def run_slice(worker: Any, attempt: Attempt, part: Slice) -> Op[Outcome]:
    """Run the elements of a slice, or the first of them; returns its outcome.

    One may take long: then those before it are reported, and no other follows.
    """
    lines: list[str] = []
    data, kept = json.loads(attempt.data), 0
    for index, item, tried in zip(part.indexes, read_items(part), part.tried, strict=True):
        if len(part.indexes) > 1 and worker.early.chance(0.3):
            yield from worker.report_early(attempt, [*lines, KEPT], part.indexes[0] + 1)
            lines, kept = [], index + 1
        if item not in (10 * index, ADDED):
            worker.ledger.problems.append(f"element {index} of {part.array_id} got the item {item}")
        element = copy(attempt)
        element.job_id, element.attempts_made, element.element = f"{part.array_id}[{index}]", tried, index
        own = data if data["end"] != "failed" or fails(data, index) else {**data, "end": "completed"}
        outcome = yield from worker.run_user_code(element, own, run_of(attempt.token, attempt.job_id, index))
        lines.append(line_of(outcome))
        if outcome.kind is Kind.DONE and index == 0:
            lines += [f"a{json.dumps(ADDED)}"] * data["adds"]
        if kept or worker.scheduler.choices.chance(0.1):  # others can run the rest
            break
    return Outcome(attempt, Kind.ELEMENTS, "\n".join(lines), first=kept)


def run_element(worker: Any, attempt: Attempt, data: Mapping[str, Any]) -> Op[Outcome]:
    """Run an element that is a job; returns its outcome."""
    index = attempt.element or 0
    if data["item"] not in (10 * index, ADDED):
        worker.ledger.problems.append(f"element {index} of {attempt.array_id} got the item {data['item']}")
    element = copy(attempt)
    element.job_id = f"{attempt.array_id}[{index}]"
    own = data if data["end"] != "failed" or fails(data, index) else {**data, "end": "completed"}
    run = run_of(attempt.token, attempt.job_id, index)
    outcome: Outcome = (yield from worker.run_user_code(element, own, run))._replace(attempt=attempt)
    if outcome.kind is not Kind.DONE or index or not data["adds"]:
        return outcome
    lines = [line_of(outcome), *[f"a{json.dumps(ADDED)}"] * data["adds"]]
    return Outcome(attempt, Kind.ELEMENTS, "\n".join(lines))


def run_of(token: str, slice_id: str, index: int) -> str:
    """The run of an element: that of its slice, with its position."""
    return f"{token}:{slice_id}[{index}]"


def as_run(name: str, result: Any) -> str:
    """What a dependent gets of a node: the run of its attempt, or the counts of an array."""
    return result if isinstance(result, str) else f"{name} {json.dumps(result, sort_keys=True)}"


@dataclass(slots=True)
class Elements:
    """What the server has accepted of the elements of arrays.

    Attributes:
        ledger: That of the whole history.
        slices: The elements of each slice that was leased; after an early report the one that was kept.
        ended: How the elements of each array have ended, by the id of its job.
        added: How many elements those of an array have added to it.
        by_hand: The runs of elements that users have changed meanwhile.
        touched: The arrays of which the current call has ended slices.
        changed: The arrays of which users have changed elements, until they have ended.
        settled: In which of its runs an array has ended last.
    """

    ledger: Any
    slices: dict[str, Slice] = field(default_factory=dict)
    ended: dict[str, dict[int, str]] = field(default_factory=dict)
    added: Counter[str] = field(default_factory=Counter)
    by_hand: set[str] = field(default_factory=set)
    touched: set[JobKey] = field(default_factory=set)
    changed: set[JobKey] = field(default_factory=set)
    settled: dict[str, str] = field(default_factory=dict)

    def began(self, queue: str, row: Sequence[Any], token: str, now: int) -> None:
        """A slice was leased, or an element that is a job started: each of the elements begins."""
        ledger, completed = self.ledger, set[str]()
        is_job = len(row[-1]) == _OF_JOB
        part = Slice(row[-1][0], [int(row[-1][1])], [0]) if is_job else Slice.from_row(row[0], row[-1])
        slice_id, epoch = row[0], int(row[EPOCH])
        self.slices[slice_id] = part
        ledger.alive[f"{token}:{slice_id}"] = now
        if is_current := ledger.is_current(slice_id):
            name = ledger.name_of(slice_id)
            ledger.first.setdefault((ledger.round, name), now)
            completed = ledger.check_order(ledger.nodes[name])
        for index in part.indexes:
            job, run = (queue, f"{part.array_id}[{index}]"), run_of(token, slice_id, index)
            if is_current:
                self._check_repeat(job, part.array_id, index)
            ledger.write("begin", job, run=run, epoch=epoch, completed=completed)
            ledger.open[job] = run
            ledger.problems += promises.attempted_once(ledger.book, [job])

    def _check_repeat(self, job: JobKey, array_id: str, index: int) -> None:
        """No element is taken over before the lease of its slice ends; one that has ended well stays so."""
        ledger, before = self.ledger, self.ledger.open.get(job)
        if before is not None and ledger.book.begins[before]["round"] == ledger.round:
            ago = ledger.latest - ledger.alive[before.rpartition("[")[0]]
            if ago < ledger.lock_ms:
                ledger.problems.append(
                    f"{job[1]}: taken over {ago} ms after the last sign of life of {before}"
                )
        end = self.ended.get(array_id, {}).pop(index, None)
        if end is None:
            return
        last = ledger.book.accepted[job][-1]
        if end != "failed" or last["round"] == ledger.round:
            ledger.problems.append(f"{job[1]}: runs again in round {ledger.round} after {last}")

    def judged(self, queue: str, outcome: Sequence[Any], verdict: str) -> None:
        """The outcome of a slice was accepted; elements without a line are given back, except one."""
        kind, slice_id, _, token, _, text, _, first, _ = outcome
        ledger, part = self.ledger, self.slices[slice_id]
        found = [line for line in text.split("\n") if not line.startswith("a")]
        if found[-1] == KEPT:
            if part.indexes[0] >= int(first):
                return  # a repeat
            part = self._keep(slice_id, part, len(found) - 1)
            found.pop()
        elif kind == "elements" and int(first) not in (0, part.indexes[0] + 1):
            ledger.problems.append(f"{slice_id}: the end of {int(first) - 1} was accepted for {part.indexes}")
        same = {"fail": "f", "done": f"d{text}", "skip": f"s{text}"}.get(kind)
        lines = found if kind == "elements" else [same] * len(part.indexes) if same else []
        verdicts = verdict.split("\n") if "\n" in verdict else [verdict] * len(lines)
        unrun = [""] * (len(part.indexes) - len(lines))
        for index, line, one in zip(part.indexes, [*lines, *unrun], [*verdicts, *unrun], strict=True):
            job, run = (queue, f"{part.array_id}[{index}]"), run_of(token, slice_id, index)
            if run in self.by_hand:
                if line and one != "ended":
                    ledger.problems.append(f"{job[1]}: {line} was answered {one}, but it was ended by hand")
                continue
            if ledger.open.pop(job, None) is None:
                ledger.problems.append(
                    f"{job[1]}: {line} was accepted, but no attempt runs: it was ended before"
                )
            ledger.problems += promises.accepted_from_last(ledger.book, run)
            if one not in ("ok", "failed") or line[:1] not in _ENDS or not ledger.is_current(slice_id):
                continue
            end = self.ended.setdefault(part.array_id, {})[index] = _ENDS[line[:1]]
            ledger.accept_job(job, end, run, line[1:])
            if end == "completed" and index == 0:
                self.added[part.array_id] += sum(line.startswith("a") for line in text.split("\n"))
        self.touched.add((queue, part.array_id))

    def _keep(self, slice_id: str, part: Slice, at: int) -> Slice:
        """One element stays in its slice; returns the others."""
        self.slices[slice_id] = replace(part, indexes=part.indexes[at : at + 1])
        return replace(part, indexes=[*part.indexes[:at], *part.indexes[at + 1 :]])

    def given(self, name: str, what: str, indexes: Sequence[int], text: str) -> None:
        """A user has ended elements of an array, or they run again; it may have ended before."""
        ledger, (queue, array_id) = self.ledger, self.ledger.job_of(name)
        ended = self.ended.setdefault(array_id, {})
        for index in indexes:
            job = queue, f"{array_id}[{index}]"
            if (run := ledger.open.pop(job, None)) is not None:
                self.by_hand.add(run)
            ended.pop(index, None)
            if what not in ("alone", "follow"):
                ended[index] = what
                ledger.accept_job(job, what, json.loads(text) if what == "completed" else job[1], text)
        self.changed.add((queue, array_id))

    def have_all_ended(self, name: str) -> bool:
        """Whether an array has ended, perhaps before the last call."""
        queue, array_id = self.ledger.job_of(name)
        number = self.ledger.client.hget(QueueKeys(PREFIX, queue).job(array_id), "gmo:round") or ""
        return self.settled.get(array_id, "") != number or self.ledger.end_of(name) is not None

    def forget(self, array_ids: Sequence[str]) -> None:
        """All elements of these arrays run again, as they follow another node that does."""
        for array_id in array_ids:
            self.ended.pop(array_id, None)

    def settle(self) -> None:
        """The call is over: note which arrays it has ended, and hold their ends against those of elements."""
        for queue, array_id in self.touched | self.changed:
            name, key = self.ledger.name_of(array_id), QueueKeys(PREFIX, queue).job(array_id)
            if not self.ledger.is_current(array_id) or not (end := self.ledger.end_of(name)):
                continue
            number = self.ledger.client.hget(key, "gmo:round") or ""
            if (queue, array_id) in self.touched or self.settled.get(array_id) != number:
                self.settled[array_id] = number
                self._settled(name, end, key, array_id)
                self.changed.discard((queue, array_id))
        self.touched.clear()

    def _settled(self, name: str, end: str, key: str, array_id: str) -> None:
        ledger, ended = self.ledger, self.ended.get(array_id, {})
        counts = Counter(ended.values())
        fields = ("returnvalue", "failedReason", "gmo:skipped")
        result, reason, skipped = ledger.client.hmget(key, *fields)
        if end != "completed" and (reason or skipped).startswith(("cancelled: ", "upstream ")):
            return
        size = len(ledger.nodes[name].over) + self.added[array_id]
        wanted = {"elements": size} | {kind: counts[kind] for kind in ("completed", "failed", "skipped")}
        text = reason if end == "failed" else skipped if end == "skipped" else ""
        should = "failed" if counts["failed"] else "skipped" if counts["skipped"] == size else "completed"
        if counts.total() != size or end != should:
            ledger.problems.append(f"{name} is {end}, but of its {size} elements were accepted {ended}")
        elif end == "completed" and json.loads(result) != wanted:
            ledger.problems.append(f"{name} has the result {result}, not {wanted}")
        elif end == "failed" and not text.startswith(
            f"{counts['failed']} of {size} elements failed; element "
        ):
            ledger.problems.append(f"{name} failed for {text!r}, but was accepted {ended}")
        ledger.accept(name, end, as_run(name, json.loads(result)) if end == "completed" else name, text)

    def result_problems(self, array: Array, name: str) -> Op[list[str]]:
        """What is wrong with the results of a completed array."""
        job, found = self.ledger.job_of(name), (yield from read_results(array, 0, None))
        accepted = {
            index: self.ledger.book.accepted[job[0], f"{job[1]}[{index}]"][-1]["run"]
            for index, end in self.ended.get(job[1], {}).items()
            if end == "completed"
        }
        return [] if found == accepted else [f"the results of {name} are {found}, not {accepted}"]
