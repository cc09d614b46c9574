"""The nodes that a task of a group has become in its flow: looked at, started over, ended by hand."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial

from airflow_provider_glidemq.task_groups.ends import is_over
from airflow_provider_glidemq.task_groups.flow import is_node_of
from airflow_provider_glidemq.triggers.shared import SharedClient
from glidemq_orchestrate import AsyncFlow, JobState, NodeStatus
from glidemq_orchestrate.errors import FlowEnded, NodeNotEnded, NodeNotFound, NodeNotRepeatable

logger = logging.getLogger(__name__)


class TaskNodes:
    """The nodes of one task in one generation of a flow.

    Args:
        client: The client through which the flow was found.
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
        """Those of the items, as they were last seen; the one that adds them, while it is alone."""
        items = [node for name, node in self._known.items() if name != self._task]
        return items if self._is_expanded and items else list(self._known.values())

    @property
    def is_over(self) -> bool:
        """Whether all had ended, as they were last seen."""
        maker = self._known.get(self._task)
        is_made = not (self._is_expanded and len(self._known) == 1 and maker)
        return is_over(self.shown) and (
            is_made or (maker is not None and maker.state is not JobState.COMPLETED)
        )

    async def read(self) -> Sequence[NodeStatus]:
        """All of them, as they are now.

        Raises:
            NodeNotFound: The flow has none of this task.
            Superseded, FlowNotFound, FlowExpired: As ``Flow.nodes``.
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

    async def look(self, *, is_last: bool = False) -> Sequence[NodeStatus]:
        """Those that had not ended, as they are now; with ``is_last`` the others too.

        Raises:
            Superseded, FlowNotFound, FlowExpired: As ``Flow.nodes``.
        """
        names = [name for name, node in self._known.items() if is_last or not node.state.is_terminal]
        if names:
            self._known |= {node.name: node for node in await self._client.ask(self.flow.nodes(names))}
        maker = self._known.get(self._task)
        if self._is_expanded and len(self._known) == 1 and maker and maker.state is JobState.COMPLETED:
            await self.read()  # it has added the others
        return self.shown

    async def start_over(self, names: Sequence[str], request: str, reason: str) -> None:
        """Run some of them again with all that follows; those that run are cancelled first.

        With the same request a repeat changes nothing, and completes what a killed process has begun.

        Raises:
            Superseded, FlowNotFound, FlowExpired: As ``Flow.rerun``.
        """
        generation = self.flow.generation
        running = [one.name for one in self.shown if one.name in names and not one.state.is_terminal]
        again = partial(self.flow.rerun, nodes=names, idempotency_key=request, generation=generation)
        try:
            # First of all: by a repeat the nodes that run may be those that the request has started.
            try:
                await self._client.ask(again())
            except NodeNotEnded:
                with suppress(FlowEnded):
                    ended = self.flow.cancel_node(nodes=running, reason=reason, generation=generation)
                    await self._client.ask(ended)
                await self._client.ask(again())
        except NodeNotEnded as exc:  # somebody else has started it over
            logger.info("not run again: %s", exc)
        except NodeNotRepeatable as exc:  # one that follows has added nodes
            logger.info("flow %s is restarted from %s: %s", self.flow.id, self._task, exc)
            made = [self._task] if self._task in self._known else names  # by a node, which makes them again
            await self._client.ask(
                self.flow.restart(nodes=made, idempotency_key=request, generation=generation)
            )

    async def read_others(self, tasks: Collection[str]) -> Mapping[str, Sequence[NodeStatus]]:
        """The nodes of other tasks, by task.

        Raises:
            Superseded, FlowNotFound, FlowExpired: As ``Flow.nodes``.
        """
        every = await self._client.ask(self.flow.nodes())
        return {task: [node for node in every if is_node_of(node.name, task)] for task in tasks}

    async def complete_others(self, tasks: Collection[str]) -> Sequence[str]:
        """Complete the nodes of other tasks that have failed or were skipped. Returns their names.

        Raises:
            Superseded, FlowNotFound, FlowExpired: As ``Flow.complete_node``.
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
        """End those that have not ended: ``success`` completes, ``skipped`` skips, all else cancels them.

        Raises:
            Superseded, FlowNotFound, FlowExpired, FlowEnded: As ``Flow.cancel_node``.
        """
        names = [node.name for node in self.shown if not node.state.is_terminal]
        flow, generation = self.flow, self.flow.generation
        if not names:
            return
        if state == "success":
            await self._client.ask(flow.complete_node(nodes=names, generation=generation))
        elif state == "skipped":
            await self._client.ask(flow.skip_node(nodes=names, reason=reason, generation=generation))
        else:
            await self._client.ask(flow.cancel_node(nodes=names, reason=reason, generation=generation))
