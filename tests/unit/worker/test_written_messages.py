"""The box of unsent messages of an attempt."""

from __future__ import annotations

import pytest

from glidemq_orchestrate.errors import LeaseLost, ServerBusy
from glidemq_orchestrate.worker import written_messages as written
from glidemq_orchestrate.worker.written_messages import Box


@pytest.fixture
def box() -> Box:
    return Box("j")


def test_messages_stay_until_the_server_has_them(box: Box) -> None:
    assert box.add("a", may_wait=False)
    assert not box.add("b", may_wait=False)  # a sender was asked for already
    assert box.next() == (1, ["a", "b"])
    assert box.next() == (1, ["a", "b"])
    box.sent(2)
    assert box.next() is None
    assert box.add("c", may_wait=False)
    assert box.next() == (3, ["c"])


def test_one_call_takes_a_hundred_or_a_mebibyte(box: Box) -> None:
    for _ in range(150):
        box.add("x", may_wait=False)
    assert len((box.next() or (0, []))[1]) == 100
    box.sent(100)
    for _ in range(3):
        box.add("y" * 900_000, may_wait=False)
    assert len((box.next() or (0, []))[1]) == 51
    box.sent(51)
    assert len((box.next() or (0, []))[1]) == 1


def test_a_full_box_refuses_who_may_not_wait(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written, "MAX_BYTES", 10)
    box.add("x" * 12, may_wait=False)
    with pytest.raises(ServerBusy):
        box.add("x", may_wait=False)
    box.sent(1)
    box.add("x", may_wait=False)


def test_after_a_failure_nothing_is_sent_or_accepted(box: Box) -> None:
    box.add("a", may_wait=False)
    box.fail(ServerBusy("full"))
    assert box.is_settled
    assert box.next() is None
    with pytest.raises(ServerBusy):
        box.add("b", may_wait=True)


def test_a_closed_box_says_what_it_has_dropped(box: Box) -> None:
    box.add("a", may_wait=False)
    box.close()
    assert box.is_settled
    assert isinstance(box.error, LeaseLost)
    with pytest.raises(LeaseLost):
        box.add("b", may_wait=True)
    empty = Box("k")
    empty.close()
    assert empty.error is None
