"""Envelopes: the fixtures of ChasquiMQ 1.3, what its workers accept, and the mathematics of retries."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glidemq_orchestrate.chasquimq.envelope import (
    ChasquiBackoff,
    Envelope,
    Retry,
    StoredBackoff,
    is_exhausted,
    new_job_id,
)
from glidemq_orchestrate.errors import DecodeError, EncodeError, InvalidJob, PayloadTooLarge

NOW: Final = 1_700_000_000_000
EXPONENTIAL: Final = StoredBackoff("exponential", 100, 10_000, 2.0, 50)

FIXTURES: Final[dict[str, tuple[Envelope, str]]] = {
    "E1": (
        Envelope.of("01HF00000000000000000000AB", {"to": "ada@example.com"}, NOW),
        (
            "94ba3031484630303030303030303030303030303030303030304142c41481a2746faf616461406578616d706c652e636f6d"
            "cf0000018bcfe5680000"
        ),
    ),
    "E2": (
        Envelope.of("job-1", None, NOW, Retry(3)),
        "95a56a6f622d31c401c0cf0000018bcfe56800009203c0",
    ),
    "E3": (
        Envelope.of("job-2", [1, 2], NOW, Retry(None, StoredBackoff("fixed", 250))),
        "95a56a6f622d32c403920102cf0000018bcfe568000092c095a56669786564ccfac0c0c0",
    ),
    "E4": (
        Envelope("job-3", bytes.fromhex("c403a26869"), NOW, 1, Retry(5, EXPONENTIAL)),
        (
            "95a56a6f622d33c403a26869cf0000018bcfe5680001920595ab6578706f6e656e7469616c64cd2710cb4000000000000000"
            "32"
        ),
    ),
    "E5": (
        Envelope.of("job-4", True, NOW, Retry()),
        "95a56a6f622d34c401c3cf0000018bcfe568000092c0c0",
    ),
}
CAPTURED: Final = [  # written by the package itself
    (
        "94ba30314d375850564d3136505946373054425a5156374452575a58c41481a2746faf616461406578616d706c652e636f6d"
        "cf000001a1fb6dd02600"
    ),
    "94ba30314d375850564d31374a475a38355251574d515a5459333444c40481a16b01cf000001a1fb6dd02700",
    (
        "95a8737461626c652d31c401c0cf000001a1fb6dd02800920395ab6578706f6e656e7469616c64cd2710cb40000000000000"
        "00c0"
    ),
    "95a8737461626c652d32c403920102cf000001a1fb6dd028009207c0",
    "95a8737461626c652d33c403920102cf000001a1fb6dd0280092c095a56669786564ccfac0c0c0",
    "95a8737461626c652d34c404c40200ffcf000001a1fb6dd0290092c095a5666978656405c0c009",
]


def packed(*slots: Any) -> bytes:
    return msgspec.msgpack.encode(list(slots))


BODY: Final = msgspec.msgpack.encode([1, 2])


@pytest.mark.parametrize("name", FIXTURES)
def test_an_envelope_has_the_bytes_of_its_fixture(name: str) -> None:
    envelope, fixture = FIXTURES[name]
    assert envelope.packed.hex() == fixture
    assert Envelope.read(bytes.fromhex(fixture)) == envelope


def test_envelopes_of_the_package_are_read_and_written_alike() -> None:  # fact 2
    for captured in CAPTURED:
        assert Envelope.read(bytes.fromhex(captured)).packed.hex() == captured
    third = Envelope.read(bytes.fromhex(CAPTURED[4]))
    assert third.retry == Retry(None, StoredBackoff("fixed", 250))
    assert (third.job_id, third.data, third.attempt) == ("stable-3", [1, 2], 0)
    assert Envelope.read(bytes.fromhex(CAPTURED[5])).data == b"\x00\xff"


def test_the_slot_of_retry_options_is_missing_without_any() -> None:  # fact 3
    assert Envelope.of("a", {}, NOW).packed[0] == 0x94
    assert Envelope.of("a", {}, NOW, Retry()).packed[0] == 0x95


ACCEPTED: Final[dict[str, tuple[bytes, int, Retry | None]]] = {
    "three slots": (packed("a", BODY, NOW), 0, None),
    "four slots": (packed("a", BODY, NOW, 2), 2, None),
    "a nil override": (packed("a", BODY, NOW, 2, None), 2, None),
    "an id as binary": (packed(b"a", BODY, NOW, 2), 2, None),
    "an override as a map": (
        packed("a", BODY, NOW, 0, {"max_attempts": 4, "backoff": {"kind": "fixed", "delay_ms": 5}}),
        0,
        Retry(4, StoredBackoff("fixed", 5)),
    ),
    "an unknown kind and a whole multiplier": (
        packed("a", BODY, NOW, 0, [None, ["odd", 5, None, 3, None]]),
        0,
        Retry(None, StoredBackoff("odd", 5, None, 3.0)),
    ),
    "a map": (
        msgspec.msgpack.encode({"id": "a", "payload": BODY, "created_at_ms": NOW, "attempt": 3}),
        3,
        None,
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_every_form_that_workers_accept_is_read(name: str) -> None:
    data, attempt, retry = ACCEPTED[name]
    found = Envelope.read(data)
    assert (found.job_id, found.data, found.created_at_ms) == ("a", [1, 2], NOW)
    assert (found.attempt, found.retry) == (attempt, retry)


@pytest.mark.parametrize("data", [{"to": "ada"}, "text", [1, 2], 7])
def test_inline_data_of_rust_producers_is_read(data: Any) -> None:  # fact 8
    found = Envelope.read(packed("a", data, NOW, 0))
    assert found.data == data
    assert found.again().packed == packed("a", data, NOW, 1)


REJECTED: Final[dict[str, bytes]] = {
    "two slots": packed("a", BODY),
    "six slots": packed("a", BODY, NOW, 0, None, None),
    "an override of one slot": packed("a", BODY, NOW, 0, [3]),
    "an override of three slots": packed("a", BODY, NOW, 0, [3, None, None]),
    "a backoff of four slots": packed("a", BODY, NOW, 0, [3, ["fixed", 5, None, None]]),
    "a whole id": packed(7, BODY, NOW, 0),
    "a negative attempt": packed("a", BODY, NOW, -1),
    "an attempt of 33 bits": packed("a", BODY, NOW, 2**32),
    "a fractional time": packed("a", BODY, 1.5, 0),
    "a multiplier that is a text": packed("a", BODY, NOW, 0, [None, ["fixed", 5, None, "2", None]]),
    "an id that is not UTF-8": packed(b"\xff", BODY, NOW, 0),
    "no msgpack": b"\xc1nothing",
    "nothing": b"",
    "two values": packed("a", BODY, NOW, 0) + b"\x00",
    "a map without id": msgspec.msgpack.encode({"payload": BODY, "created_at_ms": NOW}),
}


@pytest.mark.parametrize("name", REJECTED)
def test_what_workers_reject_is_a_decode_error(name: str) -> None:
    with pytest.raises(DecodeError):
        Envelope.read(REJECTED[name])


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        found = Envelope.read(data)
    except DecodeError:
        return
    assert Envelope.read(found.packed) == found


def test_data_that_is_not_msgpack_is_refused_when_it_is_read() -> None:
    found = Envelope.read(packed("a", b"\xc1", NOW, 0))
    with pytest.raises(DecodeError, match="data of job a"):
        _ = found.data


@pytest.mark.parametrize("data", [{1: 2}, {"a": {1}}, 2**64, [object()], "\ud800"])
def test_data_that_cannot_be_packed_is_refused(data: Any) -> None:
    with pytest.raises(EncodeError, match="data of job a is not msgpack"):
        Envelope.of("a", data, NOW)


def test_an_id_that_is_no_text_is_refused() -> None:
    with pytest.raises(EncodeError, match="lone surrogate"):
        _ = Envelope("\ud800", b"\xc0", NOW).packed


def test_data_that_contains_itself_is_refused() -> None:
    data: list[Any] = []
    data.append(data)
    with pytest.raises(EncodeError, match="contains itself"):
        Envelope.of("a", data, NOW)


def test_an_envelope_longer_than_workers_accept_is_refused() -> None:
    with pytest.raises(PayloadTooLarge, match=r"1,048,576"):
        Envelope.of("a", b"x" * 1_048_576, NOW)


def test_a_wait_grows_up_to_its_limit() -> None:  # fact 17
    growing = Retry(None, StoredBackoff("exponential", 20, None, None, 0))
    assert [growing.wait_ms(number, 0.5) for number in (1, 2, 3)] == [20, 40, 80]
    fixed = Retry(None, StoredBackoff("fixed", 50, None, None, 0))
    assert [fixed.wait_ms(number, 0.5) for number in (1, 2, 3)] == [50, 50, 50]
    odd = Retry(None, StoredBackoff("odd", 20, None, 3.0, 0))
    assert odd.wait_ms(3, 0.5) == 180


def test_jitter_is_added_after_the_limit() -> None:
    short = Retry(None, StoredBackoff("exponential", 100, 150, 2.0, 40))
    assert short.wait_ms(5, 0.0) == 150
    assert short.wait_ms(5, 0.999) == 189
    assert Retry().wait_ms(1, 0.5) == 150
    assert Retry().wait_ms(40, 0.0) == 30_000
    assert Retry().wait_ms(2_000_000, 0.0) == 30_000
    assert Retry(None, StoredBackoff("exponential", 0, None, 1e308, 0)).wait_ms(9, 0.0) == 0


def test_attempts_count_all_runs() -> None:
    assert [is_exhausted(attempt, 2) for attempt in (0, 1)] == [False, True]
    assert is_exhausted(0, 0)


def test_a_backoff_is_given_in_our_durations() -> None:
    assert ChasquiBackoff("exponential", 0.1, max_delay=10, multiplier=2, jitter=0.05).stored == EXPONENTIAL
    assert ChasquiBackoff("fixed", 0.25).stored == StoredBackoff("fixed", 250)


@pytest.mark.parametrize(
    "options",
    [{"kind": "odd"}, {"delay": -1}, {"max_delay": "5"}, {"multiplier": -1}, {"jitter": float("nan")}],
)
def test_a_backoff_that_cannot_be_applied_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob, match="backoff"):
        ChasquiBackoff(**options)


def test_new_ids_are_sorted_by_time() -> None:
    ids = [new_job_id(NOW), new_job_id(NOW + 1), new_job_id(NOW + 1_000_000)]
    assert ids == sorted(ids)
    assert {len(job_id) for job_id in ids} == {26}
    assert new_job_id(NOW)[:10] == "01HF7YAT00"
