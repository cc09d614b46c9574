"""The stored forms of delayed and repeating jobs: the fixtures of ChasquiMQ 1.3."""

from __future__ import annotations

import contextlib
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glidemq_orchestrate.chasquimq.delayed import DelayedMember
from glidemq_orchestrate.chasquimq.envelope import Envelope, Retry
from glidemq_orchestrate.chasquimq.keys import ChasquiKeys, check_job_id, check_job_name, check_queue
from glidemq_orchestrate.chasquimq.repeats import FIRE_ONCE, CronTimes, Every, Missed, RepeatSpec
from glidemq_orchestrate.errors import ConfigurationError, DecodeError, InvalidJob

NOW: Final = 1_700_000_000_000

MEMBERS: Final = {
    "": (Envelope.of("job-1", None, NOW, Retry(3)), "0000000095a56a6f622d31c401c0cf0000018bcfe56800009203c0"),
    "later": (
        Envelope.of("dj-1", {"z": 2}, NOW),
        "050000006c6174657294a4646a2d31c40481a17a02cf0000018bcfe5680000",
    ),
    "é": (Envelope.of("u", 1, NOW), "02000000c3a994a175c40101cf0000018bcfe5680000"),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_a_delayed_member_has_the_bytes_of_its_fixture(name: str) -> None:  # fact 10
    envelope, fixture = MEMBERS[name]
    member = DelayedMember(name, envelope.packed)
    assert member.packed.hex() == fixture
    assert DelayedMember.read(bytes.fromhex(fixture)) == member


@pytest.mark.parametrize("data", [b"", b"\x01\x00\x00", b"\x05\x00\x00\x00abc", b"\x01\x00\x00\x00\xff"])
def test_a_member_that_is_cut_short_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError, match="a delayed job"):
        DelayedMember.read(data)


SPECS: Final = {
    "tick::every:60000": (
        RepeatSpec.of("tick", {"p": 1}, Every(60_000)),
        "98b17469636b3a3a65766572793a3630303030a47469636b81a5457665727991cdea60c406c40481a17001c0c0c000",
    ),
    "cron::cron:*/5 * * * *:America/New_York": (
        RepeatSpec.of(
            "cron",
            {"p": 1},
            CronTimes("*/5 * * * *", "America/New_York"),
            limit=5,
            start_ms=1,
            end_ms=4_102_444_800_000,
            missed=FIRE_ONCE,
        ),
        (
            "99d92763726f6e3a3a63726f6e3a2a2f35202a202a202a202a3a416d65726963612f4e65775f596f726ba463726f6e81a4"
            "43726f6e92ab2a2f35202a202a202a202ab0416d65726963612f4e65775f596f726bc406c40481a170010501cf000003bb"
            "2cc3d80000a8466972654f6e6365"
        ),
    ),
    "cron2::cron:0 3 * * *:UTC": (
        RepeatSpec.of("cron2", {"p": 1}, CronTimes("0 3 * * *"), missed=Missed(7, is_all=True)),
        (
            "99b963726f6e323a3a63726f6e3a302033202a202a202a3a555443a563726f6e3281a443726f6e92a9302033202a202a20"
            "2ac0c406c40481a17001c0c0c00081a746697265416c6c9107"
        ),
    ),
}


@pytest.mark.parametrize("key", SPECS)
def test_a_repeat_spec_has_the_bytes_of_its_fixture(key: str) -> None:  # fact 24
    spec, fixture = SPECS[key]
    assert spec.key == key
    assert spec.packed.hex() == fixture
    assert RepeatSpec.read(bytes.fromhex(fixture)) == spec


def test_the_data_of_a_repeat_spec_is_that_of_its_jobs() -> None:
    spec = RepeatSpec.of("tick", {"p": 1}, Every(200))
    assert Envelope("a", spec.payload, NOW) == Envelope.of("a", {"p": 1}, NOW)


DATA: Final = msgspec.msgpack.encode(msgspec.msgpack.encode(1))


@pytest.mark.parametrize(
    "slots",
    [
        [],
        ["k", "n", {"Every": [1]}, DATA, None, None, None],
        ["k", "n", {"Every": [0]}, DATA, None, None, None, 0],
        ["k", "n", {"Never": [1]}, DATA, None, None, None, 0],
        ["k", "n", {"Every": [1]}, b"\x01", None, None, None, 0],
        [1, "n", {"Every": [1]}, DATA, None, None, None, 0],
        ["k", "n", {"Every": [1]}, DATA, "2", None, None, 0],
        ["k", "n", {"Every": [1]}, DATA, None, None, None, 0, "Sometimes"],
    ],
)
def test_a_repeat_spec_of_another_form_is_refused(slots: list[Any]) -> None:
    with pytest.raises(DecodeError, match="a repeating job"):
        RepeatSpec.read(msgspec.msgpack.encode(slots))


@given(st.binary(max_size=60))
def test_any_bytes_of_a_spec_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(DecodeError):
        RepeatSpec.read(data)


def test_all_keys_of_a_queue_share_its_hash_tag() -> None:
    keys = ChasquiKeys("emails")
    assert keys.key("stream") == "{chasqui:emails}:stream"
    assert keys.spec("tick::every:200") == "{chasqui:emails}:repeat:spec:tick::every:200"
    assert keys.result("a") == "{chasqui:emails}:result:a"
    assert keys.delayed_marker("a") == "{chasqui:emails}:dlid:a"
    assert keys.delayed_member("a") == "{chasqui:emails}:didx:a"


def test_names_that_cannot_be_keys_are_refused() -> None:
    for name in ("", "a}b", "a\nb"):
        with pytest.raises(ConfigurationError, match="queue name"):
            check_queue(name)
    for job_id in ("", "  ", "a\nb", 7):
        with pytest.raises(InvalidJob, match="job id"):
            check_job_id(job_id)  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="has 257 bytes"):
        check_job_name("a" * 257)
    assert check_job_name("é" * 128) == "é" * 128
    assert check_job_name("") == ""
