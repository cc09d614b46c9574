"""The usage of jobs: reports, sums over time, and the budget of a flow of glide-mq."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, Final

from glidemq_orchestrate import events
from glidemq_orchestrate.errors import (
    ConfigurationError,
    InvalidJob,
    ServerBusy,
)
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.durations import Duration, milliseconds
from glidemq_orchestrate.foundation.values import amount, lasting, named
from glidemq_orchestrate.jobs.attempt import from_outside
from glidemq_orchestrate.wire import replies, stored
from glidemq_orchestrate.wire.call import (
    Call,
    Op,
    Word,
    ask,
    ask_all,
    ask_each,
    command,
    fields_of,
    function,
    members,
    parts,
    whole_hash,
)
from glidemq_orchestrate.wire.keys import QueueKeys, queues_with_usage
from glidemq_orchestrate.wire.stored import parsed_object, span

MINUTE_MS: Final = 60_000
KEPT: Final = timedelta(days=30)
NEWEST_MS: Final = 253_402_300_799_999
"""The last millisecond that ``datetime`` supports, in the year 9999."""
MAX_READS: Final = 100_000
SLICE: Final = 500
TRIES: Final = 200
PAUSE_MS: Final = 25


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of one job. Every number is finite and not negative.

    Attributes:
        model: The model that was used; ``provider``: the company that runs it.
        tokens: By category, such as input and output.
        total_tokens: The sum of ``tokens`` by default.
        costs: By category.
        total_cost: The sum of ``costs`` by default.
        cost_unit: A currency, such as USD.
        latency: How long the call took.
        cached: Whether the response came from a cache.
    """

    model: str | None = None
    provider: str | None = None
    tokens: Mapping[str, float] = field(default_factory=dict)
    total_tokens: float | None = None
    costs: Mapping[str, float] = field(default_factory=dict)
    total_cost: float | None = None
    cost_unit: str | None = None
    latency: Duration | None = None
    cached: bool | None = None

    def __post_init__(self) -> None:
        """Refuse values that cannot be summed."""
        for name in ("model", "provider", "cost_unit"):
            if getattr(self, name) is not None:
                named(name, getattr(self, name))
        for name in ("tokens", "costs"):
            if not isinstance(getattr(self, name), Mapping):
                raise InvalidJob(
                    f"{name} must be numbers by category, got {type(getattr(self, name)).__name__}"
                )
            for category, value in getattr(self, name).items():
                named(f"category of {name}", category)
                amount(f"{name}.{category}", value)
        for name in ("total_tokens", "total_cost"):
            if getattr(self, name) is not None:
                amount(name, getattr(self, name))
        if self.latency is not None:
            object.__setattr__(self, "latency", lasting("latency", self.latency))

    def to_wire(self) -> dict[str, Any]:
        """The form of glide-mq, with the sums; absent parts are omitted."""
        total_tokens, total_cost = _sum(self.total_tokens, self.tokens), _sum(self.total_cost, self.costs)
        wire: dict[str, Any] = {
            "model": self.model,
            "provider": self.provider,
            "tokens": dict(self.tokens) or None,
            "totalTokens": total_tokens,
            "costs": dict(self.costs) or None,
            "totalCost": total_cost,
            "costUnit": self.cost_unit,
            "latencyMs": None if self.latency is None else milliseconds(self.latency),
            "cached": self.cached,
        }
        return {name: value for name, value in wire.items() if value is not None}


def _sum(total: float | None, parts: Mapping[str, float]) -> float | None:
    return sum(parts.values()) if total is None and parts else total


EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class UsageSummary:
    """The usage of the jobs of some queues from ``start`` to ``end``, by minute.

    ``models`` counts the jobs of each model; ``by_queue`` has a summary for each queue.
    """

    start: datetime
    end: datetime
    jobs: int
    tokens: Mapping[str, float]
    total_tokens: float
    costs: Mapping[str, float]
    total_cost: float
    cost_unit: str | None
    models: Mapping[str, float]
    by_queue: Mapping[str, UsageSummary]


@dataclass(frozen=True, slots=True)
class FlowBudget:
    """The limits of a flow created by glide-mq's producer, and the usage of its jobs."""

    max_total_tokens: float | None
    max_tokens: Mapping[str, float]
    token_weights: Mapping[str, float]
    max_total_cost: float | None
    max_costs: Mapping[str, float]
    cost_unit: str | None
    used_tokens: float
    used_cost: float
    exceeded: bool
    on_exceeded: str


def report(queue: QueueKeys, job_id: str, usage: Usage, clock: Clock, proof: Sequence[Word] = ()) -> Op[None]:
    """Store the usage of a job, with the proof of its attempt; waits while a Node client does the same."""
    wire = usage.to_wire()
    if not wire:
        raise InvalidJob("usage is empty: nothing to report")
    text = json.dumps(wire, separators=(",", ":"), ensure_ascii=False)
    fields = {f"usage:{name}": _text(value) for name, value in wire.items()}
    for _ in range(TRIES):
        shown = proof or from_outside(job_id)
        call = report_usage(queue, shown, text, fields, clock.now_ms())
        if (yield from ask(call)):
            # In a cluster this set is in another slot; the report itself is stored.
            yield from ask_each([remember_usage(queue)])
            return
        yield from ask(events.read_events(queue, "$", 1, PAUSE_MS))  # a pause, spent in the server
    raise ServerBusy(f"the usage of job {job_id} is locked by another client")


