"""What must hold of the nodes behind the bridge to ChasquiMQ, beside what holds of all nodes.

A job there may run again when its worker was lost, at most twice in all: then it is a dead letter, and the
attempt fails. Everything else is promised:

- an attempt has one job there, whichever bridges wait for it;
- the result is that of a run of this job, which was the last to have it, got the accepted results of the
  dependencies, and began after they had ended;
- the progress of the node names this job;
- no job there is lost, and none becomes a dead letter unless its workers, or the servers, were harmed twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final

from glidemq_orchestrate import JobState, Queue
from glidemq_orchestrate.flows import NodeStatus
from glidemq_orchestrate.testing.chaos.ledger import LedgerEntry
from tests.chaos.book import RoundBook, generation_of
from tests.chaos.bridged_flows import QUEUE
from tests.chaos.bridged_steps import DEAD_LETTER
from tests.chaos.plan import Plan

HARMS: Final = frozenset({
    "kill_chasqui_worker", "pause_chasqui_worker", "stop_chasqui_worker", "kill_server", "freeze_server",
    "lose_power", "fail_over", "move_slot", "fill_memory", "drop_clients", "cut_replies", "cut_requests",
})  # fmt: skip
"""Faults that may take a job from a worker of ChasquiMQ."""
DELIVERIES: Final = 2
"""How often such a job is handed to a worker that may run it."""
LASTING_NS: Final = 10_000_000_000
"""A fault lasts at most so long."""
REPEATED: Final = frozenset({"retry", "orphan", "rerun", "skip"})
"""What is done to flows whose nodes may begin anew as the same jobs."""


class BridgedRuns:
    """What the bridges of a round and the workers behind them have written.

    Args:
        book: The ledger.
        entries: The same, in order.
        keeps_all: Servers have kept all that they acknowledged, and who holds a job.
    """

    def __init__(self, book: RoundBook, entries: Sequence[LedgerEntry], *, keeps_all: bool) -> None:
        self._book, self._keeps_all = book, keeps_all and not book.emptied
        by_kind: dict[str, list[LedgerEntry]] = defaultdict(list)
        for entry in entries:
            by_kind[entry["kind"]].append(entry)
        self._added = {entry["run"]: entry for entry in by_kind["remote-add"]}
        self._begins = {entry["run"]: entry for entry in by_kind["remote-begin"]}
        self._ends = {entry["run"]: entry for entry in by_kind["remote-end"]}
        self._harms = [entry["at"] for entry in by_kind["fault"] if entry["fault"] in HARMS]
        self._jobs: dict[str, str] = {}

    def of_node(self, node: NodeStatus, result: Mapping[str, Any], begin: LedgerEntry) -> Iterator[str]:
        """What is wrong with a completed node.

        Args:
            node: The node.
            result: Its result.
            begin: The begin of the attempt of the bridge that has ended it.
        """
        run = result.get("remote", "")
        there, end = self._begins.get(run), self._ends.get(run)
        if there is None or end is None or (end["error"], end["value"]) != ("", result["value"]):
            yield f"completed with {dict(result)}, which no run behind the bridge has written"
            return
        remote_id = there["remote"]
        if node.job_id == begin["job"]:  # else the result is carried over
            self._jobs[node.job_id] = remote_id
        awaited = self._added.get(begin["run"], {}).get("remote")
        if awaited != remote_id or not remote_id.startswith(f"gmo:{node.queue}:{begin['job']}:"):
            yield f"completed with the result of {remote_id}, and the bridge waited for {awaited}"
        if there["inputs"] != begin["inputs"]:
            yield f"{remote_id} got the results {there['inputs']}, and the bridge had {begin['inputs']}"
        for name, other in there["inputs"].items():
            if other in self._book.ends and self._book.ends[other]["at"] > there["at"]:
                yield f"{remote_id} began before {name} had ended"
        if self._keeps_all:
            yield from self._replaced(there)

    def _replaced(self, there: LedgerEntry) -> Iterator[str]:
        """The runs to which the job was handed after one whose result was accepted."""
        for other in self._begins.values():
            if other["remote"] == there["remote"] and other["delivery"] > there["delivery"]:
                yield f"the result of {there['run']} was accepted, and {other['run']} had taken the job over"

    def progress(self, queue: Queue) -> Iterator[str]:
        """The completed nodes whose progress does not name the job that has run them."""
        for job_id, remote_id in self._jobs.items():
            job = queue.get_job(job_id)
            shown = job.progress.get("chasquimq", {}) if isinstance(job.progress, dict) else {}
            if job.state is JobState.COMPLETED and shown.get("job") != remote_id:
                yield f"job {job_id} was run as {remote_id}, and its progress is {job.progress!r}"

    def violations(self, plan: Plan) -> Iterator[str]:
        """Everything else, in sentences."""
        added = {entry["remote"] for entry in self._added.values()}
        for remote_id in sorted({entry["remote"] for entry in self._begins.values()} - added):
            yield f"{remote_id} ran behind the bridge, and no bridge has added it"
        if self._keeps_all:
            yield from self._added_twice(plan)
            yield from self._lost()

    def _added_twice(self, plan: Plan) -> Iterator[str]:
        """Attempts for which a bridge has added another job than the bridge before it."""
        adds: dict[str, list[tuple[int, int, LedgerEntry]]] = defaultdict(list)
        anew = {flow.flow_id for flow in plan.flows if flow.action in REPEATED}
        for run, entry in self._added.items():
            begin = self._book.begins.get(run, {})
            if "epoch" in begin and generation_of(entry["job"])[0] not in anew:
                adds[entry["job"]].append((begin["epoch"], begin["attempt"], entry))
        for job_id, found in adds.items():
            ended = {entry["run"] for entry in self._book.accepted[QUEUE, job_id]}
            for (_, attempt, before), (_, following, after) in pairwise(sorted(found, key=itemgetter(0))):
                is_same = attempt == following and before["run"] not in ended
                if is_same and before["remote"] != after["remote"]:
                    yield f"{after['remote']} was added for the attempt that has {before['remote']}"

    def _lost(self) -> Iterator[str]:
        """Attempts whose job there was lost, or became a dead letter without a reason."""
        first: dict[str, int] = {}
        for entry in self._added.values():
            first[entry["remote"]] = min(entry["at"], first.get(entry["remote"], entry["at"]))
        for run, end in self._book.ends.items():
            if run not in self._added:
                continue
            remote_id = self._added[run]["remote"]
            since = first[remote_id] - LASTING_NS
            harms = sum(since < at < end["at"] for at in self._harms)
            if end["error"] == "RemoteVanished":
                yield f"{remote_id} is gone from the queue of ChasquiMQ"
            elif end["error"] == DEAD_LETTER and harms < DELIVERIES:
                yield f"{remote_id} became a dead letter, and {harms} faults may have taken it from a worker"
