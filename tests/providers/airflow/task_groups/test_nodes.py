"""The nodes of a task of a group, on a real server: looked at, started over, ended by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from airflow_provider_glidemq.group_flow import Seen, is_cleared_alone
from airflow_provider_glidemq.triggers.nodes import TaskNodes
from airflow_provider_glidemq.triggers.shared.client import shared_client

from glidemq_orchestrate import FlowNode, FlowSpec, Worker
from glidemq_orchestrate.errors import NodeNotFound, Superseded
from glidemq_orchestrate.jobs.states import JobState
from tests.providers.airflow.builders import QUEUE, Valkey

Submit = Callable[..., Any]


def node(name: str, job: str, *after: str) -> FlowNode:
    return FlowNode(name, queue=QUEUE, job=job, after=after)


LINE = [node("a", "count"), node("b", "count", "a"), node("c", "count", "b")]


@asynccontextmanager
async def nodes_of(
    valkey: Valkey, nodes: list[FlowNode], task: str, *, is_expanded: bool = False
) -> AsyncIterator[TaskNodes]:
    """The nodes of a task in a flow that has been submitted."""
    with valkey.producer() as producer:
        await asyncio.to_thread(producer.submit, FlowSpec("f", nodes), flow_id="f")
    async with shared_client("glidemq_default") as client:
        flow = await client.find("f")
        assert flow is not None
        yield TaskNodes(client, flow, task, is_expanded=is_expanded)


async def over(nodes: TaskNodes) -> None:
    """Wait until the nodes have ended, and then the flow."""
    async with asyncio.timeout(20):
        await nodes.read()
        while not nodes.is_over:
            await asyncio.sleep(0.02)
            await nodes.poll()
        await nodes.flow.wait()


async def test_a_node_is_seen_to_end(valkey: Valkey, worker: Worker) -> None:
    async with nodes_of(valkey, [node("a", "wait"), node("b", "echo", "a")], "b") as nodes:
        assert [one.state for one in await nodes.read()] == [JobState.WAITING_CHILDREN]
        assert not nodes.is_over
        valkey.gate.set()
        await over(nodes)
        assert [one.state for one in nodes.shown] == [JobState.COMPLETED]


async def test_a_task_that_the_flow_does_not_have_is_told(valkey: Valkey, worker: Worker) -> None:
    async with nodes_of(valkey, LINE, "x") as nodes:
        with pytest.raises(NodeNotFound):
            await nodes.read()
    async with nodes_of(valkey, LINE, "x", is_expanded=True) as nodes:
        with pytest.raises(NodeNotFound, match="has no node x"):
            await nodes.read()


async def test_it_is_started_over_with_what_follows_once_for_each_request(
    valkey: Valkey, worker: Worker
) -> None:
    async with nodes_of(valkey, LINE, "b") as nodes:
        await over(nodes)
        for request in ("try 2", "try 2", "try 3"):
            await nodes.start_over(["b"], request, "cleared")
            await over(nodes)
    assert valkey.ran == ["a", "b", "c", "b", "c", "b", "c"]


async def test_one_that_runs_is_stopped_and_started_over(valkey: Valkey, worker: Worker) -> None:
    async with nodes_of(valkey, [node("a", "wait"), node("b", "count", "a")], "a") as nodes:
        async with asyncio.timeout(20):
            while (await nodes.read())[0].state is not JobState.ACTIVE:  # noqa: ASYNC110  there is no event
                await asyncio.sleep(0.02)
        run = nodes.shown[0].reruns
        await nodes.start_over(["a"], "try 2", "cleared")
        assert (await nodes.read())[0].reruns > run
        valkey.gate.set()
        await over(nodes)
        assert (await nodes.flow.status()).state == "completed"


async def test_only_open_nodes_of_an_expanded_task_are_read_again(
    valkey: Valkey, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [node("a[0]", "echo"), node("a[1]", "wait"), node("ab", "echo")]
    async with nodes_of(valkey, tasks, "a", is_expanded=True) as nodes:
        async with asyncio.timeout(20):
            while all(one.state is not JobState.COMPLETED for one in await nodes.read()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        asked: list[list[str]] = []
        read = nodes.flow.nodes

        async def noted(names: Any = None) -> Any:
            asked.append(names)
            return await read(names)

        monkeypatch.setattr(nodes.flow, "nodes", noted)
        assert [one.name for one in await nodes.poll()] == ["a[0]", "a[1]"]
        assert asked == [["a[1]"]]
        valkey.gate.set()
        await over(nodes)


async def test_nodes_that_a_running_one_adds_are_those_of_the_task(valkey: Valkey, worker: Worker) -> None:
    @worker.handler("adds")
    def adds(ctx: Any) -> int:
        ctx.flow.add_nodes([node("a[0]", "wait"), node("a[1]", "echo")])
        return 2

    async with nodes_of(valkey, [node("a", "adds"), node("z", "wait")], "a", is_expanded=True) as nodes:
        await nodes.read()
        async with asyncio.timeout(20):
            while len(await nodes.poll()) < 2:
                assert not nodes.is_over
                await asyncio.sleep(0.02)
        assert [one.name for one in nodes.shown] == ["a[0]", "a[1]"]
        valkey.gate.set()
        await over(nodes)


async def test_where_a_later_node_has_added_nodes_the_flow_begins_anew(
    valkey: Valkey, worker: Worker
) -> None:
    """Those that it keeps are not taken for cleared ones that have started over."""
    tasks = [node("other", "count"), node("a", "count"), node("b", "grow", "a")]
    async with nodes_of(valkey, tasks, "a") as nodes, nodes_of(valkey, tasks, "other") as others:
        await over(nodes)
        await over(others)
        before = Seen.of(others.shown, attempt=1, generation=others.flow.generation)
        await nodes.start_over(["a"], "try 2", "cleared")
        assert nodes.flow.generation == 1
        await over(nodes)
        with pytest.raises(Superseded):
            await others.read()
    async with nodes_of(valkey, tasks, "other") as others:
        await over(others)
        after = Seen.of(others.shown, attempt=2, generation=others.flow.generation)
        assert sorted(valkey.ran) == ["a", "a", "other"]
        assert is_cleared_alone(before, after, others.shown), (
            "it was carried over, so it would show an old end"
        )


@pytest.mark.parametrize(
    ("state", "ends", "follows"),
    [
        ("success", "completed", "completed"),
        ("skipped", "skipped", "skipped"),
        ("failed", "failed", "failed"),
    ],
)
async def test_open_nodes_end_as_the_task_was_marked(
    valkey: Valkey, worker: Worker, state: str, ends: str, follows: str
) -> None:
    async with nodes_of(valkey, [node("a", "wait"), node("b", "echo", "a")], "a") as nodes:
        await nodes.read()
        await nodes.end(state, "marked by a user")
        await over(nodes)
        assert {one.name: one.state.value for one in await nodes.flow.nodes()} == {"a": ends, "b": follows}
        await nodes.end("failed", "a repeat changes nothing")
        assert nodes.shown[0].state.value == ends


async def test_nodes_of_tasks_that_were_marked_successful_are_completed(
    valkey: Valkey, worker: Worker
) -> None:
    tasks = [node("a", "fail"), node("x[0]", "fail"), node("b", "count", "a", "x[0]"), node("other", "fail")]
    async with nodes_of(valkey, tasks, "b") as nodes:
        await over(nodes)
        assert nodes.shown[0].reason.startswith("upstream failed: ")
        assert await nodes.complete_others(["a", "x"]) == ["a", "x[0]"]
        await over(nodes)
        assert nodes.shown[0].state is JobState.COMPLETED
        assert await nodes.complete_others(["a", "x"]) == []
        assert (await nodes.flow.node("other")).state is JobState.FAILED
