"""The trigger for the end of a flow. Its state is plain JSON; nothing here blocks the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_glidemq.node_reports import FlowLog, NodeReports
from airflow_provider_glidemq.ownership import lease_in_seconds, owner_of
from airflow_provider_glidemq.parameters import Converted, OptionalSeconds, Seconds, in_seconds
from airflow_provider_glidemq.task_attempt import TaskKey, is_taken_over
from airflow_provider_glidemq.triggers.waiting import (
    OwnerRenewal,
    ProgressCallbacks,
    WaitingTrigger,
    module,
    to_its_end,
)
from glidemq_orchestrate import runs
from glidemq_orchestrate.errors import FlowNotFound, GlideMQError, Superseded

if TYPE_CHECKING:
    from airflow_provider_glidemq.triggers.shared.client import SharedClient
    from glidemq_orchestrate import AsyncFlow
    from glidemq_orchestrate.flows import FlowStatus


class _TakenOver(Exception):
    """A later try of the task has restarted the flow."""


@dataclass(kw_only=True, eq=False, repr=False)
class GlideMQFlowTrigger(WaitingTrigger):
    """Fires once, when a flow has ended, with its ``status``, ``flow_id``, ``generation`` and ``reason``.

    ``status`` is ``completed``, ``failed`` or ``cancelled``; ``timeout`` at the deadline; ``superseded`` if a
    later try of the task has restarted the flow; ``error`` if a retry would not help (see ``reason``). The
    trigger waits for an unreachable server. If another client restarts the flow, the trigger watches the new
    generation; a kill does not cancel that one.

    Args:
        flow_id: The id of the flow.
        glidemq_conn_id: The id of the connection.
        poll_interval: How often the state is read if no event arrives.
        deadline: When to give up, in seconds since the epoch; None: never.
        cancel_on_kill: Cancel the flow when the user marks the task as ended or clears it; with an owner,
            only if it still owns the flow.
        wait_for_flow: Wait for a flow that does not exist yet, instead of firing with ``error``.
        not_before: Do not fire earlier, in seconds since the epoch; None: as soon as the flow has ended.
        generation: The generation that the task has begun or joined; None: the first one that is found.
        owner: The owner of the flow, if it has not changed; None: the trigger renews no lease.
        lease: The flow is cancelled after the owner has not renewed its lease for this long; None: it keeps
            running.
        logging_interval: Time between lines about progress in the task log.
        show_logs: Show the log lines and the progress of nodes in the task log.
        show_progress: Show only the progress.
        callbacks: Called with progress; see ``callbacks``.
        is_masked: Payloads contain values that Airflow masks: show nothing of the nodes here; see
            ``node_reports``.
    """

    subject = "Flow {flow_id}"

    flow_id: str
    cancel_on_kill: bool = False
    wait_for_flow: bool = False
    generation: int | None = None
    owner: str | None = None
    lease: OptionalSeconds = Converted(None, lease_in_seconds)
    logging_interval: Seconds = Converted(10.0, in_seconds)
    show_logs: bool = False
    show_progress: bool = False
    callbacks: Sequence[str] = ()
    is_masked: bool = False

    def __post_init__(self) -> None:
        """Prepare the wait."""
        super().__post_init__()
        self.callbacks = list(self.callbacks)
        self._renewal = OwnerRenewal(self.lease)
        self._logged = (-1, 0.0)
        self._shown: tuple[int, FlowLog] | None = None

    async def on_kill(self) -> None:
        """Cancel the flow if the user ended the task. Airflow 3.1 and 3.2 do not call it: the lease expires.

        Airflow also calls this, wrongly, when a triggerer that was unresponsive finds that its triggers have
        moved to another triggerer. So this method checks the task first: a deferred task is watched by the
        other triggerer, a running task has attached to the flow again, and a task that is queued or waits for
        its retry is about to. None of them may lose its flow. After a clear, the next try may start before
        this call: only the generation that was watched here is cancelled.
        """
        if self.cancel_on_kill:
            await to_its_end(self._end_flow())

    # -- waiting ---------------------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        if self.cancel_on_kill and self.task_instance is not None:
            (await module("shared.tasks")).prepare(TaskKey.of(self.task_instance))

    async def _watch(self, client: SharedClient) -> dict[str, Any]:
        try:
            while True:
                flow = await self._find(client)
                status = await self._until_end(client, flow)
                if status.superseded_by is None:
                    return self._event(status.state.value, status.reason)
        except _TakenOver:
            return self._event("superseded", "a later try of the task has restarted the flow")

    async def _until_end(self, client: SharedClient, flow: AsyncFlow) -> FlowStatus:
        """Wait until this generation has ended or is no longer the current one."""
        events = client.events(flow.home)
        watcher = await events.watch(flow, often=self.logging_interval, seldom=self.poll_interval)
        shown, ended = self._flow_log(flow.generation), 0
        callbacks = ProgressCallbacks(self.callbacks, self.log)
        try:
            while True:
                pause = shown.seconds_left
                status = await watcher.wait(pause if self.owner is None else min(pause, self._renewal.pause))
                if status is not None:
                    if status.superseded_by is not None:
                        return status
                    if self._log_progress(status):
                        callbacks.progress(self.task_instance, status)
                    ended = status.total - status.open
                is_last = status is not None and status.state.is_terminal
                await runs.adrive(shown.poll(flow, ended, is_last=is_last, ask=client.ask))
                if status is not None and is_last:
                    return status
                if self.owner is not None:
                    await self._renewal.renew_if_due(client, flow)
        finally:
            events.unwatch(watcher)
            await callbacks.end()

    async def _poll_once_more(self) -> None:
        if self._shown is None:
            return
        shared = await module("shared.client")
        async with shared.shared_client(self.glidemq_conn_id) as client:
            if (flow := await client.find(self.flow_id, None)) is not None:
                await runs.adrive(self._shown[1].poll(flow, 0, is_last=True, ask=client.ask))

    def _flow_log(self, generation: int) -> FlowLog:
        """The log of the nodes; it survives reconnects, so that no line is shown twice."""
        if self._shown is None or self._shown[0] != generation:
            is_shown = not self.is_masked and (self.show_logs or self.show_progress)
            reports = NodeReports(self.show_logs) if is_shown else None
            made = FlowLog(self.log, self.logging_interval, reports, self.is_masked)
            self._shown = generation, made
        return self._shown[1]

    async def _find(self, client: SharedClient) -> AsyncFlow:
        owner = owner_of(self.owner, self.lease)
        while (flow := await client.find(self.flow_id, owner)) is None:
            if not self.wait_for_flow:
                raise FlowNotFound(f"flow {self.flow_id} is no longer on the server")
            await asyncio.sleep(self.poll_interval)
        if self.generation is not None and flow.generation > self.generation:
            ti, history = self.task_instance, await client.history(flow)
            if ti is not None and is_taken_over(TaskKey.of(ti).flow_id, self.generation, history):
                raise _TakenOver
            self.log.info("Flow %s was restarted: waiting for generation %d", self.flow_id, flow.generation)
        self.generation = flow.generation
        return flow

    def _log_progress(self, status: FlowStatus) -> bool:
        completed, at = self._logged
        now = time.monotonic()
        is_due = now - at >= self.logging_interval or status.state.is_terminal
        if status.completed == completed or not is_due:
            return False
        self._logged = (status.completed, now)
        self.log.info("%d/%d nodes completed", status.completed, status.total)
        return True

    def _about(self) -> dict[str, Any]:
        return {"flow_id": self.flow_id, "generation": self.generation, "is_masked": self.is_masked}

    # -- ending ----------------------------------------------------------------------------------------------

    async def _end_flow(self) -> None:
        try:
            reason = await self._reason()
        except Exception:
            self.log.exception("Cannot read the state of the task, so flow %s is not cancelled", self.flow_id)
            return
        if reason is None:
            self.log.info("The task continues, and so does flow %s", self.flow_id)
        else:
            await self._cancel(reason)

    async def _reason(self) -> str | None:
        """Why the flow ends with its task; None if a try of the task continues, or is about to start."""
        if self.task_instance is None:
            raise RuntimeError("the trigger has no task")
        tasks, key = await module("shared.tasks"), TaskKey.of(self.task_instance)
        state: str | None = (await tasks.states_of(key, [key.run_id])).get(key.run_id)
        if state is not None and state not in tasks.ENDED:
            return None
        with_its_run = await tasks.is_ended_with_its_run(key, state)
        found: str = tasks.reason_of("the Airflow task", state, with_its_run=with_its_run)
        return found

    async def _cancel(self, reason: str) -> None:
        shared = await module("shared.client")
        try:
            async with shared.shared_client(self.glidemq_conn_id) as client:
                before = await client.cancel(self.flow_id, reason, self.generation, owner=self.owner)
        except (Superseded, runs.NotOwned) as exc:
            self.log.info("Flow %s is not cancelled: %s", self.flow_id, exc)
        except GlideMQError:  # the reconciler, or the end of its lease, does it
            self.log.exception("Flow %s could not be cancelled", self.flow_id)
        else:
            self.log.info("Flow %s was %s and is cancelled: %s", self.flow_id, before.value, reason)
