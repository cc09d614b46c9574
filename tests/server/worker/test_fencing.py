"""What a handler knows of its attempt: a number that only grows, a token, and whether it owns its job."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Context, FlowNode, FlowProducer, FlowSpec, Handlers, JobOptions, Queue
from glidemq_orchestrate.errors import LeaseLost
from tests.server import process_handlers

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import RunWorker

KEY = "glide:{etl}:job:j"


async def check_async(ctx: Context) -> Any:
    await ctx.check_owner_async()
    await asyncio.to_thread(process_handlers.disown, ctx)
    try:
        await ctx.check_owner_async()
    except LeaseLost as exc:
        await asyncio.to_thread(process_handlers.restore, ctx)
        return str(exc)
    return "not told"


@pytest.mark.parametrize("kind", ["plain", "async", "process"])
@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("gmo:token", "another", "no longer owns job j, which is active"),
        ("processedOn", "1", "no longer owns job j, which is active"),
        ("state", "waiting", "no longer owns job j, which is waiting"),
        ("revoked", "1", "job j was cancelled"),
    ],
)
def test_a_handler_is_told_that_it_does_not_own_its_job(  # noqa: PLR0917  fixtures
    queue: Queue,
    url: str,
    run_worker: RunWorker,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    field: str,
    value: str,
    said: str,
) -> None:
    # A heartbeat while the job is disowned would tell the worker too, and that ends the handler.
    monkeypatch.setattr("glidemq_orchestrate.worker.renewing.MAX_BEAT_SECONDS", 60.0)
    handlers = Handlers()
    function: Any = check_async if kind == "async" else process_handlers.check
    handlers.handler("work", process=kind == "process")(function)
    run_worker(["etl"], handlers, lease=timedelta(minutes=5))
    data = {"url": url, "key": KEY, "field": field, "value": value}
    assert said in str(queue.add_and_wait("work", data, options=JobOptions(job_id="j")))


@pytest.mark.parametrize("kind", ["plain", "process"])
def test_each_attempt_has_a_larger_epoch_and_a_token_of_its_own(
    queue: Queue, flows: FlowProducer, run_worker: RunWorker, tmp_path: Path, kind: str
) -> None:
    handlers = Handlers()
    handlers.handler("work", process=kind == "process")(process_handlers.note)
    run_worker(["etl"], handlers)
    path = tmp_path / "attempts"
    queue.add_and_wait("work", {"path": str(path), "fails": 2}, options=JobOptions(attempts=3))
    node = FlowNode("n", queue="etl", job="work", data={"path": str(path), "fails": 0})
    for on_existing in ("attach", "restart"):
        flows.submit(FlowSpec("f", [node]), flow_id="f", on_existing=on_existing).wait()
    flows.get("f").rerun("n")
    flows.get("f").wait()
    noted = [line.split() for line in path.read_text().splitlines()]
    epochs, tokens = [int(epoch) for epoch, _ in noted], [token for _, token in noted]
    assert len(noted) == 6
    assert epochs == sorted(set(epochs))
    assert len(set(tokens)) == 6
    assert all(tokens)


def test_a_thread_that_outlives_its_handler_owns_nothing(queue: Queue, run_worker: RunWorker) -> None:
    told: list[str] = []
    over, checked = threading.Event(), threading.Event()

    def check(ctx: Context) -> None:
        over.wait(20)
        try:
            ctx.check_owner()
        except LeaseLost as exc:
            told.append(str(exc))
        checked.set()

    run_worker(["etl"], {"work": lambda ctx: threading.Thread(target=check, args=[ctx]).start()})
    queue.add_and_wait("work", options=JobOptions(job_id="j"))
    over.set()
    assert checked.wait(20)
    assert told == ["this attempt of job j has ended"]


def test_an_async_handler_may_not_block_its_loop(queue: Queue, run_worker: RunWorker) -> None:
    async def work(ctx: Context) -> str:
        try:
            ctx.check_owner()
        except RuntimeError as exc:
            return str(exc)
        return ""

    run_worker(["etl"], {"work": work})
    assert "await check_owner_async" in str(queue.add_and_wait("work"))


@pytest.mark.parametrize(
    ("field", "value", "is_lost"), [("gmo:token", "another", True), ("revoked", "1", False)]
)
def test_a_handler_is_told_whether_its_job_is_another_attempt_s(  # noqa: PLR0917  fixtures
    queue: Queue,
    run_worker: RunWorker,
    redis_client: Any,
    field: str,
    value: str,
    is_lost: bool,  # noqa: FBT001
) -> None:
    told: list[bool] = []
    ended = threading.Event()

    def work(ctx: Context) -> None:
        redis_client.hset(KEY, field, value)
        if ctx.cancelled.wait(20):
            told.append(ctx.cancelled.is_lost)
        ended.set()

    run_worker(["etl"], {"work": work}, lease=timedelta(seconds=2))
    queue.add("work", options=JobOptions(job_id="j"))
    assert ended.wait(30)
    assert told == [is_lost]
