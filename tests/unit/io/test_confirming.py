"""Which parcels are followed by calls that confirm them, and what the replies to those mean."""

from __future__ import annotations

from typing import Any

import pytest
from redis.crc import key_slot

from glidemq_orchestrate.errors import GlideMQError, LibraryMissing, ServerBusy
from glidemq_orchestrate.io.confirming import confirmed_replies, followed
from glidemq_orchestrate.io.topology import ASKING, Parcel
from glidemq_orchestrate.settings import ConnectionSettings, Endpoint
from glidemq_orchestrate.wire.call import Call, Unconfirmed, command, function
from glidemq_orchestrate.wire.keys import mark_key
from glidemq_orchestrate.wire.replies import error_from

PLACE = Endpoint("h", 6379)
SET, GET = command("SET", "k{a}", "v", decode=str, repeatable=True), command("GET", "k{a}", decode=str)
ADD = function("gmo_add_jobs", ["glide:{b}:id"], ["x"], str)
MISSING = error_from("ERR Function not found")

NOT_CONFIRMED: list[Call[Any]] = [
    GET,
    command("TIME", decode=str),
    command("FUNCTION", "LOAD", "x", decode=str),
    function("glidemq_version", (), (), str),
    function("gmo_flow_status", ["k"], (), str),
    Call(("SET", "k", "v"), str, confirms=False),
]

SHORT_CONFIRMATIONS: list[tuple[tuple[Any, ...], str]] = [
    (("id", 1, [1, 0]), "only 1 of 2 replicas got it within 1.5 s"),
    (("id", 2, [0, 2]), "it was not on the disk of the server within 1.5 s"),
    (("id", ServerBusy("UNBLOCKED x"), [1, 0]), "the server cannot confirm it: UNBLOCKED x"),
    ((error_from("ERR no"), 2, [1, 0]), "the server cannot confirm it: ERR no"),
]


def settings(confirm: str | None = "disk,replicas:2") -> ConnectionSettings:
    return ConnectionSettings("valkey://h", confirm=confirm, confirm_timeout=1.5, prefix="mine")


def tail(*calls: Call[Any], confirm: str | None = "disk,replicas:2") -> list[tuple[Any, ...]]:
    whole = followed(Parcel(PLACE, calls), settings(confirm))
    return [] if whole is None else [call.words for call in whole.calls[len(calls) :]]


def judge(*replies: Any, confirm: str = "disk,replicas:2", calls: tuple[Call[Any], ...] = (SET, GET)) -> Any:
    parcel = Parcel(PLACE, calls)
    whole = followed(parcel, settings(confirm))
    assert whole is not None
    assert len(whole.calls) == len(replies)
    return confirmed_replies(whole, list(replies), parcel, settings(confirm))


def test_a_write_is_followed_by_a_mark_in_its_slot_and_by_what_is_awaited() -> None:
    mark = ("FCALL", "gmo_mark", 1, "mine:gmo:mark:{b}")
    assert tail(SET, ADD, GET) == [mark, ("WAIT", 2, 1500), ("WAITAOF", 1, 0, 1500)]
    assert tail(ADD, confirm="disk") == [mark, ("WAITAOF", 1, 0, 1500)]
    assert tail(ADD, confirm="replicas:1") == [mark, ("WAIT", 1, 1500)]
    assert tail(ASKING, ADD)[0] == ("ASKING",)


def test_a_mark_is_in_the_slot_of_the_key(subtests: pytest.Subtests) -> None:
    for key in ("k", "k{a}x", "glide:{q}:job:1", "a}b{c}"):
        with subtests.test(key=key):
            assert key_slot(mark_key("glide", key).encode()) == key_slot(key.encode())


def test_what_writes_nothing_or_is_not_relied_on_is_followed_by_nothing(subtests: pytest.Subtests) -> None:
    for call in NOT_CONFIRMED:
        with subtests.test(call=call):
            assert tail(call) == []
            assert tail(SET, confirm=None) == []


def test_what_was_confirmed_keeps_its_reply() -> None:
    assert judge("OK", "v", "id", 2, [1, 0]) == ["OK", "v"]
    assert judge("OK", "v", "id", 5, [1, 3]) == ["OK", "v"]


def test_what_was_not_confirmed_gets_an_error_that_holds_the_reply(subtests: pytest.Subtests) -> None:
    for after, why in SHORT_CONFIRMATIONS:
        with subtests.test(after=after):
            written, read = judge("OK", "v", *after)
            assert isinstance(written, Unconfirmed)
            assert (written.reply, read) == ("OK", "v")
            assert (
                str(written) == f"valkey://h:6379: written, but {why}. The write stands; a repeat waits again"
            )


def test_a_refused_write_stays_refused() -> None:
    refusal: GlideMQError = ServerBusy("OOM")
    assert judge(refusal, "v", "id", 0, [0, 0]) == [refusal, "v"]


def test_a_lost_library_is_loaded_and_the_call_repeated_where_that_is_safe() -> None:
    assert isinstance(MISSING, LibraryMissing)
    written, _ = judge("OK", "v", MISSING, 2, [1, 0])
    assert written is MISSING
    (added,) = judge("1", MISSING, 2, [1, 0], calls=(ADD,))
    assert isinstance(added, Unconfirmed)
