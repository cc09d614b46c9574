"""The trigger for nodes of the flow of a task group. Its state is JSON; nothing blocks the event loop.

Each task of the group has one trigger. An XCom of the task launch, which Airflow removes when launch runs
again, holds the generation of the flow that the trigger may show. Other XComs hold the record of each try of
the task. They distinguish a task that was cleared alone, whose nodes must start over, from a task that was
cleared with launch or with an upstream task, which have already started its nodes over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from airflow.triggers.base import TaskFailedEvent, TaskSkippedEvent, TaskSuccessEvent, TriggerEvent

from airflow_provider_glidemq.exceptions import GlideMQResultTooLarge
from airflow_provider_glidemq.group_flow import (
    LAUNCH_SECONDS,
    EndedEarly,
    Seen,
    end_of,
    is_cleared_alone,
    may_be_marked,
    progress,
    to_start_over,
)
from airflow_provider_glidemq.node_reports import WITHHELD, FlowLog, NodeReports
from airflow_provider_glidemq.ownership import DAY, lease_in_seconds, owner_of
from airflow_provider_glidemq.parameters import Converted, OptionalSeconds, Seconds, in_seconds
from airflow_provider_glidemq.task_attempt import TaskKey
from airflow_provider_glidemq.triggers.nodes import NodeEnd, TaskNodes
from airflow_provider_glidemq.triggers.waiting import (
    OwnerRenewal,
    WaitingTrigger,
    module,
    rest_until,
    to_its_end,
)
from glidemq_orchestrate import JobState
from glidemq_orchestrate.errors import FlowEnded, GlideMQError, Superseded
from glidemq_orchestrate.runs import NotOwned, adrive, check_owned, in_text

if TYPE_CHECKING:
    from airflow_provider_glidemq.triggers.shared.client import SharedClient
    from airflow_provider_glidemq.triggers.shared.tasks import GroupTask
    from glidemq_orchestrate.flows import NodeStatus

TRIGGER: Final = "airflow_provider_glidemq.triggers.node.GlideMQNodeTrigger"
WATCH_SECONDS: Final = 1.0  # between checks while jobs of the queue end
_ENDS: Final = {
    "completed": TaskSuccessEvent,
    "skipped": TaskSkippedEvent,
}


@dataclass(kw_only=True, eq=False, repr=False)
class GlideMQNodeTrigger(WaitingTrigger):
    """Ends a task of a ``GlideMQTaskGroup`` when its nodes have ended, or fires once with their outcome.

    Failures to reach the server, or Airflow, count as temporary for some minutes. The trigger only shows a
    generation of the flow that launch, in its last run, has begun or continued.

    Args:
        node: The name of the node, or of the expanded task.
        launch: The id of the task that has submitted the flow.
        glidemq_conn_id: The connection.
        is_expanded: Whether the task has a node for each item.
        nodes_before: The upstream tasks in the group, and their nodes.
        group: The id of the group.
        ends_task: End the task; otherwise fire with ``status``, ``reason``, ``flow_id`` and ``nodes``.
        resumes_failed: Fire also if the task fails, so that a worker runs its callbacks.
        pushes: What to push to XCom if the trigger ends the task: ``value``, ``keys`` (also each key of a
            dict) or ``none``.
        is_needed: Whether a task outside the group waits for this one, so that a result that is too large for
            XCom fails it.
        is_mapped_over: Whether such a task is expanded over the result.
        cancel_on_kill: Whether marking the task ends its nodes, if the group still owns the flow.
        poll_interval: Seconds between reads of the state if no event arrives.
        logging_interval: Time between log lines about progress.
        lease: The flow is cancelled after no trigger of its group has renewed the lease for this long; None:
            no lease.
        show_logs: Show the log lines and progress of running nodes in the task log.
        not_before: Do not fire earlier, in seconds since the epoch; None: as soon as the nodes have ended.
        place: The waiting task: DAG, task, run and map index; None: as Airflow sets it.
        attempt: A number that only a clear of the task increases; None: the try number, for a task without
            retries.
    """

    subject = "Node {node}"

    node: str
    launch: str
    is_expanded: bool = False
    nodes_before: Mapping[str, str] = field(default_factory=dict)
    group: str | None = None
    ends_task: bool = False
    resumes_failed: bool = False
    pushes: str = "value"
    is_needed: bool = False
    is_mapped_over: bool = False
    cancel_on_kill: bool = True
    poll_interval: Seconds = Converted(10.0, in_seconds)
    logging_interval: Seconds = Converted(10.0, in_seconds)
    lease: OptionalSeconds = Converted(DAY, lease_in_seconds)
    show_logs: bool = False
    place: Sequence[Any] | None = None
    attempt: int | None = None
    deadline: None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Prepare the wait."""
        super().__post_init__()
        self._logged = ("", 0.0)
        self._renewal = OwnerRenewal(self.lease)
        self._is_masked = False
        self._has_run_before = False

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield the one event and return."""
        payload = await self._payload()
        await rest_until(self.not_before)
        is_told = self.resumes_failed and payload["status"] not in _ENDS
        if self.ends_task and not (is_told or self._is_cleared):
            yield _ENDS.get(payload["status"], TaskFailedEvent)()
        else:
            yield TriggerEvent(payload)  # type: ignore[no-untyped-call]

    @property
    def _is_cleared(self) -> bool:
        """Whether Airflow has started the task in the triggerer after an earlier end, also upstream_failed.

        Then Airflow keeps the time of that end and derives the duration from it, unless a worker ends the
        task.
        """
        ti = self.task_instance
        return self.place is None and ti is not None and (ti.try_number > 1 or self._has_run_before)

    # -- waiting ---------------------------------------------------------------------------------------------

    async def _watch(self, client: SharedClient) -> dict[str, Any]:
        while True:
            try:
                return await self._watch_generation(client)
            except Superseded as exc:
                self.log.info("%s, which this task shows now", exc)
            except EndedEarly as exc:
                return self._event(exc.status, exc.reason)

    async def _watch_generation(self, client: SharedClient) -> dict[str, Any]:
        task = await self._task()
        nodes = await self._find(client, task)
        await self._begin(task, nodes)
        if not nodes.is_over:
            await self._until_over(client, nodes)
        self._log_progress(nodes)
        self._has_run_before = nodes.flow.generation > 0 or any(node.reruns for node in nodes.shown)
        await self._remember(task, nodes)
        return await self._end(client, task, nodes)

    async def _find(self, client: SharedClient, task: GroupTask) -> TaskNodes:
        """The nodes in the generation that launch has begun or continued, or in a later one."""
        launched = await task.launched()
        self._is_masked = launched.get("is_masked", False)
        if self.node in launched["skipped"]:
            raise EndedEarly("skipped", f"{self.node} was skipped: a list that it expands over is empty")
        flow = await client.find(launched["flow_id"], owner_of(self._owner(task), self.lease))
        if flow is None or flow.generation < launched["generation"]:
            raise EndedEarly(
                "failed", f"flow {launched['flow_id']} is no longer on the server: clear {self.launch}"
            )
        nodes = TaskNodes(client, flow, self.node, is_expanded=self.is_expanded)
        await nodes.read()
        return nodes

    async def _until_over(self, client: SharedClient, nodes: TaskNodes) -> None:
        """Read the nodes whenever the counts of the flow change, until all of them have ended."""
        flow, events = nodes.flow, client.events(nodes.shown[0].queue)
        watcher = await events.watch(flow, often=WATCH_SECONDS, seldom=self.poll_interval)
        reports = NodeReports(logs=True) if self.show_logs and not self._is_masked else None
        shown = FlowLog(self.log, self.logging_interval, reports, self._is_masked)
        try:
            while not nodes.is_over:
                status = await watcher.wait(min(max(shown.seconds_left, 1.0), self._renewal.pause))
                if status is not None:
                    if status.superseded_by is not None:
                        raise Superseded(f"flow {flow.id} was restarted: generation {status.superseded_by}")
                    await nodes.poll(is_last=status.state.is_terminal)
                    self._log_progress(nodes)
                names, ended = [node.name for node in nodes.shown], _ended(nodes.shown)
                await adrive(
                    shown.poll(
                        flow, ended, names=names, read=nodes.poll, is_last=nodes.is_over, ask=client.ask
                    )
                )
                if self.cancel_on_kill:
                    await self._renewal.renew_if_due(client, flow)
        finally:
            events.unwatch(watcher)

    # -- beginning -------------------------------------------------------------------------------------------

    async def _begin(self, task: GroupTask, nodes: TaskNodes) -> None:
        """Start the nodes over if only this task was cleared; adopt marks of upstream tasks."""
        before, others = await task.seen(), list(self.nodes_before)
        if task.attempt > 1 and self.ends_task and (before is None or before.attempt < task.attempt):
            await task.forget()
        while self._is_cleared_alone(before, task, nodes) and await task.is_preceded(others):
            await asyncio.sleep(LAUNCH_SECONDS)
            await nodes.read()
        if self._is_cleared_alone(before, task, nodes):
            before = before or Seen(0, nodes.flow.generation, 0)
            # If this triggerer dies between the calls, the next one finds the record and repeats them.
            is_begun = before.starts_over == task.attempt
            names = before.again if is_begun else to_start_over(nodes.shown)
            await task.remember(replace(before, starts_over=task.attempt, again=names))
            part = f"{len(names)} of {len(nodes.shown)} nodes" if self.is_expanded else "it"
            self.log.info("%s was cleared: %s runs again, and the nodes after it", self.node, part)
            request = f"airflow:{task.place.flow_id}/try {task.attempt}"
            await nodes.start_over(names, request, "the Airflow task was cleared")
            await nodes.read()
        elif others and may_be_marked(nodes.shown):
            states = await task.states(others)
            marked = [node for task_id, node in self.nodes_before.items() if states.get(task_id) == "success"]
            if names := marked and await nodes.complete_others(marked):
                self.log.info("Completed, as in Airflow: %s", ", ".join(names[:10]))
                for node, ended in (await nodes.read_others(marked)).items():
                    await task.remember_mark(node, ended)
                await nodes.read()
        await self._remember(task, nodes)

    def _is_cleared_alone(self, before: Seen | None, task: GroupTask, nodes: TaskNodes) -> bool:
        return is_cleared_alone(before, self._seen(task, nodes), nodes.shown)

    def _seen(self, task: GroupTask, nodes: TaskNodes) -> Seen:
        return Seen.of(nodes.shown, attempt=task.attempt, generation=nodes.flow.generation)

    async def _remember(self, task: GroupTask, nodes: TaskNodes) -> None:
        await task.remember(self._seen(task, nodes))

    # -- ending ----------------------------------------------------------------------------------------------

    async def _end(self, client: SharedClient, task: GroupTask, nodes: TaskNodes) -> dict[str, Any]:
        shown, flow = nodes.shown, nodes.flow
        state, reason = end_of(shown)
        if self._is_masked and reason:
            reason = WITHHELD % (flow.id, self.node)
        made = NodeEnd(self.node, self.is_expanded, self.is_mapped_over, self.pushes, self.log)
        if not self._is_masked:
            await made.log_lines(client, flow, shown, is_shown=self.show_logs)
        if not self.is_expanded and shown[0].seconds is not None:
            self.log.info("%s ran for %.3f s (attempts: %d)", self.node, shown[0].seconds, shown[0].attempts)
        names = [node.name for node in shown if node.state is JobState.COMPLETED]
        if state is JobState.COMPLETED and self.ends_task and self.pushes != "none":
            try:
                await made.push(client, task, flow, names)
            except GlideMQResultTooLarge as exc:
                if self.is_needed:
                    return self._event("failed", str(exc))
                self.log.warning("The result stays in the flow: %s", exc)
        read = [] if self.ends_task else names  # by the worker; else the result is pushed
        return {**self._event(state.value, reason), "flow_id": flow.id, "nodes": read}

    def _log_progress(self, nodes: TaskNodes) -> None:
        if not self.is_expanded:
            return
        line, now = progress(nodes.shown), time.monotonic()
        text, at = self._logged
        if line != text and (nodes.is_over or now - at >= self.logging_interval):
            self._logged = (line, now)
            self.log.info(line)

    def _event(self, status: str, reason: str) -> dict[str, Any]:
        if status != "completed":
            self.log.info("%s: %s", status, in_text(reason))
        return super()._event(status, reason)

    # -- ended by users --------------------------------------------------------------------------------------

    async def on_kill(self) -> None:
        """End the nodes as a user has ended the task. Airflow 3.1 and 3.2 do not call this.

        Airflow also calls this, wrongly, for a trigger that has moved to another triggerer, and for a task
        that was cleared, which its next try handles. So this method checks the state of the task first.
        """
        if self.cancel_on_kill:
            await to_its_end(self._follow_mark())

    async def _follow_mark(self) -> None:
        tasks, shared, task = await module("shared.tasks"), await module("shared.client"), await self._task()
        task_id = task.place.task_id
        try:
            states = await task.states([task_id], group=self.group)
        except Exception:
            self.log.exception("Cannot read the state of the task, so its nodes continue")
            return
        state = states.get(task_id)
        if state is None or state not in tasks.ENDED:
            self.log.info("The task is %s, so its nodes continue", state)
            return
        with_its_run = await tasks.is_ended_with_its_run(task.place, state)
        reason = tasks.reason_of(f"the Airflow task {task_id}", state, with_its_run=with_its_run)
        has_ended = self.group and tasks.ENDED.issuperset(states.values())
        try:
            async with shared.shared_client(self.glidemq_conn_id) as client:
                nodes = await self._find(client, task)
                owners = await client.ask(nodes.flow.owners())
                check_owned(nodes.flow.id, self._owner(task) or "", owners)
                if not (has_ended and with_its_run):  # a flow whose nodes are all skipped has completed
                    await nodes.end(state, reason)
                if has_ended:
                    with suppress(FlowEnded):
                        await client.ask(nodes.flow.cancel(reason, generation=nodes.flow.generation))
                await task.remember_mark(self.node, await nodes.read())
        except (Superseded, FlowEnded, NotOwned, EndedEarly) as exc:
            self.log.info("%s is not ended: %s", self.node, exc)
        except GlideMQError:
            self.log.exception("%s could not be ended", self.node)
        else:
            self.log.info("%s: %s", self.node, reason)

    async def _task(self) -> GroupTask:
        """The waiting task, from Airflow or the operator."""
        made = await module("shared.tasks")
        ti, place, attempt = self.task_instance, self.place, self.attempt
        if ti is not None:
            place = TaskKey.of(ti)
            attempt = ti.try_number if attempt is None else attempt
        if place is None or attempt is None:
            raise RuntimeError("the trigger has no task")
        found: GroupTask = made.GroupTask(TaskKey(*place), attempt, self.launch, self.node)
        return found

    def _owner(self, task: GroupTask) -> str | None:
        """The owner that launch has set; None: the flow keeps running without the task."""
        return task.place.beside(self.launch).owner if self.cancel_on_kill else None


def _ended(nodes: Sequence[NodeStatus]) -> int:
    return sum(node.state.is_terminal for node in nodes)
