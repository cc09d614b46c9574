"""Commands as bytes: every text and byte goes out as it came in, and what is not text is refused alone."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glidemq_orchestrate.io import delivery
from glidemq_orchestrate.io.delivery import PIECE, pack, pieces, put_back, sort_out
from glidemq_orchestrate.wire.call import Call

BYTES = st.binary(max_size=20).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
NUMBERS = st.integers(-(2**63), 2**63) | st.floats()
WORDS = st.lists(BYTES | NUMBERS | st.text(max_size=20), min_size=1, max_size=6)
HALVES = st.text(st.characters(categories=["Cs"], max_codepoint=0xDC7F), min_size=1, max_size=3)


def bulks(packed: bytes) -> list[bytes]:
    """The words of a command, as a server reads them."""
    count, rest = packed[1:].split(b"\r\n", 1)
    found = []
    for _ in range(int(count)):
        size, rest = rest[1:].split(b"\r\n", 1)
        found.append(rest[: int(size)])
        assert rest[int(size) : int(size) + 2] == b"\r\n"
        rest = rest[int(size) + 2 :]
    assert rest == b""
    return found


def call(*words: Any) -> Call[Any]:
    return Call(words, str)


@given(WORDS)
def test_every_word_goes_out_as_it_was_with_and_without_hiredis(words: list[Any]) -> None:
    calls, refused = sort_out([call(*words)])
    assert (len(calls), refused) == (1, {})
    expected = [
        word.encode("utf-8", "surrogateescape") if isinstance(word, str) else repr(word).encode()
        for word in words
    ]
    fast = delivery._fast
    assert bulks(pack(words)) == expected
    try:
        delivery._fast = None  # it is an extra
        assert bulks(pack(words)) == expected
    finally:
        delivery._fast = fast


@given(HALVES)
def test_half_a_character_is_refused_alone(half: str) -> None:
    calls = [call("GET", "glide:{etl}:a"), call("SET", "glide:{etl}:b", f"x{half}"), call("GET", "c")]
    sent, refused = sort_out(calls)
    assert sent == (calls[0], calls[2])
    assert "SET of queue etl: a text with a lone surrogate" in str(refused[1])
    assert half not in str(refused[1])
    assert put_back(["a", "c"], refused) == ["a", refused[1], "c"]


def test_what_is_not_a_word_is_refused_instead_of_crashing(subtests: pytest.Subtests) -> None:
    """A number of thousands of digits makes hiredis kill the interpreter."""
    for word in (None, True, b"raw", ("a",), 10**5_000, -(2**64)):
        with subtests.test(word=word):
            sent, refused = sort_out([call("SET", "k", word)])
            assert (sent, list(refused)) == ((), [0])


@given(st.lists(st.integers(0, 2 * PIECE), max_size=30))
def test_the_calls_of_a_trip_go_out_in_order_and_in_few_pieces(sizes: list[int]) -> None:
    calls = [call("SET", f"k{number}", "x" * size) for number, size in enumerate(sizes)]
    found = pieces(calls)
    assert b"".join(found) == b"".join(pack(one.words) for one in calls)
    together = [sum(map(len, two)) for two in itertools.pairwise(found)]
    assert all(size > PIECE for size in together)
    assert all(len(piece) <= PIECE or piece.count(b"SET") == 1 for piece in found)
