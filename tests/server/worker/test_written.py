"""Messages that handlers write: all of them are there before the result is accepted."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Context, EmbeddedServer, Handlers, JobOptions, Queue
from glidemq_orchestrate.errors import GlideMQError, InvalidJob, PayloadTooLarge, ServerBusy
from glidemq_orchestrate.jobs import output
from glidemq_orchestrate.worker import written_messages as written
from tests.server import process_handlers

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Eventually, RunWorker

MANY = 250


async def write_async(ctx: Context) -> None:
    process_handlers.write(ctx)


def registry(kind: str) -> Handlers:
    handlers = Handlers()
    function: Any = write_async if kind == "async" else process_handlers.write
    handlers.handler("work", process=kind == "process")(function)
    return handlers


def numbers_of(queue: Queue, job_id: str) -> list[int]:
    found = queue.messages(job_id, limit=10_000)
    assert [one.number for one in found] == list(range(1, len(found) + 1))
    return [int(one.text) for one in found]


@pytest.mark.parametrize("kind", ["plain", "async", "process"])
def test_all_messages_are_there_in_order_when_the_job_has_completed(
    queue: Queue, run_worker: RunWorker, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    real = output.write_messages

    def counted(of: Any, keys: Any, first: int, texts: Any, now_ms: int) -> Any:
        calls.append(len(texts))
        return real(of, keys, first, texts, now_ms)

    monkeypatch.setattr(written, "write_messages", counted)
    run_worker(["etl"], registry(kind))
    queue.add_and_wait("work", MANY, options=JobOptions(job_id="j"))
    assert numbers_of(queue, "j") == list(range(MANY))
    accepted = queue.accepted_attempts(["j", "absent"])
    assert accepted["j"].count == MANY
    assert set(accepted) == {"j"}
    if kind == "async":
        assert calls == [100, 100, 50]


def test_those_of_a_failed_attempt_do_not_count(queue: Queue, run_worker: RunWorker) -> None:
    def work(ctx: Context) -> None:
        ctx.write_message(f"attempt {ctx.attempt}")
        if ctx.attempt == 1:
            raise ValueError

    run_worker(["etl"], {"work": work})
    queue.add_and_wait("work", options=JobOptions(job_id="j", attempts=2))
    accepted = queue.accepted_attempts(["j"])["j"]
    found = queue.messages("j")
    assert [one.text for one in found] == ["attempt 1", "attempt 2"]
    assert [one.text for one in found if one.attempt == accepted.attempt] == ["attempt 2"]
    assert accepted.count == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_an_attempt_whose_messages_are_refused_fails(
    queue: Queue, run_worker: RunWorker, redis_client: Any, *, is_async: bool
) -> None:
    redis_client.set("glide:{etl}:gmo:messages:j", "not a stream")
    handlers = registry("async" if is_async else "plain")
    run_worker(["etl"], handlers)
    with pytest.raises(GlideMQError, match="WRONGTYPE"):
        queue.add_and_wait("work", 3, options=JobOptions(job_id="j"))
    assert queue.accepted_attempts(["j"]) == {}


def test_a_plain_handler_that_is_too_fast_waits_and_an_async_one_is_told(
    queue: Queue, run_worker: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(written, "MAX_UNSENT", 10)
    told: list[Exception] = []

    async def hasty(ctx: Context) -> None:
        try:
            process_handlers.write(ctx)
        except ServerBusy as exc:
            told.append(exc)

    run_worker(["etl"], {"plain": process_handlers.write, "hasty": hasty})
    queue.add_and_wait("plain", MANY, options=JobOptions(job_id="p"))
    assert numbers_of(queue, "p") == list(range(MANY))
    queue.add_and_wait("hasty", MANY, options=JobOptions(job_id="h"))
    assert numbers_of(queue, "h") == list(range(10))
    assert "10 messages of job h are unsent" in str(told[0])


def test_what_is_no_message_is_refused_at_once(queue: Queue, run_worker: RunWorker) -> None:
    refused: list[type[Exception]] = []

    def work(ctx: Context) -> None:
        odd: Any
        for odd in (7, "\udc80", "x" * 1_048_577):
            try:
                ctx.write_message(odd)
            except (InvalidJob, PayloadTooLarge) as exc:
                refused.append(type(exc))

    run_worker(["etl"], {"work": work})
    queue.add_and_wait("work", options=JobOptions(job_id="j"))
    assert refused == [InvalidJob, InvalidJob, PayloadTooLarge]
    assert queue.messages("j") == []


def test_an_outage_of_the_server_loses_and_doubles_none(
    tmp_path: Path, run_worker: RunWorker, eventually: Eventually
) -> None:
    data = tmp_path / "data"
    server = EmbeddedServer(data_dir=data).start()
    port = int(server.url.rsplit(":", 1)[1])
    half, back = threading.Event(), threading.Event()

    def work(ctx: Context) -> None:
        for number in range(MANY):
            if number == MANY // 2:
                half.set()
                back.wait(30)
            ctx.write_message(str(number))

    running = run_worker(["etl"], {"work": work}, url=server.url)
    with Queue("etl", server.url) as queue:
        queue.add("work", options=JobOptions(job_id="j"))
    assert half.wait(30)
    server.stop()
    back.set()
    again = EmbeddedServer(data_dir=data, port=port).start()
    try:
        with Queue("etl", again.url) as queue:
            eventually(lambda: queue.get_job("j").state == "completed", timeout=30)
            assert numbers_of(queue, "j") == list(range(MANY))
        running.stop()
    finally:
        again.stop()


def test_a_job_whose_messages_cannot_be_sent_is_given_back(tmp_path: Path, run_worker: RunWorker) -> None:
    """Else its result would be accepted without them."""
    data = tmp_path / "data"
    server = EmbeddedServer(data_dir=data).start()
    port = int(server.url.rsplit(":", 1)[1])
    begun, go, done = threading.Event(), threading.Event(), threading.Event()

    def work(ctx: Context) -> str:
        begun.set()
        go.wait(30)
        ctx.write_message("unsent")
        done.set()
        return "done"

    running = run_worker(["etl"], {"work": work}, url=server.url, may_leave_active=True)
    with Queue("etl", server.url) as queue:
        queue.add("work", options=JobOptions(job_id="j"))
    assert begun.wait(30)
    server.stop()
    go.set()
    assert done.wait(30)
    running.stop()
    with EmbeddedServer(data_dir=data, port=port) as again, Queue("etl", again.url) as queue:
        assert queue.get_job("j").state != "completed"
        assert queue.accepted_attempts(["j"]) == {}
