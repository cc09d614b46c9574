"""The registry of user code."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Handlers, RetryLater, Suspend, Unrecoverable, Worker
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.worker.handlers.context import Cancelled

if TYPE_CHECKING:
    from glidemq_orchestrate import Context
    from glidemq_orchestrate.worker import JobEvent


def one(ctx: Context) -> int:
    return 1


def two(ctx: Context) -> int:
    return 2


def function_of(handlers: Handlers, name: str) -> Any:
    found = handlers.get(name)
    return found and found.function


def test_a_handler_is_found_by_its_name_and_stays_callable() -> None:
    handlers = Handlers()
    assert handlers.handler("b")(one) is one
    handlers.handler("a")(two)
    assert function_of(handlers, "b") is one
    assert handlers.get("c") is None
    assert handlers.names == ["a", "b"]


def test_a_name_has_one_handler_and_the_same_twice_is_fine() -> None:
    handlers = Handlers()
    handlers.handler("a")(one)
    handlers.handler("a")(one)
    with pytest.raises(ConfigurationError, match="'a' has a handler already"):
        handlers.handler("a")(two)
    assert function_of(handlers, "a") is one


def test_a_handler_needs_a_name() -> None:
    with pytest.raises(ConfigurationError, match="needs a name"):
        Handlers().handler("")


def test_including_takes_over_handlers_and_hooks_once() -> None:
    def hook() -> None: ...

    some, all_of_them = Handlers(), Handlers()
    some.handler("a")(one)
    assert some.on_start(hook) is hook
    assert some.on_stop(hook) is hook
    all_of_them.include(some)
    all_of_them.include(some)
    assert function_of(all_of_them, "a") is one
    assert all_of_them.start_hooks == all_of_them.stop_hooks == [hook]


def test_including_another_handler_for_a_name_is_refused() -> None:
    some, others = Handlers(), Handlers()
    some.handler("a")(one)
    others.handler("a")(two)
    with pytest.raises(ConfigurationError, match="'a'"):
        some.include(others)


def test_the_signals_carry_their_message() -> None:
    later = RetryLater(timedelta(seconds=5), "busy")
    assert (later.delay, str(later)) == (timedelta(seconds=5), "busy")
    assert str(RetryLater(timedelta(0))) == "its handler raised RetryLater"
    assert str(Unrecoverable("no such table")) == "no such table"


def test_a_retry_needs_a_duration(subtests: pytest.Subtests) -> None:
    wrong: list[Any] = [True, None, "5", timedelta(seconds=-1)]
    for delay in wrong:
        with subtests.test(delay=delay), pytest.raises((TypeError, ValueError), match="delay"):
            RetryLater(delay)


async def three(ctx: Context) -> int:
    return 3


def many(contexts: list[Context]) -> list[int]:
    return [1 for _ in contexts]


def test_a_handler_knows_where_it_runs() -> None:
    handlers = Handlers()
    handlers.handler("thread")(one)
    handlers.handler("process", process=True)(two)
    handlers.handler("loop")(three)
    handlers.batch_handler("batch", size=7, wait=timedelta(seconds=2))(many)
    found = {name: handlers.get(name) for name in handlers.names}
    assert {name for name, registered in found.items() if registered and registered.is_async} == {"loop"}
    assert {name for name, registered in found.items() if registered and registered.in_process} == {"process"}
    assert handlers.has_processes
    assert handlers.largest_batch == 7
    batch = found["batch"]
    assert batch is not None
    assert batch.batch_wait == 2.0


def test_an_async_function_runs_in_no_process() -> None:
    with pytest.raises(ConfigurationError, match="'a' is async"):
        Handlers().handler("a", process=True)(three)


def test_a_batch_has_a_size_and_a_wait(subtests: pytest.Subtests) -> None:
    for size, seconds in ((0, 1), (1_001, 1), (5, -1)):
        with subtests.test(size=size), pytest.raises(ConfigurationError, match="of a batch"):
            Handlers().batch_handler("a", size=size, wait=timedelta(seconds=seconds))


def test_a_backoff_needs_a_name_of_its_own(subtests: pytest.Subtests) -> None:
    for name in ("", "fixed", "exponential"):
        with (
            subtests.test(name=name),
            pytest.raises(ConfigurationError, match=r"a backoff needs a name|cannot be reg"),
        ):
            Handlers().backoff(name)(lambda failures, error: timedelta(0))


def test_including_takes_over_backoffs_and_job_hooks_once() -> None:
    some, all_of_them = Handlers(), Handlers()
    strategy = some.backoff("mine")(lambda failures, error: timedelta(0))
    hook = some.on_job(lambda event: None)
    all_of_them.include(some)
    all_of_them.include(some)
    assert all_of_them.backoffs == {"mine": strategy}
    assert all_of_them.job_hooks == [hook]
    other = Handlers()
    other.backoff("mine")(lambda failures, error: timedelta(1))
    with pytest.raises(ConfigurationError, match="'mine' is registered twice"):
        all_of_them.include(other)


def test_a_cancellation_is_seen_by_asking_and_by_waiting() -> None:
    cancelled = Cancelled()
    assert not cancelled
    assert not cancelled.is_set()
    assert not cancelled.wait(0)
    cancelled.set()
    assert cancelled
    assert cancelled.is_set()
    assert cancelled.wait(0)
    late = Cancelled()
    late.set()
    assert late.wait(0)


def test_a_suspension_cannot_end_before_it_begins() -> None:
    with pytest.raises(ValueError, match="timeout of Suspend"):
        Suspend("x", timedelta(0))


def test_the_name_of_a_function_is_the_job_name_unless_another_is_given() -> None:
    handlers = Handlers()
    assert handlers.handler(one) is one
    assert handlers.handler()(two) is two
    assert handlers.handler(three, timeout=60) is three
    assert handlers.batch_handler(size=3)(many) is many
    assert handlers.names == ["many", "one", "three", "two"]
    assert handlers.registered["three"].timeout == timedelta(minutes=1)
    handlers.handler("other", timeout=timedelta(seconds=5))(one)
    assert handlers.registered["other"].timeout == timedelta(seconds=5)


def test_a_backoff_is_named_like_its_function() -> None:
    handlers = Handlers()

    @handlers.backoff
    def patient(failures: int, error: BaseException) -> float:
        return failures * 60.0

    handlers.backoff("slow")(patient)
    assert handlers.backoffs == {"patient": patient, "slow": patient}


class Unnamed:
    def __call__(self, ctx: Context) -> int:
        return 1


def test_a_function_without_a_name_needs_a_job_name(subtests: pytest.Subtests) -> None:
    nameless: list[Any] = [lambda ctx: ctx.data, partial(one), Unnamed()]
    for function in nameless:
        with subtests.test(function=function):
            handlers = Handlers()
            with pytest.raises(ConfigurationError, match=r'has no name. Fix: give one, such as "clean"'):
                handlers.handler(function)
            with pytest.raises(ConfigurationError, match="has no name"):
                handlers.handler()(function)
            with pytest.raises(ConfigurationError, match="has no name"):
                handlers.batch_handler(size=2)(function)
            assert handlers.handler("given")(function) is function


def test_a_name_is_text(subtests: pytest.Subtests) -> None:
    wrong: list[Any] = [5, b"clean", ["clean"]]
    for name in wrong:
        with subtests.test(name=name), pytest.raises(ConfigurationError, match="must be str"):
            Handlers().handler(name)


def test_the_timeout_of_a_handler_is_a_duration(subtests: pytest.Subtests) -> None:
    wrong: list[Any] = [0, -1, "60", float("nan")]
    for timeout in wrong:
        with subtests.test(timeout=timeout):
            with pytest.raises(ConfigurationError, match="timeout of handler 'a'"):
                Handlers().handler("a", timeout=timeout)
            with pytest.raises(ConfigurationError, match="timeout of a batch"):
                Handlers().batch_handler("a", size=2, timeout=timeout)


def test_a_worker_registers_with_the_same_decorators() -> None:
    handlers = Handlers()
    worker = Worker("valkey://nowhere:1", queues=["etl"], handlers=handlers)
    assert worker.handler(one) is one
    assert worker.batch_handler(size=3)(many) is many

    @worker.backoff
    def patient(failures: int, error: BaseException) -> float:
        return failures * 60.0

    @worker.on_start
    @worker.on_stop
    def hook() -> None: ...

    @worker.on_job
    def seen(event: JobEvent) -> None: ...

    assert handlers.names == ["many", "one"]
    assert (handlers.backoffs, handlers.job_hooks) == ({"patient": patient}, [seen])
    assert handlers.start_hooks == handlers.stop_hooks == [hook]
