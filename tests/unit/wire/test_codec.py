"""Payloads on the wire."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import enum
import gzip
import json
import types
import uuid
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from glidemq_orchestrate.errors import DecodeError, EncodeError, PayloadTooLarge
from glidemq_orchestrate.wire.codec import (
    MAX_PAYLOAD_BYTES,
    compact_texts,
    decode,
    encode,
    pack,
    readable,
    texts,
    with_sorted_keys,
    with_sorted_keys_of,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
).filter(lambda value: "\\ud" not in json.dumps(value))

UNREADABLE: list[str] = [
    "{",
    "hunter2",
    "[" * 100_000,
    "gz:",
    "gz:hunter2",
    "gz:" + base64.b64encode(b"hunter2").decode(),
    pack('"hunter2"')[:-8],
    "gz:" + base64.b64encode(gzip.compress(b"\xff\xfe")).decode(),
    "gz:" + base64.b64encode(gzip.compress(b'"' + b"x" * MAX_PAYLOAD_BYTES + b'"')).decode(),
]

READ_BY_JSON: list[str] = [
    "NaN",
    "[-Infinity]",
    "1e400",
    '"\\ud83d"',
    "1" * 400,
    '{"a":1,"a":2}',
    "-0",
    "0.1e1",
    ' [1\t,"\x7f"]\r\n',
    "[[" * 200 + "]]" * 200,
]

NOT_READ_BY_JSON: list[str] = [
    "01",
    "1.",
    ".5",
    "+1",
    '"\x01"',
    '"\\x"',
    "[1,]",
    "\ufeff1",
    "1 2",
    "1" * 5_000,
]

STORED_TEXTS: list[tuple[str, str]] = [
    ("plain ü", "plain ü"),
    ("\udcff", "\ufffd"),
    ("a\ud800b", "a\ufffdb"),
    ("\ud83d\udc4d", "\ufffd\ufffd"),
]


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

NOT_JSON: list[Any] = [
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
]


def test_what_is_not_json_is_refused_without_showing_it(subtests: pytest.Subtests) -> None:
    for value in NOT_JSON:
        with subtests.test(value=value):
            with pytest.raises(EncodeError, match=r"^result of job 7 is not JSON: ") as refused:
                encode(value, where="result of job 7")
            assert refused.value.where == "result of job 7"
            assert SECRET not in str(refused.value)


NOT_FINITE: list[tuple[Any, str]] = [
    (float("nan"), "it is NaN. Fix: replace it with None"),
    (
        {"rows": [1, (2, {"mean": -float("inf")})]},
        "the value at ['rows'][1][1]['mean'] is infinity. Fix: replace it with None",
    ),
    ({"a": {float("nan"): 1}}, "a key of ['a'] is NaN. Fix: use text"),
    ([1] * 30 + [float("nan")], "the value at [30] is NaN. Fix: replace it with None"),
]


def test_nan_and_infinity_are_refused_with_their_place(subtests: pytest.Subtests) -> None:
    for value, message in NOT_FINITE:
        with subtests.test(message), pytest.raises(EncodeError) as refused:
            encode(value, where="data of node a")
        assert str(refused.value) == f"data of node a is not JSON: {message}"


def test_nothing_stored_is_none(subtests: pytest.Subtests) -> None:
    for text in (None, ""):
        with subtests.test(text=text):
            assert decode(text, where="x") is None


def test_what_cannot_be_read_is_refused_without_showing_it(subtests: pytest.Subtests) -> None:
    for text in UNREADABLE:
        with subtests.test(text=text):
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


# --- the same as Python's own json, by another library ---

NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(
    [1e16, -1e-5, 5e-324, 1.7976931348623157e308, 0.0001, 123456789012345678.0, -0.0, 2**64, -(2**63) - 1]
)
MORE_JSON = st.recursive(
    JSON | NUMBERS | st.sampled_from(["3e8", "[1e5,", "0.00001", "\x7f\u2028/", "\x00\x1f\t"]),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
).filter(lambda value: "\\ud" not in json.dumps(value))


@given(MORE_JSON)
def test_the_form_is_that_of_json(value: Any) -> None:
    text = encode(value, where="x")
    assert text == json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    assert repr(decode(text, where="x")) == repr(json.loads(text))
    many = json.dumps([value] * 30, separators=(",", ":"), ensure_ascii=False)
    assert encode([value] * 30, where="x") == many


class Shown(dict[str, int]):
    """Shows other items than it holds."""

    def items(self) -> Any:
        return [("shown", 1)]


class Plain(enum.Enum):
    A = "x"


class Number(enum.IntEnum):
    A = 1


class Text(enum.StrEnum):
    A = "x"


@dataclass
class Row:
    a: int = 1


TAKEN_BY_JSON: list[tuple[Any, str]] = [
    (Shown(held=1), '{"shown":1}'),
    (Number.A, "1"),
    ({Text.A: Text.A}, '{"x":"x"}'),
]


def test_what_json_takes_for_its_own_is_taken_so(subtests: pytest.Subtests) -> None:
    for value, text in TAKEN_BY_JSON:
        with subtests.test(value=value):
            assert encode(value, where="x") == text
            assert encode([value], where="x") == f"[{text}]"
            assert encode([1.5] * 30 + [value], where="x") == f"[{'1.5,' * 30}{text}]"


NOT_TAKEN_BY_JSON: list[Any] = [
    Plain.A,
    Row(),
    uuid.UUID(int=1),
    dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    dt.timedelta(1),
    decimal.Decimal(1),
    bytearray(b"x"),
    types.MappingProxyType({"a": 1}),
]


def test_what_json_does_not_take_is_refused(subtests: pytest.Subtests) -> None:
    for value in NOT_TAKEN_BY_JSON:
        with subtests.test(value=value):
            for whole in (value, [value], {"a": {"b": value}}, [1.5] * 30 + [value]):
                with pytest.raises(EncodeError):
                    encode(whole, where="x")


def test_what_json_reads_is_read_so(subtests: pytest.Subtests) -> None:
    for text in READ_BY_JSON:
        with subtests.test(text=text):
            assert repr(decode(text, where="x")) == repr(json.loads(text))


def test_what_json_does_not_read_is_refused(subtests: pytest.Subtests) -> None:
    for text in NOT_READ_BY_JSON:
        with subtests.test(text=text), pytest.raises(DecodeError):
            decode(text, where="x")


def test_any_stored_text_can_be_made_readable(subtests: pytest.Subtests) -> None:
    for text, shown in STORED_TEXTS:
        with subtests.test(text=text):
            assert readable(text) == shown
            readable(text).encode()


@given(st.lists(st.text()))
def test_lists_of_texts_have_the_form_of_json(values: list[str]) -> None:
    assert texts(values) == json.dumps(values)
    assert f"[{compact_texts(values)}]" == json.dumps(values, separators=(",", ":"), ensure_ascii=False)


@example({"b": "x\x7f", "a": 1})
@given(MORE_JSON)
def test_sorted_keys_have_the_form_of_json(value: Any) -> None:
    for data in (encode(value, where="x"), json.dumps(value)):  # other clients escape what is not ASCII
        assert with_sorted_keys(data) == json.dumps(json.loads(data), sort_keys=True)
    assert with_sorted_keys_of(value, encode(value, where="x")) == with_sorted_keys(encode(value, where="x"))


def test_sorted_keys_of_what_json_takes_for_its_own_have_its_form(subtests: pytest.Subtests) -> None:
    for value, text in TAKEN_BY_JSON:
        with subtests.test(value=value):
            assert with_sorted_keys_of(value, text) == with_sorted_keys(text)


def test_escaped_data_has_the_fingerprint_of_the_same_data() -> None:
    assert with_sorted_keys('{"b":1,"a":"\\u00e9"}') == with_sorted_keys('{"a":"é","b":1}')
