"""Reads, restarts and ends the nodes of one task of a group, and shows their outcome."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_glidemq.exceptions import again_in_group
from airflow_provider_glidemq.group_flow import (
    RETURN_VALUE,
    EndedEarly,
    array_of,
    is_array,
    is_node_of,
    is_over,
    value_of,
)
from airflow_provider_glidemq.node_reports import in_block
from airflow_provider_glidemq.results import check_count, check_size, longest_map
from glidemq_orchestrate import AsyncFlow, JobState
from glidemq_orchestrate.errors import FlowEnded, GlideMQError, NodeNotEnded, NodeNotFound, NodeNotRepeatable
from glidemq_orchestrate.flows import NodeStatus
from glidemq_orchestrate.runs import in_text

if TYPE_CHECKING:
    from airflow_provider_glidemq.triggers.shared.client import SharedClient
    from airflow_provider_glidemq.triggers.shared.tasks import GroupTask

logger = logging.getLogger(__name__)


class TaskNodes:
    """The nodes of one task in one generation of a flow.

    Args:
        client: The client that has found the flow.
        flow: The flow.
        task: The name of the node, or of the task that was expanded.
        is_expanded: Whether there is a node for each item.
    """

    def __init__(self, client: SharedClient, flow: AsyncFlow, task: str, *, is_expanded: bool) -> None:
        self.flow = flow
        self._client, self._task, self._is_expanded = client, task, is_expanded
        self._known: dict[str, NodeStatus] = {}

    @property
    def shown(self) -> Sequence[NodeStatus]:
        """The nodes of the items as last read; the node that adds them, while it is alone."""
        items = [node for name, node in self._known.items() if name != self._task]
        return items if self._is_expanded and items else list(self._known.values())

    @property
    def is_over(self) -> bool:
        """Whether all nodes had ended when they were last read."""
        maker = self._known.get(self._task)
        is_made = not (self._is_expanded and len(self._known) == 1 and maker)
        return is_over(self.shown) and (
            is_made or (maker is not None and maker.state is not JobState.COMPLETED)
        )

    async def read(self) -> Sequence[NodeStatus]:
        """Read all nodes.

        Raises:
            NodeNotFound: The flow has no node of this task.
            Superseded, FlowNotFound, FlowExpired: See ``Flow.nodes``.
        """
        if self._is_expanded:
            every = await self._client.ask(self.flow.nodes())
            found = [node for node in every if is_node_of(node.name, self._task)]
        else:
            found = [await self._client.ask(self.flow.node(self._task))]
        if not found:
            raise NodeNotFound(f"flow {self.flow.id} has no node {self._task}")
        self._known = {node.name: node for node in found}
        return self.shown

    async def poll(self, *, is_last: bool = False) -> Sequence[NodeStatus]:
        """Read the nodes that had not ended; with ``is_last`` the others too.

        Raises:
            Superseded, FlowNotFound, FlowExpired: See ``Flow.nodes``.
        """
        names = [name for name, node in self._known.items() if is_last or not node.state.is_terminal]
        if names:
            self._known |= {node.name: node for node in await self._client.ask(self.flow.nodes(names))}
        maker = self._known.get(self._task)
        if self._is_expanded and len(self._known) == 1 and maker and maker.state is JobState.COMPLETED:
            await self.read()  # it has added the others
        return self.shown

    async def start_over(self, names: Sequence[str], request: str, reason: str) -> None:
        """Run some nodes and all their dependents again; running nodes are cancelled first.

        Repeatable with the same request: a repeat only completes the work of a killed process.

        Raises:
            Superseded, FlowNotFound, FlowExpired: See ``Flow.rerun``.
        """
        generation = self.flow.generation
        running = [one.name for one in self.shown if one.name in names and not one.state.is_terminal]
        if running and is_array(self.shown):  # a rerun keeps elements that have completed
            await self._restart(names, request)
            return
        again = partial(self.flow.rerun, nodes=names, idempotency_key=request, generation=generation)
        try:
            # This comes first: in a repeat, the running nodes may be those that the request has started.
            try:
                await self._client.ask(again())
            except NodeNotEnded:
                with suppress(FlowEnded):
                    ended = self.flow.cancel_node(nodes=running, reason=reason, generation=generation)
                    await self._client.ask(ended)
                await self._client.ask(again())
        except NodeNotEnded as exc:  # another client has started it over
            logger.info("not run again: %s", exc)
        except NodeNotRepeatable as exc:  # a dependent has added nodes
            logger.info("flow %s is restarted from %s: %s", self.flow.id, self._task, exc)
            await self._restart(names, request)

    async def _restart(self, names: Sequence[str], request: str) -> None:
        """Begin a generation in which these nodes, and what follows them, run again."""
        made = [self._task] if self._task in self._known else names  # added by a node, which adds them again
        again = self.flow.restart(nodes=made, idempotency_key=request, generation=self.flow.generation)
        await self._client.ask(again)

    async def read_others(self, tasks: Collection[str]) -> Mapping[str, Sequence[NodeStatus]]:
        """The nodes of other tasks, by task.

        Raises:
            Superseded, FlowNotFound, FlowExpired: See ``Flow.nodes``.
        """
        every = await self._client.ask(self.flow.nodes())
        return {task: [node for node in every if is_node_of(node.name, task)] for task in tasks}

    async def complete_others(self, tasks: Collection[str]) -> Sequence[str]:
        """Complete the failed and skipped nodes of other tasks. Returns their names.

        Raises:
            Superseded, FlowNotFound, FlowExpired: See ``Flow.complete_node``.
        """
        names = [
            node.name
            for nodes in (await self.read_others(tasks)).values()
            for node in nodes
            if node.state in (JobState.FAILED, JobState.SKIPPED)
        ]
        if names:
            done = self.flow.complete_node(nodes=names, generation=self.flow.generation)
            await self._client.ask(done)
        return names

    async def end(self, state: str, reason: str) -> None:
        """End the nodes that have not ended: ``success`` completes, ``skipped`` skips, all else cancels them.

        Raises:
            Superseded, FlowNotFound, FlowExpired, FlowEnded: See ``Flow.cancel_node``.
        """
        names = [node.name for node in self.shown if not node.state.is_terminal]
        flow, generation = self.flow, self.flow.generation
        others = partial(flow.skip_node if state == "skipped" else flow.cancel_node, reason=reason)
        if names:
            end = flow.complete_node if state == "success" else others
            await self._client.ask(end(nodes=names, generation=generation))


LOG_LINES: Final = 100
LOGS_SHOWN: Final = 3  # for an expanded task: the first nodes that failed


@dataclass(frozen=True, slots=True)
class NodeEnd:
    """Shows the outcome of the nodes of one task.

    Attributes:
        node: The name of the node, or of the task that was expanded.
        is_expanded: Whether the task has a node for each item.
        is_mapped_over: Whether a task outside of the group is expanded over the result.
        pushes: What to push to XCom: ``value``, ``keys`` (also each key of a dict) or ``none``.
        log: The log of the task.
    """

    node: str
    is_expanded: bool
    is_mapped_over: bool
    pushes: str
    log: Any

    async def push(
        self, client: SharedClient, task: GroupTask, flow: AsyncFlow, names: Sequence[str]
    ) -> None:
        """Store the result as an XCom of the task; a repeat stores the same.

        Raises:
            GlideMQResultTooLarge: The result is too large for Airflow's database.
            EndedEarly: No task can be expanded over the result.
        """
        advice = " Or set do_xcom_push=False on the task, if no task outside of the group needs it."
        results: Mapping[str, Any] = await client.ask(flow.results(names))
        if array := array_of(names):
            check_count(flow.id, array, results[array]["completed"], advice)
            results = {array: list((await client.ask(flow.array(array).results())).values())}
        check_size(flow.id, results, advice)
        value = value_of(results, self.node, is_expanded=self.is_expanded)
        if self.pushes == "keys" and isinstance(value, dict):
            for key, part in value.items():
                await task.push(key, part)
        if value is not None:
            length = self._length(value) if self.is_mapped_over else None
            await task.push(RETURN_VALUE, value, length=length)

    def _length(self, value: Any) -> int:
        """The number of tasks that a task outside the group expands to over the result."""
        if not isinstance(value, dict | list):
            raise EndedEarly(
                "failed", f"{self.node} returned {type(value).__name__}, and a task is expanded over it"
            )
        if len(value) > (limit := longest_map()):
            raise EndedEarly(
                "failed",
                f"{self.node} returned {len(value):,} items, and a task is expanded over them: "
                f"[core] max_map_length allows {limit:,}. Expand inside the group, or return fewer",
            )
        return len(value)

    async def log_lines(
        self, client: SharedClient, flow: AsyncFlow, nodes: Sequence[NodeStatus], *, is_shown: bool
    ) -> None:
        """Log the lines of the node, or of the first nodes that failed; never fails.

        Args:
            client: The client that reads the lines.
            flow: The flow.
            nodes: All nodes of the task.
            is_shown: The lines of completed nodes are already in the log of the task.
        """
        failed = [node for node in nodes if node.state is JobState.FAILED]
        if not failed and is_shown:
            return
        if failed and is_array(failed):
            await self._log_elements(client, flow, failed[0].name)
        chosen = [node.name for node in (failed[:LOGS_SHOWN] if self.is_expanded else nodes)]
        with suppress(GlideMQError):
            found = await client.ask(flow.logs(dict.fromkeys(chosen, -LOG_LINES), limit=LOG_LINES))
            for name, logs in found.items():
                if logs.lines:
                    self.log.info("%s had logged:\n%s", name, in_block(logs.lines))
        for node in failed[:LOGS_SHOWN]:
            attempts = "" if is_array(failed) else f" (attempts: {node.attempts})"
            self.log.error("%s failed: %s%s", node.name, in_text(node.reason), attempts)
        if failed:
            self.log.error("%s", again_in_group(flow.id))

    async def _log_elements(self, client: SharedClient, flow: AsyncFlow, array: str) -> None:
        """Log why the first elements of an array failed."""
        with suppress(GlideMQError):
            for one in await client.ask(flow.array(array).failed(limit=LOGS_SHOWN)):
                name = f"{self.node}[{one.index}]"
                self.log.error("%s failed: %s (attempts: %d)", name, in_text(one.reason), one.attempts)
