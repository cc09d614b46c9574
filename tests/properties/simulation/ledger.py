"""What the server has accepted, begun and taken back, as its replies show it: lost replies too.

The ledger stands beside the server, not beside a client, so it knows what happened whatever became of those
who asked. Attempts and accepted ends are entries of a book, as in rounds of chaos, and held against the same
promises as soon as they happen. It raises no error: it collects what breaks a promise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from glidemq_orchestrate import FlowNode
from glidemq_orchestrate.testing.chaos import promises
from glidemq_orchestrate.testing.chaos.book import Book, JobKey, job_of
from glidemq_orchestrate.testing.chaos.ledger import LedgerEntry
from glidemq_orchestrate.wire.call import Call
from glidemq_orchestrate.wire.keys import QueueKeys, flow_home, node_job_id
from tests.properties.simulation.arrays import EPOCH, Elements, as_run
from tests.rule_oracle import may_begin

FLOW: Final = "f"
PREFIX: Final = "glide"
_WORDS: Final = 9
_FIRST: Final = 12
_AHEAD: Final = 15
_MEETS_DEADLINES: Final = ("gmo_expire_due", "gmo_finish_and_fetch")
ENDS: Final = {"done": "completed", "fail": "failed", "skip": "skipped"}
_ENDED: Final = ("completed", "failed")
VANISHED: Final = "its owner user is gone: "


@dataclass(slots=True)
class ServerLedger:
    """What the server said.

    Attributes:
        client: Reads the server between two calls.
        home: The queue of the record: chosen by the submission, among those that workers serve then.
        nodes: The nodes of the flow by name, with those that others add.
        lock_ms: How long a lease lasts without a heartbeat.
        problems: The promises that were broken.
        book: The attempts, and the accepted ends of nodes, each with its round.
        open: The run of each job of which the server has accepted nothing yet: the one that began last.
        alive: When an attempt was last heard of, in ms, by run.
        round: How often the flow has been run again.
        started: When each round began, in ms.
        first: When the first attempt of a node began, in ms, by round and node.
        was_cancelled: Somebody has cancelled it, or a failure has.
        latest: The latest time by which jobs were taken back from silent workers.
        postponed: The jobs whose handlers have asked to run later.
        stored: The id under which the current generation is stored.
        retried: How often the events say that it runs again without a new generation.
        changes: What users have done with nodes, by request; each begins a round.
        notes: What rounds of a portable flow will do: what, the text, and the nodes.
        lease_ms: How long the lease of the owner lasts; 0 without one.
        heard: When the owner was last heard of, in ms.
        elements: What was accepted of the elements of arrays.
        staged: When generations of the portable path began that may not be current yet, in ms, by that id.
    """

    client: Any
    home: QueueKeys
    nodes: dict[str, FlowNode]
    lock_ms: int
    problems: list[str] = field(default_factory=list)
    book: Book = field(default_factory=Book)
    open: dict[JobKey, str] = field(default_factory=dict)
    alive: dict[str, int] = field(default_factory=dict)
    round: int = 0
    started: dict[int, int] = field(default_factory=dict)
    first: dict[tuple[int, str], int] = field(default_factory=dict)
    was_cancelled: bool = False
    latest: int = 0
    postponed: set[tuple[str, str]] = field(default_factory=set)
    stored: str = FLOW
    retried: int = 0
    changes: dict[str, str] = field(default_factory=dict)
    notes: dict[int, tuple[str, str, list[str]]] = field(default_factory=dict)
    lease_ms: int = 0
    heard: int = 0
    staged: dict[str, int] = field(default_factory=dict)
    elements: Elements = field(init=False)

    def __post_init__(self) -> None:
        """Begin with no elements."""
        self.elements = Elements(self)

    def observe(self, call: Call[Any], reply: Any) -> None:
        """Read a call and its reply."""
        words = call.words
        if words[:2] == ("SET", flow_home(PREFIX, FLOW)):
            self.home = QueueKeys(PREFIX, self.client.get(words[1]) or self.home.queue)
        elif words[0] == "HSETNX" and reply:
            self._record_written(str(words[1]), str(words[2]), str(words[3]))
        elif words[:2] == ("XADD", self.home.generations(FLOW)) and isinstance(reply, str):
            self._noted(str(words[4]))
        elif words[:2] == ("ZADD", self.home.key("gmo:owners")):
            self._hear(int(words[-2]))
        elif words[0] == "FCALL":
            self._called(words, reply)
        if self.lease_ms and not self.was_cancelled:
            self._look_for_a_lapse(call)

    def _hear(self, at: int) -> None:
        """The owner of the flow is heard of, in time or not."""
        if not self.was_cancelled:
            self.heard = max(self.heard, at)

    def _look_for_a_lapse(self, call: Call[Any]) -> None:
        """Whether this call has cancelled the flow because its owner has vanished; it may not do so early."""
        words = call.words
        if words[0] == "FCALL" and words[1] in _MEETS_DEADLINES:
            reason = self.client.hget(self.home.flow(self.stored), "reason") or ""
            if reason.startswith(VANISHED):
                self.was_cancelled = True
                if int(words[4]) < self.heard + self.lease_ms:
                    self.problems.append(f"cancelled at {words[4]}, its owner was heard of at {self.heard}")

    def _called(self, words: Sequence[Any], reply: Any) -> None:
        """A function of ours."""
        name = str(words[1])
        if name == "gmo_finish_and_fetch":
            self._exchanged(words, reply)
        elif name == "gmo_heartbeats":
            self._heard(words, reply)
        elif name in ("gmo_reclaim", "gmo_put_back", "gmo_check_open"):
            self.latest = max(self.latest, int(words[5 if name == "gmo_put_back" else 4]))
        else:
            self._steered(name, words, reply)
        if self.elements.changed:
            self.elements.settle()

    def _steered(self, name: str, words: Sequence[Any], reply: Any) -> None:
        """A call by which users change the flow."""
        begins = name == "gmo_begin_generation" or (name == "gmo_start_flow" and 0 not in self.started)
        if begins or name == "gmo_own_flow":  # a flow that runs is not started again
            self._hear(int(words[6 if name == "gmo_begin_generation" else 4]))
        if name == "gmo_retry_flow":
            self._run_again(int(words[4]))
        elif name == "gmo_change_nodes":
            self._changed(words, reply)
        elif name == "gmo_change_elements":
            self._changed_elements(words, reply)
        elif name == "gmo_begin_generation" and isinstance(reply, str) and words[8] != self.stored:
            self.stored = str(words[8])
            self._begin_round(int(words[6]))
        elif name == "gmo_start_flow" and reply not in ("staging", "cancelled"):
            self.started.setdefault(0, int(words[4]))
        elif name == "gmo_cancel_flow" and reply in ("running", "staging"):
            self.was_cancelled = True

    def _record_written(self, key: str, name: str, value: str) -> None:
        """A field of the record of a generation of a portable flow."""
        (kind, _, number), is_current = name.partition(":"), key == self.home.flow(self.stored)
        if kind == "begin" and number == "0" and not value.startswith("drop"):
            began = int(value.split(maxsplit=1)[0])
            self.staged[key] = began
            if is_current and not self.round:
                self.started[0] = began
        elif kind == "cancel" and is_current:
            self.was_cancelled = True
        elif kind == "note" and is_current:
            self._note(json.loads(value), int(number))
        elif kind == "begin" and number not in ("", "0") and is_current:
            began, mark = map(int, value.split())
            if mark >= 0:  # else it is removed, and does not begin
                self._begin_round(began)
                self._change(int(number))

    def _note(self, note: Mapping[str, Any], number: int) -> None:
        """What a round of a portable flow will do with which nodes."""
        rows = self.client.hgetall(self.home.portable_notes(self.stored))
        own = {row.partition("\n")[2]: text for row, text in rows.items() if row.startswith(note["nodes"])}
        text = own.pop("", "")
        if note["what"] != "retry":
            self.changes[note["nodes"]] = note["what"]
            self.notes[number] = (note["what"], text, list(own))

    def _change(self, number: int) -> None:
        """A round of a portable flow begins for which nodes were noted."""
        what, text, names = self.notes.pop(number, ("", "", []))
        self._changed_now(what, names, text)

    def _noted(self, stored: str) -> None:
        """A generation of a portable flow is current."""
        if stored != self.stored:
            self.stored = stored
            self._begin_round(self.staged[self.home.flow(stored)])

    def _run_again(self, now: int) -> None:
        """A staged flow may run again: its events show whether it does."""
        if self._is_retried_again():
            self._begin_round(now)

    def _is_retried_again(self) -> bool:
        found = [fields["event"] for _, fields in self.client.xrange(self.home.key("events"))]
        before, self.retried = self.retried, found.count("flow.retried")
        return self.retried > before

    def _changed(self, words: Sequence[Any], reply: Sequence[Any]) -> None:
        """Nodes run again, or were given their ends, at once with what follows: the flow is so small."""
        (what, request), names = map(str, words[6:8]), [str(word) for word in words[9::2]]
        if request in self.changes or not (changed := [name for name in names if name in reply[1:]]):
            return
        self.changes[request] = what
        all_had_ended = self._is_retried_again()  # also those that did not run
        self._begin_round(int(words[4]))
        had_ended = [name for name in changed if all_had_ended or self.accepted(name) is not None]
        self._changed_now(what, changed, str(words[10]))
        for name in set(names) - set(changed) if what == "skipped" else ():
            self._stays_skipped(name, had_ended, str(words[10]))

    def _changed_elements(self, words: Sequence[Any], reply: Sequence[Any]) -> None:
        """Elements run again, or were given their ends, by a request that had not done so before."""
        (what, request), indexes = map(str, words[6:8]), [int(word) for word in reply[1:]]
        if request not in self.changes and indexes:
            self.changes[request] = what
            self._is_retried_again()  # it had ended
            self._begin_round(int(words[4]))
            name = str(words[9])
            if self.elements.have_all_ended(name) and what != "alone":
                self.elements.forget([self.job_of(one)[1] for one in self._followers(name)])
            self.elements.given(name, what, indexes, str(words[10]))

    def _stays_skipped(self, name: str, had_ended: Sequence[str], text: str) -> None:
        """A node that had been skipped before is given that end again if it must forget another end.

        That is the earlier end of a changed node that it follows. A node that had not ended has none.
        """
        if any(name in self._followers(one) for one in had_ended):
            self.accept(name, "skipped", name, text)
        elif (before := self.accepted(name)) is not None:
            self.accept(name, before["kind"], before["run"], before["text"])

    def _changed_now(self, what: str, names: Sequence[str], text: str) -> None:
        followers = {follower for name in names for follower in self._followers(name)}
        if what == "follow" and (ended := sorted(one for one in followers if self.end_of(one))):
            self.problems.append(f"{names} run again, and {ended}, which follow, have their ends")
        if what not in ("alone", "follow"):
            for name in names:
                self.accept(name, what, name, text)
                self.open.pop(self.job_of(name), None)

    def _followers(self, name: str) -> list[str]:
        """The nodes that depend on a node, directly or not; after comes before."""
        found = [name]
        for node in self.nodes.values():
            if any(str(one) in found for one in node.after):
                found.append(node.name)
        return found[1:]

    def _begin_round(self, now: int) -> None:
        self.round += 1
        self.started[self.round] = now

    def _heard(self, words: Sequence[Any], reply: Sequence[int]) -> None:
        for at, kept in enumerate(reply):
            job_id, token, _ = words[5 + 3 * at : 8 + 3 * at]
            if kept >= 0:
                self.alive[f"{token}:{job_id}"] = int(words[4])

    def _exchanged(self, words: Sequence[Any], reply: Any) -> None:
        queue = str(words[3]).partition("{")[2].partition("}")[0]
        end = len(words) - (len(words) - _FIRST) % _WORDS
        outcomes = [words[at : at + _WORDS] for at in range(_FIRST, end, _WORDS)]
        for outcome, verdict in zip(outcomes, reply[0], strict=True):
            self._judged(queue, outcome, str(verdict))
        self.elements.settle()
        if words[9] != "again":
            for row in reply[2]:
                token, now = f"{words[8]}{row[_AHEAD]}", int(words[4])
                if len(row) > _AHEAD + 1:
                    self.elements.began(queue, row, token, now)
                else:
                    self._began((queue, row[0]), f"{token}:{row[0]}", int(row[EPOCH]), now)
        self.problems += [f"a job could not start: {trouble}" for trouble in reply[7]]

    def _judged(self, queue: str, outcome: Sequence[Any], verdict: str) -> None:
        kind, job_id, _, token = outcome[:4]
        name, run, job = self.name_of(job_id), f"{token}:{job_id}", (queue, job_id)
        if kind == "begun":
            return
        if verdict.startswith("error"):
            self.problems.append(f"{name}: {kind} was answered by {verdict}")
        if verdict.partition("\n")[0] not in ("ok", "retrying", "failed", "ended"):
            return
        if job_id in self.elements.slices:
            self.elements.judged(queue, outcome, verdict)
            return
        if self.open.pop(job, None) is None:
            self.problems.append(f"{name}: {kind} was accepted, but no attempt runs: it was ended before")
        self.problems += promises.accepted_from_last(self.book, run)
        if not self.is_current(job_id):
            return
        if kind == "back":
            self.first.pop((self.round, name), None)
        if verdict != "retrying" and kind in ENDS:
            self.accept(name, ENDS[kind], run, str(outcome[5]))

    def accept(self, name: str, end: str, run: str, text: str) -> None:
        """The end of a node is accepted: that of a run, or, by the name of the node, one given by hand."""
        self.accept_job(self.job_of(name), end, run, text)

    def accept_job(self, job: JobKey, end: str, run: str, text: str) -> None:
        """The end of a job is accepted; once in a round."""
        self.write(end, job, run=run, text=text)
        in_round = [one for one in self.book.accepted[job] if one["round"] == self.round]
        self.problems += (f"{job[1]}: {problem} in a round" for problem in promises.accepted_once(in_round))

    def _began(self, job: JobKey, run: str, epoch: int, now: int) -> None:
        name, completed = self.name_of(job[1]), set[str]()
        if self.is_current(job[1]):
            self.first.setdefault((self.round, name), now)
            self._check_repeat(name, self.open.get(job))
            completed = self.check_order(self.nodes[name])
        self.write("begin", job, run=run, epoch=epoch, completed=completed)
        self.open[job], self.alive[run] = run, now
        self.problems += promises.attempted_once(self.book, [job])

    def write(self, kind: str, job: JobKey, **fields: Any) -> None:
        about = {"queue": job[0], "job": job[1], "flow": FLOW, "node": self.name_of(job[1])}
        self.book.add({"kind": kind, **about, "round": self.round, **fields})

    def _check_repeat(self, name: str, before: str | None) -> None:
        """No attempt is replaced before its lease ends; what has ended does not run again by itself."""
        if before is not None and self.book.begins[before]["round"] == self.round:
            ago = self.latest - self.alive[before]
            if ago < self.lock_ms:
                self.problems.append(f"{name}: taken over {ago} ms after the last sign of life of {before}")
        ended = None if self.changes else self.accepted(name)
        if ended is not None and (ended["kind"] != "failed" or ended["round"] == self.round):
            self.problems.append(f"{name}: runs again in round {self.round} after {ended}")

    def check_order(self, node: FlowNode) -> set[str]:
        """No node begins before its rule allows it; returns the dependencies that have completed."""
        ends = {str(name): end for name in node.after if (end := self.end_of(name)) is not None}
        completed = {name for name, end in ends.items() if end == "completed"}
        self.problems += (
            f"{node.name} begins after {name}, and nothing of {name} was accepted"
            for name in completed
            if self.accepted(name) is None
        )
        if not self.is_loose and not may_begin(node, ends, self.nodes):
            self.problems.append(f"{node.name} ({node.rule}) begins after {ends} of {list(node.after)}")
        return completed

    @property
    def is_loose(self) -> bool:
        """Whether a node may have run again alone, so that those that follow it no longer go by its end."""
        return "alone" in self.changes.values()

    def forget(self) -> None:
        """Nothing of the flow is left: what follows is another one."""
        for table in (self.changes, self.notes, self.open, self.alive, self.started, self.first, self.staged):
            table.clear()
        self.book, self.elements = Book(), Elements(self)
        self.round, self.retried, self.was_cancelled, self.stored = 0, 0, False, FLOW
        self.client.unlink(self.home.key("events"))

    def check_inputs(self, run: str, inputs: Mapping[str, Any]) -> None:
        """A handler gets the accepted results of its completed dependencies, none missing and no others."""
        begin = self.book.begins.get(run)
        if begin is None or not self.is_current(begin["job"]):
            return
        is_latest = self.open.get(job_of(begin)) == run and begin["round"] == self.round
        if self.notes or not is_latest:  # it may have been taken from it
            return
        ends = {name: self.accepted(name) for name in map(str, self.nodes[begin["node"]].after)}
        accepted = {name: {end["run"]} for name, end in ends.items() if end and end["kind"] == "completed"}
        given = {name: as_run(name, result) for name, result in inputs.items()}
        found = promises.given_accepted(self.book, begin, given, accepted, begin["completed"])
        self.problems += (f"{begin['node']} {problem}" for problem in found)

    def accepted(self, name: str) -> LedgerEntry | None:
        """The end of a node that was accepted last, in this generation."""
        ends = self.book.accepted.get(self.job_of(name))
        return ends[-1] if ends else None

    def job_of(self, name: str) -> JobKey:
        """The job of a node in the current generation."""
        return self.nodes[name].queue, node_job_id(self.stored, name)

    def end_of(self, name: str) -> str | None:
        """How a node has ended, as its job shows; None while it has not."""
        queue, job_id = self.job_of(name)
        state, skipped = self.client.hmget(QueueKeys(PREFIX, queue).job(job_id), "state", "gmo:skipped")
        if skipped and state == "completed":
            return "skipped"
        return str(state) if state in _ENDED else None

    def name_of(self, job_id: str) -> str:
        """The node of a job; of a slice or an element, the array."""
        return re.split(r"[\[{]", job_id.partition("~")[2])[0]

    def is_current(self, job_id: str) -> bool:
        """Whether the job is of the current generation."""
        return job_id.startswith(node_job_id(self.stored, "x")[:-1])
