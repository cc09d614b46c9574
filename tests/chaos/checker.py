"""What must hold after a round: read from the ledger and from the server, against the model of the rules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from glidemq_orchestrate import FlowProducer, JobState, Queue
from glidemq_orchestrate.errors import FlowNotFound, JobNotFound
from glidemq_orchestrate.flows import FlowStatus, NodeStatus
from glidemq_orchestrate.testing.chaos import promises
from glidemq_orchestrate.testing.chaos.book import JobKey, job_of
from glidemq_orchestrate.testing.chaos.ledger import LedgerEntry
from tests.chaos.array_checks import Arrays
from tests.chaos.book import RoundBook, generation_of, place_of
from tests.chaos.bridged_flows import QUEUE as BRIDGED
from tests.chaos.bridged_runs import BridgedRuns
from tests.chaos.histories import Histories
from tests.chaos.in_process import value_of
from tests.chaos.model import Allowed, Excuses, ends
from tests.chaos.plan import BY_TWO, MENDED, RETRIED, FlowPlan, Plan, Step
from tests.chaos.spark_tables import Tables
from tests.chaos.written import Written
from tests.rule_oracle import EARLY, has_failed


def kept(old: FlowPlan, new: FlowPlan) -> set[str]:
    """The steps that may keep their results when a flow is mended, or runs from a node on."""
    again = old.again if old.action == "anew" else ""
    before, names = {step.name: step for step in old.steps}, set[str]()
    for step in new.steps:
        is_same = step.name in before and step.has_result_of(before[step.name]) and not step.grows
        if is_same and step.name != again and all(name in names for name in step.after):
            names.add(step.name)
    return names


class Checker:
    """Finds what does not hold.

    Args:
        url: The server.
        plan: What should have happened.
        entries: The whole ledger.
        may_lose: Servers may have lost what they acknowledged last: what is gone is counted in ``losses``, by
            what it was. Everything else must hold.
        keeps_leases: Servers keep who holds a job. After a failover a job may belong to the attempt before,
            and then that one's result is accepted.
    """

    def __init__(
        self,
        url: str,
        plan: Plan,
        entries: Sequence[LedgerEntry],
        *,
        may_lose: bool = False,
        keeps_leases: bool = True,
    ) -> None:
        self._url, self._plan, self._book = url, plan, RoundBook(entries)
        self._may_lose, self._keeps_leases = may_lose, keeps_leases
        self.nodes = 0
        self.losses: Counter[str] = Counter()
        self._written, self._tables = Written(self._book), Tables(self._book)
        keeps_all = keeps_leases and not may_lose
        self._bridged = BridgedRuns(self._book, entries, keeps_all=keeps_all)
        self._arrays = Arrays(self._book, self._lost, keeps_leases=keeps_leases)
        self._histories = Histories(self._book, entries, keeps_all=keeps_all)

    def violations(self) -> Iterator[str]:
        """Everything that is wrong, in sentences."""
        yield from promises.attempted_once(self._book)
        for slot, jobs in self._book.slots.items():
            if len(jobs) > 1:
                text = f"slot {slot} of the schedule was fired {len(jobs)} times: {sorted(jobs)}"
                yield from self._lost("slots of the schedule", text)
        with FlowProducer(self._url) as flows:
            for planned in self._plan.flows:
                yield from (
                    f"{planned.flow_id} ({planned.action}): {problem}"
                    for problem in self._flow(flows, planned)
                )
        yield from self._bridged.violations(self._plan)
        for text in self._tables.lost():
            yield from self._lost("tables", text)
        for name in self._plan.all_queues:
            with Queue(name, self._url) as queue:
                yield from self._plain(queue, name)
                yield from self._counted(queue, name)
                for what, text in self._written.lost(queue, name):
                    yield from self._lost(what, text)
                if name == BRIDGED:
                    yield from self._bridged.progress(queue)
                yield from self._histories.wrong(queue, name)

    def _lost(self, what: str, text: str, count: int = 1) -> Iterator[str]:
        """Something that was acknowledged is gone: a violation, unless servers may lose."""
        if self._may_lose:
            self.losses[what] += count
        else:
            yield text

    # --- flows ---

    def _flow(self, flows: FlowProducer, planned: FlowPlan) -> Iterator[str]:
        try:
            flow = flows.get(planned.flow_id)
            status, nodes = flow.status(), flow.nodes()
            results: dict[str, Any] = dict(flow.results())
        except FlowNotFound:
            if planned.flow_id in self._book.submitted - self._book.forgotten:
                yield from self._lost("flows", "was accepted and is lost")
            return
        self.nodes += len(nodes)
        if not status.state.is_terminal:
            open_ones = {node.name: str(node.state) for node in nodes if not node.state.is_terminal}
            yield f"has not ended: {status.state}, open: {open_ones}"
            return
        found = {node.name: node for node in nodes}
        before, is_mended = planned, MENDED in found
        if is_mended:
            planned = planned.after_mending()
        states = {name: str(node.state) for name, node in found.items()}
        counts = Counter(states.values())
        if (status.completed, status.failed, status.skipped, status.total) != (
            counts["completed"], counts["failed"], counts["skipped"], len(nodes)
        ):  # fmt: skip
            yield f"counts do not add up: {status} for {counts}"
        yield from self._states(
            planned, status, found, self._excuses(planned, found), before if is_mended else None
        )
        waited = self._book.waited.get(planned.flow_id)
        if planned.action == "none" and waited not in (None, str(status.state)):
            yield from self._lost("ends of flows", f"ended as {waited}, and is {status.state} now")
        for name, node in found.items():
            yield from (f"{name}: {problem}" for problem in self._node(planned, node, found, results))
            if run := (results.get(name) or {}).get("run"):
                yield from self._from_last(place_of(node), run)
        yield from self._arrays.wrong(flow, planned, found)
        self._histories.note(planned, found.values())
        self._written.note(planned, found.values(), results)
        self._tables.note(planned, found.values(), results)
        if planned.action in BY_TWO:
            yield from self._generations(before, status.generation, found, results)

    def _excuses(self, planned: FlowPlan, found: Mapping[str, NodeStatus]) -> Excuses:
        """The nodes that may end otherwise than planned."""
        jobs, steps = {name: place_of(node) for name, node in found.items()}, planned.all_steps
        return {
            "struck": {
                name for name, job in jobs.items() if name in steps and self._is_struck(job, steps[name])
            },
            "unfenced": {name: self._book.unfenced.ends(job) for name, job in jobs.items()},
            "by_hand": self._by_hand(planned),
        }

    def _is_struck(self, job: JobKey, step: Step) -> bool:
        """Whether a job, or any element of it, may have used up its attempts because of killed processes."""
        indexes = range(step.array.size) if step.array else ()
        jobs = [job, *((job[0], f"{job[1]}[{index}]") for index in indexes)]
        return any(self._book.is_struck(one, step.attempts) for one in jobs)

    def _by_hand(self, planned: FlowPlan) -> dict[str, bool]:
        """The nodes that were skipped by hand, and whether that is certain."""
        steered = self._book.steered.get(planned.flow_id)
        if planned.action != "skip" or (steered and steered["state"] == "refused"):
            return {}
        is_certain = steered is not None and not self._may_lose and not self._book.emptied
        return dict.fromkeys(planned.by_hand, is_certain)

    def _states(
        self,
        planned: FlowPlan,
        status: FlowStatus,
        found: Mapping[str, NodeStatus],
        excuses: Excuses,
        unmended: FlowPlan | None,
    ) -> Iterator[str]:
        state, states = str(status.state), {name: str(node.state) for name, node in found.items()}
        expected, present = self._present(planned, states), set(states)
        if missing := expected - present:
            if missing & {step.name for step in planned.steps}:
                yield f"nodes are missing: {sorted(missing)}"
            else:
                yield from self._lost("added nodes", f"nodes are missing: {sorted(missing)}", len(missing))
        if extra := present - set(planned.all_steps):
            yield f"has nodes that nobody added: {sorted(extra)}"
        steps = {name: step for name, step in planned.all_steps.items() if name in present}
        bad = {
            name: f"{name} is {states[name]} ({found[name].reason!r}), allowed: {sorted(allowed)}"
            for name, allowed in self._allowed(planned, steps, state, excuses, unmended).items()
            if states[name] not in allowed
        }
        before = ends(steps.values(), **excuses)
        if planned.action == "retry" and all(states[name] in before[name] for name in bad):
            yield from self._lost("retries", "; ".join(bad.values())) if bad else ()
        else:
            yield from bad.values()
        if state == "cancelled":
            if planned.action not in ("cancel", "orphan"):
                yield "is cancelled, and nobody did that"
        elif (state == "failed") != has_failed(steps, states) and not planned.fail_fast:
            yield f"is {state} with the ends {Counter(states.values())}"

    def _present(self, planned: FlowPlan, states: Mapping[str, str]) -> set[str]:
        """The nodes that there must be."""
        names = {step.name for step in planned.steps}
        for step in planned.steps:
            if step.grows and states.get(step.name) == "completed":
                names |= {more.name for more in step.grows}
        steered = self._book.steered.get(planned.flow_id)
        if planned.action == "extend" and steered and steered["state"] != "refused":
            names |= {step.name for step in planned.added}
        return names

    def _allowed(
        self,
        planned: FlowPlan,
        steps: Mapping[str, Step],
        state: str,
        excuses: Excuses,
        unmended: FlowPlan | None,
    ) -> Allowed:
        before = None
        if unmended is not None:
            old, same = ends(unmended.steps), kept(unmended, planned)
            before = {name: old[name] | {"skipped"} for name in same}  # that it was kept is not certain
        allowed = ends(steps.values(), before=before, **excuses)
        if planned.action in RETRIED and planned.flow_id in self._book.steered:
            counts = [allowed[name] for name, step in steps.items() if step.on_failure != "ignore"]
            again = ends(steps.values(), before=allowed, **excuses)
            if planned.action == "retry" and {"failed"} in counts:
                allowed = again
            elif planned.action == "orphan" or any("failed" in ends_of for ends_of in counts):
                allowed = {name: allowed[name] | again[name] for name in steps}
        if state == "cancelled" or planned.fail_fast:
            allowed = {name: found | {"failed"} for name, found in allowed.items()}
        return allowed

    def _node(
        self, planned: FlowPlan, node: NodeStatus, found: Mapping[str, NodeStatus], results: Mapping[str, Any]
    ) -> Iterator[str]:
        yield from self._accepted(place_of(node), runs=1 + (planned.action in ("rerun", "skip")))
        if node.state is not JobState.COMPLETED or planned.all_steps[node.name].array is not None:
            return
        result = results.get(node.name)
        begin = self._book.begins.get(result["run"]) if result else None
        if result is None or begin is None:
            yield f"completed with {result!r}, which no run has written"
            return
        given = begin["inputs"]
        value = value_of(node.name, {name: self._book.ends.get(run) for name, run in given.items()})
        if result["value"] != value:
            yield "has a wrong result"
        yield from self._given(planned, node, found, results, begin)
        if node.queue == BRIDGED:
            yield from self._bridged.of_node(node, result, begin)

    def _accepted(self, job: JobKey, *, runs: int = 1) -> Iterator[str]:
        """The end of a job is accepted once in each of its runs, and once more each time that all is lost."""
        accepted = () if job in self._book.unfenced else self._book.completed(job)
        for text in promises.accepted_once(accepted, runs + len(self._book.emptied)):
            yield from self._lost("results", text)

    def _generations(
        self, planned: FlowPlan, number: int, found: Mapping[str, NodeStatus], results: Mapping[str, Any]
    ) -> Iterator[str]:
        """A generation begins once, whoever asks for it how often, and has what may be carried over."""
        steered = planned.flow_id in self._book.steered and not self._book.emptied
        is_changed = MENDED in found or not planned.mended
        if number > 1:
            yield f"has generation {number}, and one was asked for"
        elif steered and (number == 0 or not is_changed):
            yield from self._lost("generations", f"generation 1 was begun, and {number} is there")
        if number and (MENDED in found or planned.action == "anew"):
            new = planned if planned.action == "anew" else planned.after_mending()
            yield from self._carried(planned, new, results)
        yield from self._of_older_generations(planned, found)

    def _carried(self, old: FlowPlan, new: FlowPlan, results: Mapping[str, Any]) -> Iterator[str]:
        """A result is carried over where nothing that shapes it has changed; then it has to be."""
        carried: set[str] = set()
        same = kept(old, new)
        for step in new.steps:
            is_same = step.name in same and all(name in carried for name in step.after)
            place = (step.queue, f"{old.flow_id}~{step.name}")
            result = results.get(step.name) or {}
            if step.array is not None:
                if is_same and result and "run" not in result:  # array_checks.py knows of its elements
                    carried.add(step.name)
            elif self._book.begins.get(result.get("run", ""), {}).get("job") == place[1]:
                carried.add(step.name)
                if not is_same:
                    yield f"{step.name} shows the result of generation 0, and does not do the same"
            elif is_same and old.waits and self._was_accepted(place):
                yield from self._lost("results", f"{step.name} had completed, and ran again")

    def _was_accepted(self, job: JobKey) -> bool:
        """Whether a result was accepted for good."""
        is_certain = not self._book.emptied and job not in self._book.unfenced
        return is_certain and any(self._book.completed(job))

    def _of_older_generations(self, planned: FlowPlan, found: Mapping[str, NodeStatus]) -> Iterator[str]:
        """The same for the jobs that the flow no longer has, as it was restarted."""
        current = {place_of(node) for node in found.values()}
        for job in self._book.accepted.keys() - current:
            is_current = (job[0], job[1].rpartition("[")[0]) in current  # an element of an array
            if generation_of(job[1])[0] == planned.flow_id and not is_current:
                yield from (f"{job[1]}: {problem}" for problem in self._accepted(job))

    def _given(
        self,
        planned: FlowPlan,
        node: NodeStatus,
        found: Mapping[str, NodeStatus],
        results: Mapping[str, Any],
        begin: LedgerEntry,
    ) -> Iterator[str]:
        """Whether a run got the accepted results, and began after them."""
        if place_of(node) in self._book.unfenced:  # it may have begun before it was ready
            return
        accepted = {
            name: self._book.results_of(place_of(found[name]), (results.get(name) or {}).get("run"))
            for name in begin["inputs"]
        }
        awaited = self._awaited(planned, planned.all_steps[node.name], found) - set(begin["inputs"])
        if planned.action in RETRIED:  # some were retried after this had run
            ended = {name: self._book.ends[results[name]["run"]]["at"] for name in awaited}
            awaited = {name for name in awaited if ended[name] <= begin["at"]}
        yield from promises.given_accepted(self._book, begin, begin["inputs"], accepted, awaited)

    def _from_last(self, job: JobKey, run: str) -> Iterator[str]:
        if self._keeps_leases and not self._book.emptied and job not in self._book.unfenced:
            yield from promises.accepted_from_last(self._book, run)

    def _awaited(self, planned: FlowPlan, step: Step, found: Mapping[str, NodeStatus]) -> set[str]:
        """The dependencies whose results a node must have had."""
        if step.rule in EARLY:
            return set()
        return {
            name
            for name in step.after
            if found[name].state is JobState.COMPLETED
            and planned.all_steps[name].array is None
            and place_of(found[name]) not in self._book.unfenced
        }

    # --- plain jobs ---

    def _plain(self, queue: Queue, name: str) -> Iterator[str]:
        mine = [job_id for where, job_id in self._book.added if where == name]
        planned = {one.job_id: one for one in self._plan.plain}
        ordered = []
        for job_id in dict.fromkeys(mine):
            try:
                job = queue.get_job(job_id)
            except JobNotFound:
                if job_id in self._book.forgotten:
                    continue
                yield from self._lost("jobs", f"job {job_id} was accepted and is lost")
                continue
            place, attempts = (name, job_id), planned[job_id].attempts
            if job.state is JobState.FAILED and self._book.is_struck(place, attempts):
                continue
            if job.state is not JobState.COMPLETED:
                yield f"job {job_id} is {job.state}: {job.failed_reason}"
                continue
            yield from (f"job {job_id}: {text}" for text in self._accepted(place))
            run = str(job.result["run"]) if isinstance(job.result, dict) else None
            if run is None or run not in self._book.ends:
                yield f"job {job_id} has the result {job.result!r}, which no run has written"
                continue
            yield from (f"job {job_id}: {text}" for text in self._from_last(place, run))
            if key := planned[job_id].key:
                ordered.append((key, self._book.begins[run]["at"], self._book.ends[run]["at"], job_id))
        since = self._unordered(name)
        yield from _overlaps(run for run in ordered if run[1] < since.get(run[0], run[1] + 1))

    def _unordered(self, queue: str) -> dict[str, int]:
        """The ordering keys of a queue that do not hold any more, and since when: see ``unfenced.py``."""
        keys = {one.job_id: one.key for one in self._plan.plain}
        since: dict[str, int] = {}
        for (where, job_id), at in self._book.unfenced.items():
            flow_id, node = generation_of(job_id)
            flow = self._plan.by_id.get(flow_id)
            step = node.partition("[")[0]  # an element of an array, which counts as a job
            key = flow.all_steps[step].ordering if flow else keys.get(job_id)
            if where == queue and key:
                since[key] = min(at, since.get(key, at))
        return since

    def _counted(self, queue: Queue, name: str) -> Iterator[str]:
        """Whether the metrics count more ends than there were: an end was accepted twice."""
        counted = sum(point.count for point in queue.metrics(JobState.COMPLETED))
        ended = sum(
            job_of(entry)[0] == name and entry["error"] in ("", "Skip") and not _IN_SLICE.search(entry["run"])
            for entry in self._book.ends.values()
        )
        if counted > ended:
            yield f"queue {name} counts {counted} completed jobs, and {ended} runs have ended well"


_IN_SLICE: Final = re.compile(r"\{\d+\}\[\d+\]\Z")
"""The end of the run of an element that is no job: metrics do not count it."""


def _overlaps(runs: Iterable[tuple[str, int, int, str]]) -> Iterator[str]:
    """The jobs that ran at the same time as another of their ordering key; key, begin, end and id of each."""
    last: dict[str, tuple[int, str]] = {}
    for key, begin, end, job_id in sorted(runs):
        before, other = last.get(key, (0, ""))
        if begin < before:
            yield f"jobs {other} and {job_id} of the ordering key {key} ran at the same time"
        last[key] = max((end, job_id), last.get(key, (0, "")))
