"""One thing among many that fails is logged once; what concerns all of them is raised."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from glidemq_orchestrate.errors import (
    ConfigurationError,
    ConnectionFailed,
    GlideMQError,
    LibraryMissing,
    ProtocolError,
)
from glidemq_orchestrate.wire import call, replies
from glidemq_orchestrate.wire.call import Op, ask, command

if TYPE_CHECKING:
    from tests.unit.conftest import Scripted

PING = command("PING", decode=replies.text)


def each(count: int) -> Op[list[str | None]]:
    found = []
    for number in range(count):
        found.append((yield from call.isolated(ask(PING), f"thing {number}")))  # noqa: PERF401  it yields
    return found


@pytest.mark.parametrize("answer", [ProtocolError("WRONGTYPE"), 7, None, ConfigurationError("odd")], ids=str)
def test_a_failure_stands_alone_and_is_logged_once(
    scripted: Scripted, caplog: pytest.LogCaptureFixture, answer: object
) -> None:
    call._report_once.cache_clear()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert scripted(each(3), ["a", answer, "c"]).value == ["a", None, "c"]
    (line,) = caplog.messages
    assert line.startswith("thing 1 is skipped: ")


def test_an_operation_that_raises_something_raw_stands_alone_too(
    scripted: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    def odd() -> Op[int]:
        return int((yield from ask(PING)))

    def both() -> Op[list[int | None]]:
        return [
            (yield from call.isolated(odd(), "the odd one \udcff")),
            (yield from call.isolated(odd(), "b")),
        ]

    with caplog.at_level(logging.ERROR):
        assert scripted(both(), ["x", "1"]).value == [None, 1]
    assert "the odd one \ufffd is skipped: ValueError" in caplog.messages[0]


def no_right() -> GlideMQError:
    error = ConfigurationError("the server's user lacks a permission")
    error.code = "NOPERM"
    return error


@pytest.mark.parametrize("error", [ConnectionFailed("gone"), LibraryMissing("gone"), no_right()], ids=str)
def test_what_is_not_about_the_one_thing_is_raised(scripted: Scripted, error: GlideMQError) -> None:
    with pytest.raises(type(error)):
        scripted(each(1), [error])
