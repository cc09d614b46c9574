"""The reports of assets and checks of a flow: those of completed nodes, from accepted attempts only.

The server stores which attempt was accepted, and how many messages it has written. So reports of an attempt
that failed, was killed or lost its job do not count, and a missing report is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

import dagster as dg
from dagster_pipes import PipesMessage

from dagster_glidemq.checks import about
from dagster_glidemq.pipes import messages as pipes
from dagster_glidemq.pipes.log import LiveLog, pages
from glidemq_orchestrate import JobState, Queue
from glidemq_orchestrate.errors import Superseded
from glidemq_orchestrate.flows import NodeStatus
from glidemq_orchestrate.jobs import AcceptedAttempt
from glidemq_orchestrate.runs import Changes, Json, Patience


class ReportsUnusable(Exception):
    """The reports of a completed node are missing or invalid; the message names the node."""


class Reports:
    """Collects the reports of nodes as they end, and passes them to Dagster.

    Args:
        queues: Returns the client of a queue.
        log: The log that passes them on.
        wanted: The assets and checks that the step may report.
        patience: Retries calls during outages.

    Attributes:
        nodes: The nodes that have ended, by name, dependencies first.
        results: The results of nodes whose workers do not support Pipes.
    """

    def __init__(
        self,
        queues: Callable[[str], Queue],
        log: LiveLog,
        *,
        wanted: Reportable,
        patience: Patience,
    ) -> None:
        self._queues, self._log = queues, log
        self._wanted, self._patience = wanted, patience
        self._generation: int | None = None
        self._held: list[NodeStatus] = []
        self._collected: list[tuple[NodeStatus, PipesMessage]] = []
        self._reporters: dict[tuple[str, ...], tuple[int | None, NodeStatus]] = {}
        self.nodes: dict[str, NodeStatus] = {}
        self.results: dict[str, Json] = {}

    def collect(self, change: Changes) -> None:
        """Collect the reports of the ended nodes, each after those of its dependencies.

        Reports from a restarted generation, or from an earlier run of a node, are dropped.

        Raises:
            ReportsUnusable: The reports of a completed node are missing or invalid.
            GlideMQError: The server cannot be reached.
        """
        if change.status.generation != self._generation:
            self._generation = change.status.generation
            for kept in (self._collected, self._held, self.nodes, self.results):
                kept.clear()
        again = {node.name for node in change.ended}
        self._collected = [one for one in self._collected if one[0].name not in again]
        self._held = [node for node in self._held if node.name not in again] + list(change.ended)
        ready = self._ready(is_over=change.status.state.is_terminal)
        completed = [node for node in ready if node.state is JobState.COMPLETED]
        accepted = self._accepted(completed)
        plain = [node.name for node in completed if node.name not in accepted]
        results = self._results(change, plain)
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
        """Pass the collected reports to Dagster.

        Raises:
            ReportsUnusable: Dagster refuses a report, or two nodes report the same asset or check.
        """
        collected, self._collected = self._collected, []
        for node, message in collected:
            if self._is_wanted(node, message):
                try:
                    self._log.report(message)
                except Exception as exc:
                    raise ReportsUnusable(
                        f"node {node.name}: its {message['method']} is not valid: {exc}"
                    ) from exc

    def _ready(self, *, is_over: bool) -> list[NodeStatus]:
        """The ended nodes whose dependencies are known to have ended: they may be read in another order."""
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
        """Read the reports of the accepted attempt, and show its log lines that were not shown yet."""
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

    def _results(self, change: Changes, names: Sequence[str]) -> Mapping[str, Json]:
        try:
            return change.results(names)
        except Superseded:  # the next change belongs to the new generation
            return {}

    def _of_result(self, node: NodeStatus, result: Json) -> list[PipesMessage]:
        """The messages in the result of a node whose worker has written none."""
        try:
            found = pipes.of_result(result, self._wanted.assets(are_selected=True))
        except pipes.InvalidReport as exc:
            raise ReportsUnusable(f"the result of node {node.name}: {exc}") from exc
        for message in found:
            if message["method"] in pipes.LIVE:
                self._log.log(node.name, message)
        return [message for message in found if message["method"] in pipes.REPORTS]

    def _take(self, node: NodeStatus, messages: Sequence[PipesMessage]) -> None:
        more = about(node)
        self._collected += [(node, pipes.with_metadata(message, more)) for message in messages]

    def _is_wanted(self, node: NodeStatus, message: PipesMessage) -> bool:
        """Whether a report is about a selected asset or check that was not reported before.

        Raises:
            ReportsUnusable: The step does not have the asset or check, or another node has reported it.
        """
        params = message["params"] or {}
        key, check = params.get("asset_key"), str(params.get("check_name") or "")
        if key is None or self._wanted.selected is None:
            return True
        what = f"check {check} of asset {key}" if check else f"asset {key}"
        if not self._wanted.selected.get((key, check)):
            if (key, check) not in self._wanted.selected:
                raise ReportsUnusable(f"node {node.name} reports {what}, which the step does not have")
            return self._left_out(node, f"{what} is not selected in this run: its report is ignored")
        generation, former = self._reporters.setdefault(
            (message["method"], key, check), (self._generation, node)
        )
        if generation == self._generation and former.name != node.name:
            first, second = sorted((former.name, node.name))
            raise ReportsUnusable(f"nodes {first} and {second} both report {what}; only one may")
        if generation == self._generation and former.reruns == node.reruns:
            return True
        return self._left_out(
            node, f"{what} was reported before its node ran again: the new report is ignored"
        )

    def _left_out(self, node: NodeStatus, text: str) -> bool:
        self._log.log(node.name, pipes.make("log", {"message": text, "level": "INFO"}))
        return False


@dataclass(frozen=True, slots=True)
class Reportable:
    """The assets and checks that a step may report, by their Pipes names.

    Attributes:
        selected: Whether each asset is selected, by its name and an empty text, and each check, by the names
            of its asset and its own. None: the step has no assets.
    """

    selected: Mapping[tuple[str, str], bool] | None

    @classmethod
    def of(cls, step: dg.OpExecutionContext) -> Self:
        """The assets and checks of a step."""
        if not step.has_assets_def:
            return cls(None)
        assets, checks = step.selected_asset_keys, step.selected_asset_check_keys
        keys = {*step.assets_def.node_keys_by_output_name.values(), *assets}
        found = {(key.to_escaped_user_string(), ""): key in assets for key in keys}
        for key in {spec.key for spec in step.assets_def.node_check_specs_by_output_name.values()} | checks:
            found[key.asset_key.to_escaped_user_string(), key.name] = key in checks
        return cls(found)

    def assets(self, *, are_selected: bool = False) -> list[str]:
        """Every asset of the step, or the selected assets."""
        every = self.selected or {}
        return sorted(
            asset for (asset, check), is_so in every.items() if not check and (is_so or not are_selected)
        )
