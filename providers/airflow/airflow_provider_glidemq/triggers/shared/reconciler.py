"""Ends the flows of tasks that have ended while no trigger watched them.

A trigger cancels its flow when its task is killed or marked. But a task may be marked before its trigger has
started, its process may die without a retry, and a DAG run may time out. The lease of such a flow lasts for a
day, to survive an outage of the triggerers. The reconciler ends the flow within minutes, while any trigger of
the same connection runs.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from airflow_provider_glidemq.group_flow import GROUP_LABEL, is_node_of
from airflow_provider_glidemq.task_attempt import Began, TaskKey, began
from airflow_provider_glidemq.triggers.shared.tasks import ENDED, states_in_run, states_of
from glidemq_orchestrate import AsyncFlowProducer
from glidemq_orchestrate.errors import GlideMQError, StateError
from glidemq_orchestrate.flows import FlowStatus
from glidemq_orchestrate.runs import NotOwned, adrive, cancel_owned, check_owned

logger = logging.getLogger(__name__)

FIRST_SECONDS: Final = 15.0
EACH_SECONDS: Final = 60.0
PAGE: Final = 1_000
MAX: Final = 200  # other triggerers watch most of the flows that are not watched here
MAX_FAILED: Final = 3  # failures in a row: Airflow is unavailable


class Reconciler:
    """Compares the running flows of Airflow tasks with the states of these tasks.

    It cancels a generation only if an Airflow task with ``cancel_on_kill`` has begun it and has ended; nodes
    of a task group, if the whole group has ended. A flow that a person has reopened no longer runs for the
    task, and is not touched. If Airflow does not know the task, the lease decides.
    """

    def __init__(self, producer: AsyncFlowProducer, watched: Callable[[], Collection[str]]) -> None:
        self._producer, self._watched = producer, watched

    async def run(self, ended: asyncio.Event) -> None:
        """Check once a minute until the event is set."""
        pause = FIRST_SECONDS
        while not ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await ended.wait()
                    return
            try:
                await self.reconcile()
            except Exception as exc:  # noqa: BLE001  of any class: Airflow's API, or the server; the next try is soon
                logger.debug("flows were not compared with their tasks: %s", exc)
            pause = EACH_SECONDS

    async def reconcile(self) -> None:
        """Cancel each running flow whose task has ended."""
        flows: dict[TaskKey, dict[TaskKey, FlowStatus]] = defaultdict(dict)
        checks: list[Callable[[], Awaitable[None]]] = []
        for by, status in await self._unwatched():
            if by.seen.get("group") and GROUP_LABEL in status.labels:
                checks.append(partial(self._check_group, by.key, status))
            else:
                flows[by.key._replace(run_id="")][by.key] = status
        checks += [partial(self._check_task, task, of_runs) for task, of_runs in flows.items()]
        await _each(checks)

    async def _check_task(self, task: TaskKey, of_runs: Mapping[TaskKey, FlowStatus]) -> None:
        states = await states_of(task, [key.run_id for key in of_runs])
        for key, status in of_runs.items():
            if (state := states.get(key.run_id)) in ENDED and status.id not in self._watched():
                await self._cancel(key, status, state)

    async def _check_group(self, launch: TaskKey, status: FlowStatus) -> None:
        """End the nodes of a task group that would outlive it: their tasks have failed or were skipped.

        Nodes of a successful task may run again after an upstream task was cleared.
        """
        group = status.labels[GROUP_LABEL]
        states = await states_in_run(launch, (), group)
        if not states or not ENDED.issuperset(states.values()) or status.id in self._watched():
            return
        tasks = [task.removeprefix(f"{group}.") for task, state in states.items() if state != "success"]
        try:
            flow = await self._producer.get(status.id)
            check_owned(flow.id, launch.owner, await flow.owners())
            names = [
                node.name
                for node in await flow.nodes()
                if not node.state.is_terminal and any(is_node_of(node.name, task) for task in tasks)
            ]
            if names:
                reason = f"the Airflow task group {group} has ended while no trigger watched it"
                await flow.cancel_node(nodes=names, reason=reason, generation=status.generation)
                logger.info("%d nodes of flow %s are cancelled: %s", len(names), status.id, reason)
        except (GlideMQError, NotOwned) as exc:
            logger.debug("flow %s is not changed: %s", status.id, exc)

    async def _unwatched(self) -> list[tuple[Began, FlowStatus]]:
        """The running flows that must end with their tasks, and that no trigger watches here."""
        found: list[tuple[Began, FlowStatus]] = []
        page, last = PAGE, None
        while page == PAGE:
            flows = await self._producer.list(
                state="running", label=("orchestrator", "airflow"), before=last, limit=PAGE
            )
            page, last = len(flows), flows[-1] if flows else None
            watched = self._watched()
            begun = [(by, one) for one in flows if one.id not in watched and (by := began(one))]
            found += [(by, one) for by, one in begun if by.seen.get("owned")]
        return found if len(found) <= MAX else random.sample(found, MAX)

    async def _cancel(self, task: TaskKey, status: FlowStatus, state: str | None) -> None:
        reason = f"its Airflow task has ended (state: {state}) while no trigger watched it"
        try:
            made = cancel_owned(self._producer, status.id, status.generation, reason, owner=task.owner)
            await adrive(made)
        except (StateError, NotOwned) as exc:  # it has ended, was restarted, or has another owner
            logger.debug("flow %s is not cancelled: %s", status.id, exc)
        except GlideMQError as exc:
            logger.warning("flow %s could not be cancelled: %s", status.id, exc)
        else:
            logger.info("flow %s is cancelled: %s", status.id, reason)


async def _each(checks: list[Callable[[], Awaitable[None]]]) -> None:
    """Run all checks, in any order. A failure, as for a group that the DAG no longer has, stops no other.

    Raises:
        Exception: Several checks in a row have failed.
    """
    failed = 0
    random.shuffle(checks)
    for check in checks:
        try:
            await check()
        except Exception as exc:
            failed += 1
            if failed == MAX_FAILED:
                raise
            logger.debug("a flow was not compared with its task: %s", exc)
        else:
            failed = 0
