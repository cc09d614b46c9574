"""The reports of assets and checks of a flow: those of completed nodes, of the attempts that were accepted.

The server names the attempt whose result was accepted, and how many messages it has written; so the reports
of an attempt that failed, was killed or lost its job count for nobody, and none is missing unnoticed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from dagster_pipes import PipesMessage

from dagster_glidemq.patience import Patience
from dagster_glidemq.pipes import messages as pipes
from dagster_glidemq.pipes.log import LiveLog, pages
from dagster_glidemq.pipes.wanted import Wanted
from dagster_glidemq.watch import Changes
from glidemq_orchestrate import FlowProducer, JobState, NodeStatus, Queue
from glidemq_orchestrate.codec import Json
from glidemq_orchestrate.errors import Superseded
from glidemq_orchestrate.jobs.message import AcceptedAttempt


class ReportsUnusable(Exception):
    """What a completed node has reported is missing, or is not valid; the message names the node."""


class Reports:
    """Collects the reports of nodes as they end, and hands them to Dagster.

    Args:
        flows: Reads the flow.
        queues: Gives the client of a queue.
        log: Where to hand them over.
        wanted: The assets and checks that the step may report.
        patience: Waits out outages.

    Attributes:
        nodes: The nodes that have ended, by name, dependencies first.
        results: Results of nodes whose workers know no Pipes.
    """

    def __init__(
        self,
        flows: FlowProducer,
        queues: Callable[[str], Queue],
        log: LiveLog,
        *,
        wanted: Wanted,
        patience: Patience,
    ) -> None:
        self._flows, self._queues, self._log = flows, queues, log
        self._wanted, self._patience = wanted, patience
        self._generation: int | None = None
        self._held: list[NodeStatus] = []
        self._collected: list[tuple[str, PipesMessage]] = []
        self._reporters: dict[tuple[str, ...], tuple[int | None, str]] = {}
        self.nodes: dict[str, NodeStatus] = {}
        self.results: dict[str, Json] = {}

    def collect(self, change: Changes) -> None:
        """Take in the reports of the nodes that have ended, each after those it depends on.

        What was taken in of a generation that was begun anew is dropped.

        Raises:
            ReportsUnusable: Those of a completed node are missing or not valid.
            GlideMQError: The server cannot be reached.
        """
        if change.status.generation != self._generation:
            self._generation = change.status.generation
            for kept in (self._collected, self._held, self.nodes, self.results):
                kept.clear()
        self._held += change.ended
        ready = self._ready(is_over=change.status.state.is_terminal)
        completed = [node for node in ready if node.state is JobState.COMPLETED]
        accepted = self._accepted(completed)
        plain = [node.name for node in completed if node.name not in accepted]
        results = self._results(change.status.id, plain)
        for node in ready:
            self.nodes[node.name] = node
            if node.name in accepted:
                self._take(node, self._read(node, accepted[node.name]))
            elif node.state is JobState.COMPLETED:
                self.results[node.name] = results.get(node.name)
                self._take(node, self._of_result(node, results.get(node.name)))
            elif node.attempts:
                self._show_rest(node)
        self._log.is_complete = change.status.state == "completed"

    def hand_over(self) -> None:
        """Give Dagster what was taken in.

        Raises:
            ReportsUnusable: Dagster refuses a report, or two nodes report the same.
        """
        collected, self._collected[:] = list(self._collected), []
        for node, message in collected:
            if self._is_wanted(node, message):
                try:
                    self._log.report(message)
                except Exception as exc:
                    raise ReportsUnusable(
                        f"node {node}: its {message['method']} is not valid: {exc}"
                    ) from exc

    def _ready(self, *, is_over: bool) -> list[NodeStatus]:
        """Ended nodes whose dependencies are known to have ended: they may be read in another order."""
        done, ready = set(self.nodes), list[NodeStatus]()
        while some := [node for node in self._held if done.issuperset(node.after)]:
            done.update(node.name for node in some)
            ready += some
            self._held = [node for node in self._held if node.name not in done]
        if is_over:
            ready += self._held
            self._held = []
        return ready

    def _accepted(self, nodes: Sequence[NodeStatus]) -> dict[str, AcceptedAttempt]:
        """The accepted attempts that have written messages, by node."""
        by_queue: dict[str, dict[str, str]] = {}
        for node in nodes:
            by_queue.setdefault(node.queue, {})[node.job_id] = node.name
        found: dict[str, AcceptedAttempt] = {}
        for name, jobs in by_queue.items():
            attempts = self._patience(partial(self._queues(name).accepted_attempts, list(jobs)))
            found |= {jobs[job_id]: attempt for job_id, attempt in attempts.items()}
        return found

    def _read(self, node: NodeStatus, accepted: AcceptedAttempt) -> list[PipesMessage]:
        """The reports of the accepted attempt; shows the log lines that were not shown yet."""
        counted, reports = 0, list[PipesMessage]()
        for page in pages(self._queues(node.queue), accepted.job_id, "", self._patience):
            self._log.show(node.queue, accepted.job_id, node.name, page)
            own = [one for one in page if one.attempt == accepted.attempt]
            counted += len(own)
            found = [message for one in own if (message := pipes.read(one.text)) is not None]
            reports += [message for message in found if message["method"] in pipes.REPORTS]
        if counted != accepted.count:
            raise ReportsUnusable(
                f"node {node.name}: of {accepted.count:,} messages of its job {accepted.job_id} {counted:,} "
                "are left; they are kept for a week. Re-execute the step, not from failure"
            )
        return reports

    def _show_rest(self, node: NodeStatus) -> None:
        after = self._log.position(node.queue, node.job_id)
        for page in pages(self._queues(node.queue), node.job_id, after, self._patience):
            self._log.show(node.queue, node.job_id, node.name, page)

    def _results(self, flow_id: str, names: Sequence[str]) -> Mapping[str, Json]:
        if not names:
            return {}
        with contextlib.suppress(Superseded):  # begun anew: the next change is one of that generation
            flow = self._patience(lambda: self._flows.get(flow_id))
            if flow.generation == self._generation:
                return self._patience(lambda: flow.results(names))
        return {}

    def _of_result(self, node: NodeStatus, result: Json) -> list[PipesMessage]:
        """What the result of a node stands for whose worker has written no messages."""
        try:
            found = pipes.of_result(result, self._wanted.assets)
        except pipes.InvalidReport as exc:
            raise ReportsUnusable(f"the result of node {node.name}: {exc}") from exc
        for message in found:
            if message["method"] in pipes.LIVE:
                self._log.log(node.name, message)
        return [message for message in found if message["method"] in pipes.REPORTS]

    def _take(self, node: NodeStatus, messages: Sequence[PipesMessage]) -> None:
        more = about(node)
        self._collected += [(node.name, pipes.with_metadata(message, more)) for message in messages]

    def _is_wanted(self, node: str, message: PipesMessage) -> bool:
        """Whether a report is about a selected asset, and was not handed over before.

        Raises:
            ReportsUnusable: Another node has reported the same asset or check.
        """
        params = message["params"] or {}
        key, check = params.get("asset_key"), str(params.get("check_name") or "")
        if key is None or self._wanted.is_op:
            return True
        if not self._wanted.has(key, check):
            what = f"check {check} of asset {key}" if check else f"asset {key}"
            if not self._wanted.is_left_out(key, check):
                raise ReportsUnusable(f"node {node} reports {what}, which the step does not have")
            text = f"{what} is not selected in this run: a report of it is left out"
            self._log.log(node, pipes.make("log", {"message": text, "level": "INFO"}))
            return False
        generation, former = self._reporters.setdefault(
            (message["method"], key, check), (self._generation, node)
        )
        if (generation, former) == (self._generation, node):
            return True
        if generation == self._generation:
            raise ReportsUnusable(f"nodes {former} and {node} both report asset {key}; only one may")
        text = f"asset {key} was reported before the flow was begun anew: the new report is left out"
        self._log.log(node, pipes.make("log", {"message": text, "level": "WARNING"}))
        return False


def about(node: NodeStatus) -> dict[str, str | int | float]:
    """Metadata about a node that has ended."""
    found: dict[str, str | int | float] = {
        "glidemq/node": node.name,
        "glidemq/queue": node.queue,
        "glidemq/job_id": node.job_id,
        "glidemq/attempts": node.attempts,
    }
    if node.seconds is not None:
        found["glidemq/run_seconds"] = node.seconds
    return found
