"""The envelope of a job: its id, its data, when it was added, how often it has failed, and its retry options.

An envelope is a msgpack list of four slots, or five with retry options. The name of the job is stored beside
it. The data is packed twice: the slot holds a binary, and that holds the packed data. Producers in Rust may
write the data itself into the slot; such jobs are read, too.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from glidemq_orchestrate.chasquimq.msgpack import (
    Packable,
    is_map,
    pack,
    pack_slots,
    raw_list,
    raw_map,
    read_slots,
    unpack,
)
from glidemq_orchestrate.errors import DecodeError, InvalidJob, PayloadTooLarge
from glidemq_orchestrate.foundation.durations import Duration, milliseconds
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.foundation.values import lasting

MAX_PAYLOAD_BYTES: Final = 1_048_576
OTHER_BYTES: Final = 8_192
"""More than the slots of an envelope beside its data can have."""
DEFAULT_MAX_ATTEMPTS: Final = 25
INITIAL_DELAY_MS: Final = 100
MULTIPLIER: Final = 2.0
MAX_DELAY_MS: Final = 30_000
JITTER_MS: Final = 100

_WHERE: Final = "the envelope of a job"
_FIELDS: Final = ("id", "payload", "created_at_ms", "attempt", "retry")
_BACKOFF_FIELDS: Final = ("kind", "delay_ms", "max_delay_ms", "multiplier", "jitter_ms")
_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS: Final = tuple(first + second for first in _ALPHABET for second in _ALPHABET)
_BINARIES: Final = (0xC4, 0xC5, 0xC6)
_MAX_32: Final = 2**32
_MAX_64: Final = 2**64


def new_job_id(now_ms: int) -> str:
    """A new ULID: 26 characters that sort by time."""
    number = (now_ms & (2**48 - 1)) << 80 | int.from_bytes(secrets.token_bytes(10))
    high, low = divmod(number, 2**60)  # most machines calculate with 64 bits
    return "".join(
        [_PAIRS[high >> shift & 1023] for shift in range(60, -1, -10)]
        + [_PAIRS[low >> shift & 1023] for shift in range(50, -1, -10)]
    )


@dataclass(frozen=True, slots=True)
class StoredBackoff:
    """The pauses between the runs of a job, as stored; None: what the worker uses by default."""

    kind: str
    delay_ms: int
    max_delay_ms: int | None = None
    multiplier: float | None = None
    jitter_ms: int | None = None

    @property
    def slots(self) -> list[Packable]:
        """Its five slots."""
        return [self.kind, self.delay_ms, self.max_delay_ms, self.multiplier, self.jitter_ms]


@dataclass(frozen=True, slots=True)
class ChasquiBackoff:
    """The pauses between the runs of a job. What is None is the default of the worker that runs it.

    Attributes:
        kind: ``fixed``: always ``delay``. ``exponential``: ``delay``, then ``multiplier`` times as long after
            each failure.
        delay: The first pause; not negative.
        max_delay: The longest pause before jitter is added; by default 30 seconds, also for ``fixed``.
        multiplier: By default 2.
        jitter: Up to this much is added at random, after the limit; by default 100 ms.
    """

    kind: Literal["exponential", "fixed"] = "exponential"
    delay: Duration = INITIAL_DELAY_MS / 1000
    max_delay: Duration | None = None
    multiplier: float | None = None
    jitter: Duration | None = None

    def __post_init__(self) -> None:
        """Refuse what no worker could apply."""
        if self.kind not in ("fixed", "exponential"):
            raise InvalidJob(f"backoff kind {described(self.kind)} is unknown; use 'fixed' or 'exponential'")
        lasting("backoff.delay", self.delay)
        for name, value in (("max_delay", self.max_delay), ("jitter", self.jitter)):
            if value is not None:
                lasting(f"backoff.{name}", value)
        number = self.multiplier
        if number is not None and (
            isinstance(number, bool)
            or not isinstance(number, int | float)
            or not (math.isfinite(number) and number >= 0)
        ):
            raise InvalidJob(f"backoff.multiplier must be a number of at least 0, got {described(number)}")

    @property
    def stored(self) -> StoredBackoff:
        """Its stored form."""
        return StoredBackoff(
            self.kind,
            milliseconds(self.delay),
            None if self.max_delay is None else milliseconds(self.max_delay),
            None if self.multiplier is None else float(self.multiplier),
            None if self.jitter is None else milliseconds(self.jitter),
        )


@dataclass(frozen=True, slots=True)
class Retry:
    """The retry options of a job; None: the default of the worker that runs it."""

    max_attempts: int | None = None
    backoff: StoredBackoff | None = None

    def wait_ms(self, failures: int, chance: float) -> int:
        """Milliseconds to wait after the ``failures``-th failure (1 is the first).

        The jitter is added after the limit, so the wait may be longer than ``max_delay_ms``.
        """
        own = self.backoff or StoredBackoff("exponential", INITIAL_DELAY_MS)
        longest = MAX_DELAY_MS if own.max_delay_ms is None else own.max_delay_ms
        jitter = JITTER_MS if own.jitter_ms is None else own.jitter_ms
        base = float(own.delay_ms)
        if own.kind != "fixed":  # every unknown kind is exponential
            multiplier = MULTIPLIER if own.multiplier is None else own.multiplier
            base *= _power(multiplier, failures - 1)
        return int(min(max(base, 0.0), longest) if base == base else 0) + int(chance * jitter)  # noqa: PLR0124


def _power(base: float, exponent: int) -> float:
    try:
        return float(base**exponent)
    except OverflowError:
        return math.inf


NO_RETRY: Final = Retry()


@dataclass(frozen=True, slots=True)
class Envelope:
    """A job as stored.

    Attributes:
        job_id: Its id.
        payload: The packed content of its slot: a binary, or inline data of a producer in Rust.
        created_at_ms: When it was added.
        attempt: How many runs have failed.
        retry: Its retry options; None: the slot is missing. ``Retry()`` is a slot without any option.
    """

    job_id: str
    payload: bytes
    created_at_ms: int
    attempt: int = 0
    retry: Retry | None = None

    @classmethod
    def of(cls, job_id: str, data: Packable, created_at_ms: int, retry: Retry | None = None) -> Envelope:
        """The envelope of a new job.

        Raises:
            EncodeError: The data cannot be packed.
            PayloadTooLarge: The envelope would be longer than the limit of ChasquiMQ's workers.
        """
        where = f"data of job {job_id}"
        made = cls(job_id, pack(pack(data, where=where), where=where), created_at_ms, 0, retry)
        may_be_long = len(made.payload) > MAX_PAYLOAD_BYTES - OTHER_BYTES
        if may_be_long and (size := len(made.packed)) > MAX_PAYLOAD_BYTES:
            raise PayloadTooLarge(
                f"{where} makes an envelope of {size:,} bytes; ChasquiMQ's workers accept "
                f"{MAX_PAYLOAD_BYTES:,}. Fix: write the data to a file, table or object store and pass its "
                "location",
                where=where,
            )
        return made

    @classmethod
    def read(cls, data: bytes) -> Envelope:
        """Read an envelope in any form that ChasquiMQ 1.3 reads, also with inline data.

        Raises:
            DecodeError: It is not an envelope.
        """
        if (usual := read_slots(data)) is not None:
            job_id, payload, created, attempt, retry = usual
            return cls(
                job_id,
                payload,
                _whole(created, "created_at_ms", _MAX_64),
                _whole(attempt, "attempt", _MAX_32),
                _read_retry(retry),
            )
        if is_map(data):
            named = raw_map(data, where=_WHERE)
            slots = [named.get(name, b"\xc0") for name in _FIELDS]
            if "attempt" not in named:
                slots[3] = b"\x00"
        else:
            slots = raw_list(data, where=_WHERE)
            if not 3 <= len(slots) <= 5:
                raise DecodeError(f"{_WHERE} has {len(slots)} slots; expected 3 to 5")
            slots += [b"\x00", b"\xc0"][len(slots) - 3 :]
        return cls(
            _text(_value(slots[0]), "id"),
            slots[1],
            _whole(_value(slots[2]), "created_at_ms", _MAX_64),
            _whole(_value(slots[3]), "attempt", _MAX_32),
            _read_retry(_value(slots[4])),
        )

    @property
    def packed(self) -> bytes:
        """Its bytes."""
        slots: list[Any] = [self.job_id, self.payload, self.created_at_ms, self.attempt]
        if self.retry is not None:
            own = self.retry.backoff
            slots.append([self.retry.max_attempts, own.slots if own else None])
        return pack_slots(slots, 1, where=_WHERE)

    @property
    def data(self) -> Any:
        """The data of the job.

        Raises:
            DecodeError: The payload is a binary without msgpack in it.
        """
        where = f"data of job {self.job_id}"
        content = unpack(self.payload, where=where)
        return unpack(content, where=where) if self.payload[0] in _BINARIES else content

    @property
    def options(self) -> Retry:
        """Its retry options, if it has any."""
        return self.retry or NO_RETRY

    def again(self) -> Envelope:
        """The same job after one more failed run."""
        return replace(self, attempt=self.attempt + 1)

    def afresh(self) -> Envelope:
        """The same job as if it had never run."""
        return replace(self, attempt=0)


def is_exhausted(attempt: int, max_attempts: int) -> bool:
    """Whether a job whose run with this ``attempt`` failed may not run again."""
    return attempt + 1 >= max_attempts


def _value(data: bytes) -> Any:
    return unpack(data, where=_WHERE)


def _read_retry(value: Any) -> Retry | None:
    if value is None:
        return None
    limit, backoff = _slots(value, ("max_attempts", "backoff"), "retry options")
    return Retry(_optional(limit, "max_attempts", _MAX_32), _read_backoff(backoff))


def _read_backoff(value: Any) -> StoredBackoff | None:
    if value is None:
        return None
    kind, delay, longest, multiplier, jitter = _slots(value, _BACKOFF_FIELDS, "backoff")
    if multiplier is not None and (isinstance(multiplier, bool) or not isinstance(multiplier, int | float)):
        raise DecodeError("the multiplier of the backoff of a job is not a number")
    return StoredBackoff(
        _text(kind, "kind"),
        _whole(delay, "delay_ms", _MAX_64),
        _optional(longest, "max_delay_ms", _MAX_64),
        None if multiplier is None else float(multiplier),
        _optional(jitter, "jitter_ms", _MAX_64),
    )


def _slots(value: Any, names: tuple[str, ...], what: str) -> list[Any]:
    """The values of a list with as many slots, or of a map with these names."""
    if isinstance(value, dict):
        return [value.get(name) for name in names]
    if not isinstance(value, list) or len(value) != len(names):
        raise DecodeError(f"the {what} of a job must have {len(names)} slots")
    return value


def _text(value: Any, what: str) -> str:
    try:
        text = value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        text = None
    if not isinstance(text, str):
        raise DecodeError(f"{what} in {_WHERE} is not a text")
    return text


def _whole(value: Any, what: str, limit: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < limit:
        raise DecodeError(f"{what} in {_WHERE} is not a number from 0 to {limit - 1}")
    return value


def _optional(value: Any, what: str, limit: int) -> int | None:
    return None if value is None else _whole(value, what, limit)
