"""Middleware of users: what it sees of calls of handlers, and what it can do about them."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Context, Handlers, JobOptions, JobState, Middleware, Queue, RetryLater, Worker
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.worker import Execution, JobEvent
from glidemq_orchestrate.worker.handlers.middleware import Proceed
from tests.server import process_handlers

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker

SOON = timedelta(seconds=20)
tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


class Noting(Middleware):
    """Records what it sees."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen = name, seen

    async def around(self, execution: Execution, proceed: Proceed) -> Any:
        self.seen.append(f"{self.name} before {execution.contexts[0].name}")
        try:
            return await proceed()
        except BaseException as exc:
            self.seen.append(f"{self.name} saw {type(exc).__name__}")
            raise
        finally:
            self.seen.append(f"{self.name} after")

    def on_event(self, event: JobEvent) -> None:
        self.seen.append(f"{self.name} heard {event.kind}")


@pytest.fixture
def queue(url: str) -> Queue:
    return Queue("etl", url)


async def double(ctx: Context) -> int:
    return int(ctx.data) * 2


def test_the_first_is_the_outermost(queue: Queue, run_worker: RunWorker, eventually: Eventually) -> None:
    seen: list[str] = []
    run_worker(["etl"], {"double": double}, middleware=[Noting("a", seen), Noting("b", seen)])
    with queue:
        assert queue.add_and_wait("double", 4, timeout=SOON) == 8
    eventually(lambda: "b heard completed" in seen)
    assert seen == [
        "a heard active", "b heard active",
        "a before double", "b before double", "b after", "a after",
        "a heard completed", "b heard completed",
    ]  # fmt: skip


def plain(ctx: Context) -> str:
    return f"{tenant.get()} in {threading.current_thread() is threading.main_thread()}"


def batch(contexts: list[Context]) -> Sequence[str]:
    return [f"{tenant.get()}, {len(contexts)}" for _ in contexts]


class OfTenant(Middleware):
    async def around(self, execution: Execution, proceed: Proceed) -> Any:
        token = tenant.set(str(execution.contexts[0].data))
        try:
            return await proceed()
        finally:
            tenant.reset(token)


def test_context_variables_reach_handlers_of_every_kind(
    queue: Queue, url: str, run_worker: RunWorker
) -> None:
    handlers = Handlers()
    handlers.handler("plain")(plain)
    handlers.batch_handler("batch", size=2)(batch)
    handlers.handler("apart", process=True)(process_handlers.measure)
    run_worker(["etl"], handlers, middleware=[OfTenant()])
    with queue:
        assert queue.add_and_wait("plain", "acme", timeout=SOON) == "acme in False"
        assert queue.add_and_wait("batch", "acme", timeout=SOON) == "acme, 1"
        assert queue.add_and_wait("apart", timeout=SOON)


class Steering(Middleware):
    """Decides by the data of the job what is to become of it."""

    def applies_to(self, execution: Execution) -> bool:
        return bool(execution.contexts[0].data != "leave alone")

    async def around(self, execution: Execution, proceed: Proceed) -> Any:
        context = execution.contexts[0]
        match context.data:
            case "answer":
                return "from the cache"
            case "later" if context.attempt == 1:
                raise RetryLater(timedelta(milliseconds=10))
            case "wrong":
                raise ValueError("not today")
        return f"changed {await proceed()}"


async def echo(ctx: Context) -> Any:
    return ctx.data


@pytest.mark.parametrize(
    ("data", "result"),
    [
        ("answer", "from the cache"),
        ("later", "changed later"),
        ("as it is", "changed as it is"),
        ("leave alone", "leave alone"),
    ],
)
def test_it_answers_itself_retries_or_changes_results(
    queue: Queue, run_worker: RunWorker, data: str, result: str
) -> None:
    run_worker(["etl"], {"echo": echo}, middleware=[Steering()])
    with queue:
        options = JobOptions(attempts=2)
        assert queue.add_and_wait("echo", data, options=options, timeout=SOON) == result


