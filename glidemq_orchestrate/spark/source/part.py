"""Parts of a sorted set, a list or a stream: divides keys into parts, and reads the pages of a part.

Only ordinary commands are used; each reads at most one page.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal, TypeVar

from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, command

PAGE: Final = 1000
MAX_PARTS: Final = 10_000
END_OF_TIME_MS: Final = 2**53
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Times:
    """The times from ``low`` on and before ``high``, in ms since the epoch."""

    low: int = 0
    high: int = END_OF_TIME_MS

    @property
    def is_all(self) -> bool:
        """Whether every time is included."""
        return self == ALL_TIMES

    @property
    def bounds(self) -> tuple[str, str]:
        """The times as bounds of scores."""
        high = "+inf" if self.high == END_OF_TIME_MS else f"({self.high}"
        return str(self.low) if self.low else "-inf", high

    def has(self, ms: int) -> bool:
        """Whether a time is included."""
        return self.low <= ms < self.high

    def within(self, other: Times) -> Times:
        """The intersection of both."""
        return Times(max(self.low, other.low), min(self.high, other.high))


ALL_TIMES: Final = Times()


@dataclass(frozen=True, slots=True)
class Span:
    """A part of one key: the members of a sorted set, or entries of a stream, within bounds; or a whole list.

    Attributes:
        low, high: The bounds of scores or entry ids, in the form of the server's commands.
        size: The approximate number of elements.
    """

    kind: Literal["sorted", "list", "stream"]
    key: str
    low: str = "-inf"
    high: str = "+inf"
    size: int = 0


@dataclass(frozen=True, slots=True)
class Position:
    """The start of the next page of a span, and elements there that were already returned."""

    low: str
    seen: frozenset[str] = frozenset()


def cut_sorted(key: str, times: Times, length: int, size: int) -> Op[list[Span]]:
    """The ``length`` members of a sorted set with these times as scores, in spans of ``size``."""
    low, high = times.bounds
    if length <= size:
        return [Span("sorted", key, low, high, length)] if length else []
    below = yield from ask(count_between(key, "-inf", f"({low}"))
    count = _parts(length, size)
    ranks = [below + length * number // count for number in range(1, count)]
    scores = yield from ask_all([score_at(key, rank) for rank in ranks])
    cuts = [low, *(_text(score) for score in sorted({score for score in scores if score is not None})), high]
    ends = [*(f"({cut}" for cut in cuts[1:-1]), high]
    each = math.ceil(length / len(ends))
    return [Span("sorted", key, start, end, each) for start, end in zip(cuts, ends, strict=False)]


def cut_stream(key: str, times: Times, length: int, size: int) -> Op[list[Span]]:
    """The entries of a stream with these times, in spans of equal time, of ``size`` if evenly distributed."""
    oldest = yield from ask(entries(key, "-", "+", 1))
    newest = yield from ask(command("XREVRANGE", key, "+", "-", "COUNT", 1, decode=_entries))
    if not oldest or not newest:
        return []
    low, high = max(_ms(oldest[0][0]), times.low), min(_ms(newest[0][0]) + 1, times.high)
    if high <= low:
        return []
    count = min(_parts(length, size), high - low)
    cuts = [low + (high - low) * number // count for number in range(count + 1)]
    each = math.ceil(length / count)
    return [Span("stream", key, str(start), str(end - 1), each) for start, end in pairwise(cuts)]


def page(span: Span, at: Position | None) -> Op[tuple[list[str], Position | None]]:
    """The next page of a span, which begins with None: ids of jobs or flows, and where to continue.

    Elements that stay in the span during the read are returned once.
    """
    if span.kind == "sorted":
        return (yield from _sorted_page(span, at or Position(span.low)))
    if span.kind == "list":
        return (yield from _list_page(span, at or Position("0")))
    found = yield from ask(entries(span.key, at.low if at else span.low, span.high, PAGE))
    ids = [fields["jobId"] for _, fields in found if fields.get("jobId")]
    return ids, Position(f"({found[-1][0]}") if len(found) == PAGE else None


def _sorted_page(span: Span, at: Position) -> Op[tuple[list[str], Position | None]]:
    """Many members may have one score, so a page starts with the last score of the previous page."""
    count = PAGE + len(at.seen)
    found = yield from ask(scored(span.key, at.low, span.high, count))
    ids = [member for member, _ in found if member not in at.seen]
    if len(found) < count:
        return ids, None
    last = found[-1][1]
    return ids, Position(_text(last), frozenset(member for member, score in found if score == last))


def _list_page(span: Span, at: Position) -> Op[tuple[list[str], Position | None]]:
    """Read from the end opposite to the workers: new elements there shift the others, so none is missed."""
    first = int(at.low)
    found = yield from ask(command("LRANGE", span.key, first, first + PAGE - 1, decode=list))
    ids = [member for member in dict.fromkeys(found) if member not in at.seen]
    if len(found) < PAGE:
        return ids, None
    return ids, Position(str(first + PAGE), at.seen.union(ids))


def grouped(parts: Sequence[T], sizes: Sequence[int], most: int) -> Iterator[tuple[T, ...]]:
    """Group small parts, in order, so that each group has about ``most`` elements."""
    group: list[T] = []
    total = 0
    for part, size in zip(parts, sizes, strict=True):
        if group and total + size > most:
            yield tuple(group)
            group, total = [], 0
        group.append(part)
        total += size
    if group:
        yield tuple(group)


def _parts(length: int, size: int) -> int:
    return max(1, min(math.ceil(length / size), MAX_PARTS))


def _text(score: float) -> str:
    return f"{score:.17g}"


def _ms(entry_id: str) -> int:
    return int(entry_id.partition("-")[0])


Entry = tuple[str, dict[str, str]]


def count_between(key: str, low: str, high: str) -> Call[int]:
    """The number of members of a sorted set with scores within these bounds."""
    return command("ZCOUNT", key, low, high, decode=replies.integer)


def score_at(key: str, rank: int) -> Call[float | None]:
    """The score of the member at a rank; None past the end."""
    words = ("ZRANGE", key, rank, rank, "WITHSCORES")
    return command(*words, decode=lambda reply: float(reply[1]) if reply else None)


def scored(key: str, low: str, high: str, count: int) -> Call[list[tuple[str, float]]]:
    """The first members of a sorted set within these bounds, with their scores."""

    def decode(reply: Any) -> list[tuple[str, float]]:
        return list(zip(reply[::2], map(float, reply[1::2]), strict=True))

    words = ("ZRANGEBYSCORE", key, low, high, "WITHSCORES", "LIMIT", 0, count)
    return command(*words, decode=decode)


def entries(key: str, first: str, last: str, count: int) -> Call[list[Entry]]:
    """The first entries of a stream within these bounds."""
    words = ("XRANGE", key, first, last, "COUNT", count)
    return command(*words, decode=_entries)


def _entries(reply: Any) -> list[Entry]:
    return [(str(entry[0]), replies.pairs(entry[1] or [])) for entry in reply]
