"""Odd values: of any type, and nearly those that are wanted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st

from glidemq_orchestrate import Backoff, JobOptions, JobState, Keep, Ordering, Rule


class Colour(Enum):
    """An enumeration of somebody else."""

    RED = "red"


class Text(str):
    """A subclass of a type that is wanted."""

    __slots__ = ()


class Plain:
    """An object without anything."""


INTEGERS: Final = (
    st.sampled_from(
        [
            0,
            1,
            -1,
            2,
            255,
            256,
            2048,
            2049,
            2**31,
            2**53,
            2**53 + 1,
            2**63,
            -(2**63),
            2**64,
            10**40,
            -(10**40),
        ]
    )
    | st.integers()
    | st.builds(pow, st.just(10), st.just(5_000))
)  # not as it is: Hypothesis cannot show it
FLOATS: Final = st.sampled_from([0.0, -0.0, 0.5, 1.5, 1e-320, 1e300, -1e300, 2.0**53]) | st.floats()
ANY_CHARACTERS: Final = st.text(st.characters(exclude_categories=()), max_size=20)
STRINGS: Final = ANY_CHARACTERS | st.sampled_from(
    [
        "",
        " ",
        "a",
        "0",
        "1",
        "-1",
        "1.5",
        "nan",
        "1e999",
        "true",
        "null",
        "a:b",
        "{",
        "}",
        "{}",
        "a{b}",
        "__",
        "||",
        "a||b",
        "x:nodes",
        "*",
        ">",
        "a.>",
        ">.a",
        "..",
        ".",
        "/",
        "\\",
        "%s",
        "{0}",
        "{x.y}",
        "[/]",
        "$",
        "\x00",
        "\n",
        "\t",
        "a\nb",
        "\x1b[31m",
        "\u202e",
        "\u2028",
        "�",
        "�",
        "a�",
        "\ufeff",
        "²",
        "a" * 256,
        "a" * 257,
        "a" * 1024,
        "a" * 1025,
        "ä" * 256,
        "9" * 400,
        "9" * 5000,
        "0-0",
        "0-x",
        "gz:",
        "gz:A",
        "skip",
        "fail",
        "all_done",
        "attach",
        "completed",
        "failed",
        "waiting",
        "UTC",
        "Mars/Olympus",
        "* * * * *",
        "PT5M",
        "P9999999999D",
        "1" * 20 + "-1",
        "18446744073709551615-0",
        "99999999999999999999-0",
        "()-1",
    ]
)
DURATIONS: Final = st.sampled_from(
    [
        timedelta(0),
        timedelta(microseconds=1),
        timedelta(milliseconds=1),
        timedelta(seconds=1),
        timedelta(days=1),
        timedelta(days=10000),
        timedelta(days=10001),
        timedelta.max,
        timedelta.min,
        timedelta(microseconds=-1),
        timedelta.resolution,
        timedelta(microseconds=499),
        timedelta(days=300000),
    ]
)
# Those without a time zone are meant to be refused.
MOMENTS: Final = st.sampled_from(
    [
        datetime.min,  # noqa: DTZ901
        datetime.max,  # noqa: DTZ901
        datetime.min.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
        datetime(2026, 1, 1),  # noqa: DTZ001
        datetime(2026, 1, 1, tzinfo=UTC),
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))),
        datetime.max.date(),  # noqa: DTZ901
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
    ]
)
SCALARS: Final = st.none() | st.booleans() | INTEGERS | FLOATS | STRINGS
_CIRCULAR: list[Any] = []
_CIRCULAR.append(_CIRCULAR)


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


OBJECTS: Final[st.SearchStrategy[Any]] = st.sampled_from(
    [
        b"",
        b"bytes",
        b"\xff",
        (),
        [],
        {},
        set(),
        {1},
        frozenset(),
        object(),
        Plain(),
        Plain,
        int,
        print,
        range(3),
        1j,
        Decimal(1),
        Decimal("nan"),
        Fraction(1, 3),
        Colour.RED,
        Text("text"),
        Text("�"),
        Path("x"),
        ...,
        iter(()),
        (None for _ in ()),
        bytearray(b"x"),
        memoryview(b"x"),
        ValueError("x"),
        _CIRCULAR,
        JobState.FAILED,
        Rule.ALL_DONE,
        Backoff(),
        Keep(1),
        Ordering("k"),
        JobOptions(),
        NotImplemented,
        {1: 2},
        {None: 1},
        {"a": b"b"},
        {"a": {1}},
        [None],
        [[]],
        ["a", 1],
        [b"a"],
        [object()],
        {"�": 1},
    ]
) | st.builds(_deep, st.just(5_000))
ANY: Final = SCALARS | DURATIONS | MOMENTS | OBJECTS | st.lists(SCALARS, max_size=3)
ANY_SHORT: Final = ANY.filter(lambda value: not _lasts(value))
"""For how long to wait: what would be a long time is left out."""
JSON: Final = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(STRINGS, inner, max_size=4),
    max_leaves=8,
)


def _lasts(value: Any) -> bool:
    """Whether a call would wait long for this."""
    if isinstance(value, timedelta):
        return value > timedelta(milliseconds=5)
    return (
        value is None
        or isinstance(value, Decimal | Fraction)
        or (isinstance(value, int | float) and not value <= 0.005)
    )