def test_what_it_raises_fails_the_attempt(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    run_worker(["etl"], {"echo": echo}, middleware=[Steering()])
    with queue:
        job_id = queue.add("echo", "wrong")
        eventually(lambda: queue.get_job(job_id).state is JobState.FAILED)
        assert queue.get_job(job_id).failed_reason == "ValueError: not today"


def test_it_sees_that_a_time_limit_ended_the_handler(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    seen: list[str] = []

    def hang(ctx: Context) -> None:
        ctx.cancelled.wait(20)

    run_worker(["etl"], {"hang": hang}, middleware=[Noting("a", seen)])
    with queue:
        queue.add("hang", options=JobOptions(timeout=timedelta(milliseconds=50)))
        eventually(lambda: "a heard failed" in seen)
    assert "a saw TimeoutError" in seen


class Raising(Middleware):
    """Breaks where nothing can change the outcome of a job any more."""

    def on_event(self, event: JobEvent) -> None:
        raise SystemExit(event.kind)


def test_one_that_raises_about_the_end_changes_nothing(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    seen: list[str] = []
    run_worker(["etl"], {"double": double}, middleware=[Raising(), Noting("b", seen)])
    with queue:
        for _ in range(3):
            assert queue.add_and_wait("double", 1, timeout=SOON) == 2
    eventually(lambda: seen.count("b heard completed") == 3)


class Deaf(Middleware):
    """Its property raises, which is asked at every event."""

    def on_event(self, event: JobEvent) -> None:
        raise AssertionError("never called")

    @property
    def receives_events(self) -> bool:
        raise SystemExit(1)


def test_one_that_raises_when_asked_what_it_hears_changes_nothing(
    queue: Queue, run_worker: RunWorker, caplog: pytest.LogCaptureFixture
) -> None:
    run_worker(["etl"], {"double": double}, middleware=[Deaf()], concurrency=1)
    with queue:
        for _ in range(3):  # more than there are slots
            assert queue.add_and_wait("double", 1, timeout=SOON) == 2
    assert caplog.text.count("Deaf.receives_events raised") == 1


class Plain(Middleware):
    def around(self, execution: Execution, proceed: Proceed) -> Any:
        return proceed()


class Late(Middleware):
    async def on_event(self, event: JobEvent) -> None:  # type: ignore[override]
        pass


def test_what_cannot_work_is_refused_when_the_worker_is_made() -> None:
    cases: list[tuple[Any, str]] = [
        (Noting("a", []), "a list"),
        (None, "a list"),
        ([Noting], "instances"),
        ([Plain()], "Plain.around must be an async method"),
        ([Late()], "Late.on_event must not be async"),
    ]
    for given, expected in cases:
        with pytest.raises(ConfigurationError, match=expected):
            Worker("valkey://127.0.0.1:1", queues=["etl"], middleware=given)


def test_any_iterable_of_middleware_will_do() -> None:
    one = Noting("a", [])
    assert Worker("valkey://127.0.0.1:1", queues=["etl"], middleware=iter([one]))._middleware == (one,)


def test_an_argument_of_the_wrong_kind_is_refused_by_name() -> None:
    second = timedelta(seconds=1)
    wrong: list[tuple[str, Any]] = [
        ("concurrency", "3"), ("concurrency", 0), ("prefetch", "x"), ("prefetch", -1), ("rate_limit", 5),
        ("rate_limit", (0, second)), ("rate_limit", (1, 5)), ("lease", "5"),
        ("lease", timedelta(0)), ("shutdown_timeout", "5"), ("shutdown_timeout", -second),
        ("token_limit", 5), ("handlers", 5), ("max_stalled", "3"), ("max_stalled", -1),
    ]  # fmt: skip
    for name, value in wrong:
        given: dict[str, Any] = {name: value}
        with pytest.raises(ConfigurationError, match=name):
            Worker("valkey://127.0.0.1:1", queues=["etl"], **given)


class Exiting(Middleware):
    async def around(self, execution: Execution, proceed: Proceed) -> Any:
        await proceed()
        raise SystemExit(3)


def test_one_that_exits_fails_its_job_and_nothing_else(
    queue: Queue, run_worker: RunWorker, eventually: Eventually
) -> None:
    run_worker(["etl"], {"double": double}, middleware=[Exiting()])
    with queue:
        ids = [queue.add("double", 1) for _ in range(20)]
        eventually(lambda: all(queue.get_job(job_id).state is JobState.FAILED for job_id in ids))
        assert queue.get_job(ids[0]).failed_reason == "SystemExit: 3"


def test_a_class_is_not_a_middleware() -> None:
    with pytest.raises(ConfigurationError, match="middleware must be instances of Middleware, got <class"):
        Worker("valkey://h", queues=["etl"], middleware=[Noting])  # type: ignore[list-item]
