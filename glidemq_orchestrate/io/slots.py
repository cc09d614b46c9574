"""The cluster server that a call goes to. Pure.

The server refuses a call whose keys are in several slots, so the first key decides.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeVar

from redis.crc import key_slot

from glidemq_orchestrate.settings import Endpoint
from glidemq_orchestrate.wire.call import Call, Word

T = TypeVar("T")

# Where a call goes: to the owner of a slot, to any primary, to every primary, or to one after the other.
Destination = int | Literal["any", "all", "scan"]

SLOTS: Final = 16384
_SECOND: Final = frozenset({"XINFO", "XGROUP", "OBJECT"})
_STREAMS: Final = frozenset({"XREAD", "XREADGROUP"})
_ANY: Final = frozenset({"ACL", "CLUSTER", "COMMAND", "CONFIG", "ECHO", "INFO", "PING", "TIME"})
_FUNCTIONS: Final = frozenset({"FCALL", "FCALL_RO"})
ABSENT: Final = ":gmo:absent"
_TAG: Final = re.compile(r"(?:[^{\\]|\\.)*\{((?:[^}\\*?\[]|\\.)+)\}")


def target(words: Sequence[Word]) -> Destination:
    """Where a call goes, by its command and first key."""
    name = str(words[0]).upper()
    if name in _ANY:
        return "any"
    if name == "FUNCTION" and not is_for_all(words):
        return "any"
    if name == "SCAN":
        tag = _scanned_tag(words)
        return "scan" if tag is None else _slot(tag)
    if is_for_all(words):
        return "all"
    return _slot(first_key(words))


def is_for_all(words: Sequence[Word]) -> bool:
    """Whether every primary of a cluster gets a call."""
    name = str(words[0]).upper()
    if name == "FUNCTION":
        return str(words[1]).upper() != "LIST"
    return name in {"FCALL", "FCALL_RO"} and not int(words[2])


def first_key(words: Sequence[Word]) -> Word:
    """The first key of a call that has one."""
    name = str(words[0]).upper()
    if name in {"FCALL", "FCALL_RO", "EVAL", "EVALSHA"}:
        return words[3]
    if name in _STREAMS:
        return words[[str(word).upper() for word in words].index("STREAMS") + 1]
    return words[2] if name in _SECOND else words[1]


def undivided(call: Call[T]) -> Call[T]:
    """The call of a function with one more declared key, which never exists. Other calls are unchanged.

    While a slot moves key by key, some of its keys are at one server, and some at another. A function would
    find one part only: it would end halfway, or write a second copy of what the other server has. Servers
    look at declared keys alone, and functions use more. If several keys are declared, both servers refuse a
    call (TRYAGAIN) unless all of them are there. With this key, none begins until the slot has moved.
    """
    words = call.words
    if words[0] not in _FUNCTIONS or not (end := int(words[2])):
        return call
    end += 3
    more = (*words[:2], end - 2, *words[3:end], f"{words[3]}{ABSENT}", *words[end:])
    return replace(call, words=more)


def _slot(key: Word) -> int:
    return int(key_slot(str(key).encode(errors="surrogateescape")))


def _scanned_tag(words: Sequence[Word]) -> str | None:
    """A hash tag shared by all keys that a scan matches; None if there is none."""
    names = [str(word).upper() for word in words]
    pattern = str(words[names.index("MATCH") + 1]) if "MATCH" in names else ""
    found = _TAG.match(pattern)
    return "{" + re.sub(r"\\(.)", r"\1", found[1]) + "}" if found else None


@dataclass(frozen=True, slots=True)
class SlotMap:
    """The primary of each slot, as ordered ranges (first, last, primary)."""

    ranges: tuple[tuple[int, int, Endpoint], ...]

    @classmethod
    def read(cls, reply: Any, replying: Endpoint) -> SlotMap:
        """Read the reply to CLUSTER SLOTS; a node without a host is the one that replied."""
        rows = [
            (int(row[0]), int(row[1]), Endpoint(row[2][0] or replying.host, int(row[2][1]))) for row in reply
        ]
        return cls(tuple(sorted(rows)))

    @property
    def primaries(self) -> tuple[Endpoint, ...]:
        """The primaries that serve slots, in a fixed order."""
        return tuple(sorted({place for _, _, place in self.ranges}))

    @property
    def covered(self) -> int:
        """How many of the 16,384 slots are served."""
        return sum(last - first + 1 for first, last, _ in self.ranges)

    def owner(self, slot: int) -> Endpoint | None:
        """The primary of a slot; None while no primary serves it."""
        return next((place for first, last, place in self.ranges if first <= slot <= last), None)
