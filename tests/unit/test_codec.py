"""Payloads on the wire."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glidemq_orchestrate.codec import MAX_PAYLOAD_BYTES, decode, encode, pack
from glidemq_orchestrate.errors import DecodeError, EncodeError, PayloadTooLarge

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
).filter(lambda value: "\\ud" not in json.dumps(value))


@given(JSON)
def test_what_is_encoded_comes_back_plain_and_packed(value: Any) -> None:
    text = encode(value, where="x")
    assert decode(text, where="x") == value
    assert decode(pack(text), where="x") == value


def test_the_text_is_compact_and_not_escaped() -> None:
    assert encode({"a": [1, 2], "b": "größe"}, where="x") == '{"a":[1,2],"b":"größe"}'
    assert encode((1, 2), where="x") == "[1,2]"


def test_exactly_one_mebibyte_is_fine_and_one_byte_more_is_not() -> None:
    assert MAX_PAYLOAD_BYTES == 1_048_576
    assert len(encode("x" * (MAX_PAYLOAD_BYTES - 2), where="x")) == MAX_PAYLOAD_BYTES
    with pytest.raises(
        PayloadTooLarge, match=r"data of node a is 1,048,577 bytes; the limit is 1,048,576"
    ) as refused:
        encode("x" * (MAX_PAYLOAD_BYTES - 1), where="data of node a")
    assert refused.value.where == "data of node a"


def test_the_limit_counts_bytes_and_not_characters() -> None:
    assert encode("é" * ((MAX_PAYLOAD_BYTES - 2) // 2), where="x")
    with pytest.raises(PayloadTooLarge):
        encode("é" * (MAX_PAYLOAD_BYTES // 2), where="x")


def circle() -> list[Any]:
    ring: list[Any] = []
    ring.append(ring)
    return ring


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


SECRET = "hunter2"


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        {"a": [-float("inf")]},
        {SECRET},
        {"a": {SECRET}},
        b"hunter2",
        {SECRET: object()},
        {1: SECRET},
        {"a": [{None: SECRET}]},
        {True: SECRET},
        {("a",): SECRET},
        circle(),
        deep(),
        SECRET + "\ud800",
    ],
    ids=range(14),
)
def test_what_is_not_json_is_refused_without_showing_it(value: Any) -> None:
    with pytest.raises(EncodeError, match=r"^result of job 7 is not JSON: ") as refused:
        encode(value, where="result of job 7")
    assert refused.value.where == "result of job 7"
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("text", [None, ""])
def test_nothing_stored_is_none(text: str | None) -> None:
    assert decode(text, where="x") is None


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "hunter2",
        "[" * 100_000,
        "gz:",
        "gz:hunter2",
        "gz:" + base64.b64encode(b"hunter2").decode(),
        pack('"hunter2"')[:-8],
        "gz:" + base64.b64encode(gzip.compress(b"\xff\xfe")).decode(),
        "gz:" + base64.b64encode(gzip.compress(b'"' + b"x" * MAX_PAYLOAD_BYTES + b'"')).decode(),
    ],
    ids=range(9),
)
def test_what_cannot_be_read_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(DecodeError, match=r"^data of job 7 is not JSON: \w+$") as refused:
        decode(text, where="data of job 7")
    assert SECRET not in str(refused.value)


def test_a_packed_payload_of_the_full_size_is_read() -> None:
    text = encode("x" * (MAX_PAYLOAD_BYTES - 2), where="x")
    assert decode(pack(text), where="x") == "x" * (MAX_PAYLOAD_BYTES - 2)


def test_a_packed_payload_is_what_node_writes() -> None:
    packed = pack('{"a":1}')
    assert packed.startswith("gz:")
    assert gzip.decompress(base64.b64decode(packed[3:])) == b'{"a":1}'
