"""The specification of a repeating job, as ChasquiMQ stores it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from glidemq_orchestrate.chasquimq.msgpack import Packable, pack, raw_list, unpack
from glidemq_orchestrate.errors import DecodeError

_WHERE: Final = "the specification of a repeating job"
_SLOTS: Final = (8, 9)


@dataclass(frozen=True, slots=True)
class Every:
    """A fixed interval."""

    interval_ms: int

    @property
    def suffix(self) -> str:
        """The end of the key of a schedule."""
        return f"every:{self.interval_ms}"

    @property
    def slot(self) -> Packable:
        """Its stored form."""
        return {"Every": [self.interval_ms]}


@dataclass(frozen=True, slots=True)
class CronTimes:
    """A cron expression; without a time zone it is in UTC."""

    expression: str
    time_zone: str | None = None

    @property
    def suffix(self) -> str:
        """The end of the key of a schedule."""
        return f"cron:{self.expression}:{self.time_zone or 'UTC'}"

    @property
    def slot(self) -> Packable:
        """Its stored form."""
        return {"Cron": [self.expression, self.time_zone]}


@dataclass(frozen=True, slots=True)
class Missed:
    """What happens to runs that no scheduler fired in time: at most this many of them are made up for.

    ``max_caught_up``: 0 skips them. 1 stands for ``FireOnce``, unless ``is_all``: then ``FireAll``.
    """

    max_caught_up: int = 0
    is_all: bool = False

    @property
    def slot(self) -> Packable:
        """Its stored form; None: the slot is omitted."""
        if self.is_all:
            return {"FireAll": [self.max_caught_up]}
        return "FireOnce" if self.max_caught_up else None


SKIP: Final = Missed()
FIRE_ONCE: Final = Missed(1)


@dataclass(frozen=True, slots=True)
class RepeatSpec:
    """A repeating job as stored.

    Attributes:
        key: Its key in the sorted set ``repeat``.
        name: The name of its jobs.
        pattern: When they are added.
        data: Their packed data.
        limit: The max number of jobs.
        start_ms: No job before this time.
        end_ms: No job after this time.
        missed: What happens to runs that no scheduler fired in time.
    """

    key: str
    name: str
    pattern: Every | CronTimes
    data: bytes
    limit: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    missed: Missed = SKIP

    @classmethod
    def of(cls, name: str, data: Packable, pattern: Every | CronTimes, **options: Any) -> RepeatSpec:
        """The specification with the key that ChasquiMQ derives from name and pattern.

        Raises:
            EncodeError: The data cannot be packed.
        """
        packed = pack(data, where=f"data of the repeating job {name}")
        return cls(f"{name}::{pattern.suffix}", name, pattern, packed, **options)

    @property
    def packed(self) -> bytes:
        """Its bytes. The data is a binary within a binary; ``fired`` is always 0, since the hash counts."""
        slots: list[Packable] = [
            self.key, self.name, self.pattern.slot, _packed(self.data), self.limit, self.start_ms,
            self.end_ms, 0,
        ]  # fmt: skip
        missed = self.missed.slot
        return _packed(slots if missed is None else [*slots, missed])

    @property
    def payload(self) -> bytes:
        """The payload slot of the envelopes of its jobs."""
        return _packed(self.data)

    @classmethod
    def read(cls, data: bytes) -> RepeatSpec:
        """Read a specification.

        Raises:
            DecodeError: It is not one, or its data is not stored as clients of ChasquiMQ do.
        """
        slots = [unpack(slot, where=_WHERE) for slot in raw_list(data, where=_WHERE)]
        if len(slots) not in _SLOTS:
            raise DecodeError(f"{_WHERE} has {len(slots)} slots; expected 8 or 9")
        key, name, pattern, payload, limit, start, end = slots[:7]
        inner = unpack(payload, where=_WHERE) if isinstance(payload, bytes) else None
        if not (isinstance(key, str) and isinstance(name, str) and isinstance(inner, bytes)):
            raise DecodeError(f"{_WHERE} has a key, a name or data of another type")
        return cls(
            key, name, _read_pattern(pattern), inner, _number(limit), _number(start), _number(end),
            _read_missed(slots[8] if len(slots) == 9 else None),
        )  # fmt: skip


def _packed(value: Packable) -> bytes:
    return pack(value, where=_WHERE)


def _read_pattern(slot: Any) -> Every | CronTimes:
    match slot:
        case {"Every": [int(interval)]} if interval > 0 and len(slot) == 1:
            return Every(interval)
        case {"Cron": [str(expression), str() | None as zone]} if len(slot) == 1:
            return CronTimes(expression, zone)
    raise DecodeError(f"{_WHERE} has no pattern that is known")


def _read_missed(slot: Any) -> Missed:
    match slot:
        case None | "Skip":
            return SKIP
        case "FireOnce":
            return FIRE_ONCE
        case {"FireAll": [int(count)]} if count > 0 and len(slot) == 1:
            return Missed(count, is_all=True)
    raise DecodeError(f"{_WHERE} has no policy for missed runs that is known")


def _number(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise DecodeError(f"{_WHERE} has a limit or time that is not a number")
    return value
