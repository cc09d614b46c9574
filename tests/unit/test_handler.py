"""The registry of user code."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Handlers, RetryLater, Unrecoverable
from glidemq_orchestrate.errors import ConfigurationError

if TYPE_CHECKING:
    from glidemq_orchestrate import Context


def one(ctx: Context) -> int:
    return 1


def two(ctx: Context) -> int:
    return 2


def test_a_handler_is_found_by_its_name_and_stays_callable() -> None:
    handlers = Handlers()
    assert handlers.handler("b")(one) is one
    handlers.handler("a")(two)
    assert handlers.get("b") is one
    assert handlers.get("c") is None
    assert handlers.names == ["a", "b"]


def test_a_name_has_one_handler_and_the_same_twice_is_fine() -> None:
    handlers = Handlers()
    handlers.handler("a")(one)
    handlers.handler("a")(one)
    with pytest.raises(ConfigurationError, match="'a' has a handler already"):
        handlers.handler("a")(two)
    assert handlers.get("a") is one


def test_a_handler_needs_a_name() -> None:
    with pytest.raises(ConfigurationError, match="job name"):
        Handlers().handler("")


def test_including_takes_over_handlers_and_hooks_once() -> None:
    def hook() -> None: ...

    some, all_of_them = Handlers(), Handlers()
    some.handler("a")(one)
    assert some.on_start(hook) is hook
    assert some.on_stop(hook) is hook
    all_of_them.include(some)
    all_of_them.include(some)
    assert all_of_them.get("a") is one
    assert all_of_them.start_hooks == all_of_them.stop_hooks == [hook]


def test_including_another_handler_for_a_name_is_refused() -> None:
    some, others = Handlers(), Handlers()
    some.handler("a")(one)
    others.handler("a")(two)
    with pytest.raises(ConfigurationError, match="'a'"):
        some.include(others)


def test_the_signals_carry_what_is_to_be_said() -> None:
    later = RetryLater(timedelta(seconds=5), "busy")
    assert (later.delay, str(later)) == (timedelta(seconds=5), "busy")
    assert str(RetryLater(timedelta(0))) == "asked to be retried later"
    assert str(Unrecoverable("no such table")) == "no such table"


@pytest.mark.parametrize("delay", [5, None, "5", timedelta(seconds=-1)])
def test_a_retry_needs_a_duration(delay: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="delay"):
        RetryLater(delay)