def usage_of(queue: QueueKeys, job_id: str) -> Op[Usage | None]:
    """The reported usage of a job."""
    names = (
        "model",
        "provider",
        "tokens",
        "totalTokens",
        "costs",
        "totalCost",
        "costUnit",
        "latencyMs",
        "cached",
    )
    row = yield from ask(fields_of(queue.job(job_id), *(f"usage:{name}" for name in names)))
    if all(value is None for value in row):
        return None
    latency = _number(row[7])
    return Usage(
        model=row[0] or None,
        provider=row[1] or None,
        tokens=_numbers(row[2]),
        total_tokens=_number(row[3]),
        costs=_numbers(row[4]),
        total_cost=_number(row[5]),
        cost_unit=row[6] or None,
        latency=None if latency is None else span(latency),
        cached=None if row[8] is None else row[8] == "1",
    )


def summary(
    prefix: str, queues: Sequence[str] | None, start: datetime | None, end: datetime | None, now_ms: int
) -> Op[UsageSummary]:
    """Sum up the usage of queues."""
    last = now_ms if end is None else _ms("end", end)
    first = last - 3_600_000 if start is None else _ms("start", start)
    first = max(first, now_ms - milliseconds(KEPT))
    if first > last:
        raise ConfigurationError("start must not be after end")
    if queues is None:
        queues = yield from ask(members(queues_with_usage(prefix)))
    minutes = range(first - first % MINUTE_MS, last + 1, MINUTE_MS)
    if len(minutes) * len(queues) > MAX_READS:
        raise ConfigurationError(
            f"more than {MAX_READS:,} buckets to read. Fix: request a shorter period or fewer queues"
        )
    span = (datetime.fromtimestamp(first / 1000, UTC), datetime.fromtimestamp(last / 1000, UTC))
    alone: dict[str, UsageSummary] = {}
    everything: list[dict[str, str]] = []
    for name in queues:
        buckets = yield from _buckets(QueueKeys(prefix, name), minutes)
        everything += buckets
        alone[name] = _summed(span, buckets, {})
    return _summed(span, everything, alone)


def budget(queue: QueueKeys, root_id: str) -> Op[FlowBudget | None]:
    """Read the budget of a flow by the id of its root job."""
    fields = yield from ask(whole_hash(queue.budget(root_id)))
    if not fields:
        return None
    return FlowBudget(
        max_total_tokens=_number(fields.get("maxTotalTokens")),
        max_tokens=_numbers(fields.get("maxTokens")),
        token_weights=_numbers(fields.get("tokenWeights")),
        max_total_cost=_number(fields.get("maxTotalCost")),
        max_costs=_numbers(fields.get("maxCosts")),
        cost_unit=fields.get("costUnit"),
        used_tokens=_number(fields.get("usedTokens")) or 0.0,
        used_cost=_number(fields.get("usedCost")) or 0.0,
        exceeded=fields.get("exceeded") == "1",
        on_exceeded=fields.get("onExceeded", "fail"),
    )


def _buckets(queue: QueueKeys, minutes: range) -> Op[list[dict[str, str]]]:
    found: list[dict[str, str]] = []
    for some in parts(minutes, SLICE):
        rows = yield from ask_all([whole_hash(queue.usage(at)) for at in some])
        found += [row for row in rows if row]
    return found


def _summed(
    span: tuple[datetime, datetime], buckets: Sequence[Mapping[str, str]], alone: Mapping[str, UsageSummary]
) -> UsageSummary:
    """The sums of the minute buckets, with the summaries of the single queues."""
    sums: dict[str, dict[str, float]] = {
        kind: defaultdict(float) for kind in ("", "tokens", "costs", "models")
    }
    unit = None
    for bucket in buckets:
        unit = bucket.get("costUnit", unit)
        for name, value in bucket.items():
            kind, mark, category = name.partition(":")
            if (number := _number(value)) is not None and (not mark or kind in sums):
                sums[kind if mark else ""][category if mark else name] += number
    total = sums[""]
    return UsageSummary(
        start=span[0],
        end=span[1],
        jobs=stored.number(total["jobCount"]),
        tokens=dict(sums["tokens"]),
        total_tokens=total["totalTokens"],
        costs=dict(sums["costs"]),
        total_cost=total["totalCost"],
        cost_unit=unit,
        models=dict(sums["models"]),
        by_queue=alone,
    )


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _number(text: object) -> float | None:
    try:
        number = float(str(text))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _numbers(text: str | None) -> dict[str, float]:
    rows = parsed_object(text).items()
    return {name: number for name, value in rows if (number := _number(value)) is not None}


def _ms(name: str, at: datetime) -> int:
    if at.tzinfo is None:
        raise ConfigurationError(f"{name} must have a time zone")
    return min((at - EPOCH) // timedelta(milliseconds=1), NEWEST_MS)  # not timestamp(), which rounds


def report_usage(
    queue: QueueKeys, proof: Sequence[Word], usage: str, fields: Mapping[str, str], now_ms: int
) -> Call[int]:
    """Store the usage of a job; 0 while a Node client is writing it. Idempotent.

    ``proof``: from ``proof`` of an attempt, or ``from_outside``.
    """
    args: list[Word] = [now_ms, *proof, usage]
    args += chain.from_iterable(fields.items())
    return function("gmo_report_usage", [queue.job(str(proof[0]))], args, replies.integer)


def remember_usage(queue: QueueKeys) -> Call[None]:
    """Add the queue to the set of queues with usage. Idempotent."""
    return command("SADD", queues_with_usage(queue.prefix), queue.queue, decode=replies.anything)


def forget_usage(queue: QueueKeys) -> Call[None]:
    """Remove the queue from the set of queues with usage. Idempotent."""
    return command("SREM", queues_with_usage(queue.prefix), queue.queue, decode=replies.anything)
