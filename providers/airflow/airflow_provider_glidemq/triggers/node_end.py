"""How a task of a group shows that its nodes have ended: their result, and what they have logged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_glidemq.exceptions import again_in_group
from airflow_provider_glidemq.node_reports import in_block
from airflow_provider_glidemq.results import check_size, longest_map
from airflow_provider_glidemq.task_groups.flow import ordered
from airflow_provider_glidemq.triggers.task_key import RETURN_VALUE
from glidemq_orchestrate import JobState
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.runs import in_text

if TYPE_CHECKING:
    from airflow_provider_glidemq.triggers.group_task import GroupTask
    from airflow_provider_glidemq.triggers.shared import SharedClient
    from glidemq_orchestrate import AsyncFlow, NodeStatus

LOG_LINES: Final = 100
LOGS_SHOWN: Final = 3  # of an expanded task: of the first nodes that failed


class EndedEarly(Exception):
    """The task ends in another way than its nodes."""

    def __init__(self, status: str, reason: str) -> None:
        self.status, self.reason = status, reason


@dataclass(frozen=True, slots=True)
class NodeEnd:
    """Shows the end of the nodes of one task.

    Attributes:
        node: The name of the node, or of the task that was expanded.
        is_expanded: Whether the task has a node for each item.
        is_mapped_over: Whether a task outside of the group is expanded over the result.
        pushes: What goes to XCom: ``value``, ``keys`` (each of a dict too) or ``none``.
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
            GlideMQResultTooLarge: It is too large for Airflow's database.
            EndedEarly: No task can be expanded over it.
        """
        results: Mapping[str, Any] = await client.ask(flow.results(names))
        advice = " Or set do_xcom_push=False on the task, if no task outside of the group needs it."
        check_size(flow.id, results, advice)
        value = ordered(results) if self.is_expanded else results.get(self.node)
        if self.pushes == "keys" and isinstance(value, dict):
            for key, part in value.items():
                await task.push(key, part)
        if value is not None:
            length = self._length(value) if self.is_mapped_over else None
            await task.push(RETURN_VALUE, value, length=length)

    def _length(self, value: Any) -> int:
        """How many tasks are made of a result that a task outside is expanded over."""
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
        """Log what the node has logged, or the first nodes that failed; never fails.

        Args:
            client: For the lines.
            flow: The flow.
            nodes: All nodes of the task.
            is_shown: The lines of nodes that completed are in the log of the task already.
        """
        failed = [node for node in nodes if node.state is JobState.FAILED]
        if not failed and is_shown:
            return
        chosen = [node.name for node in (failed[:LOGS_SHOWN] if self.is_expanded else nodes)]
        with suppress(GlideMQError):
            found = await client.ask(flow.logs(dict.fromkeys(chosen, -LOG_LINES), limit=LOG_LINES))
            for name, logs in found.items():
                if logs.lines:
                    self.log.info("%s had logged:\n%s", name, in_block(logs.lines))
        for node in failed[:LOGS_SHOWN]:
            reason = in_text(node.reason)
            self.log.error("%s failed: %s (attempts: %d)", node.name, reason, node.attempts)
        if failed:
            self.log.error("%s", again_in_group(flow.id))
