"""An attempt (one run of a job in a worker): its token, its worker id, and the calls that write for it.

The id of a worker contains the length of its leases. The search for lost workers needs it, and a killed
worker can no longer report it. So it is part of the name under which the server stores the holder of a job
or message; ``parts/lease.lua`` reads it there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.jobs.job_hash import FIELD_FLOW, FIELD_NODE
from glidemq_orchestrate.jobs.options import RunOptions
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Word, function
from glidemq_orchestrate.wire.codec import is_utf8, readable
from glidemq_orchestrate.wire.keys import GROUP, QueueKeys, read_generation
from glidemq_orchestrate.wire.stored import exact, number

UNREADABLE_ITEMS: Final = "?"
"""No JSON: the worker fails the elements of the slice with that reason."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Elements of an array that a worker holds under one lease.

    Attributes:
        array_id: The job id of the array.
        indexes: The positions of the elements, ascending.
        tried: How many attempts of each have failed.
        items: The items as JSON, a line each; '' for a range.
        start, step: Of the range.
        is_kept: The others were reported early, or given back: only one is left.
    """

    array_id: str
    indexes: Sequence[int]
    tried: Sequence[int]
    items: str = ""
    start: int = 0
    step: int = 0
    is_kept: bool = False

    @classmethod
    def from_row(cls, slice_id: str, row: Sequence[str]) -> Slice:
        """Build from the last part of a row of ``gmo_finish_and_fetch``."""
        indexes, tried, items, span = row
        begin, _, width = span.partition(" ")
        start = step = 0
        try:
            start, step = int(begin or 0), int(width or 0)
        except ValueError:
            items = UNREADABLE_ITEMS
        known: list[int] = []
        for part in indexes.split(","):
            first, _, last = part.partition("-")
            known += range(int(first), int(last or first) + 1)
        return cls(
            slice_id.rpartition("{")[0],
            known,
            [int(count) for count in tried.split(",")] if tried else [0] * len(known),
            items,
            start,
            step,
        )


@dataclass(slots=True)
class Attempt:
    """An active job in a worker, with the token that proves ownership of the attempt.

    ``inputs``: the stored results of the dependencies by node name; None if they must be read in pages.
    ``flow_id``, ``generation``: its flow as users see it; ``stored_flow``: the id under which it is stored.
    ``unreadable``: why no handler can run it; it fails permanently with that reason.
    ``is_mute``: messages that its handler still sends are dropped.
    ``epoch``: the number of this activation, larger than every earlier number of the job; 0 if unknown.
    ``is_ahead``: it was prefetched; the start of its handler is reported to the server later.
    ``suspect``: the number of worker losses that it may have caused; None if it was involved in none.
    ``seconds``: how long its handler ran, once that has ended.
    ``slice``: the elements, if it is a slice of an array; ``attempts_made`` is then that of the current one.
    ``element``: the position of the current one, or of the one that is this job; None for a batch of them,
    and for any other job.
    ``array_id``: the job id of its array, if it is the job of an element.
    ``is_growing``: whether it belongs to an array over a list.
    """

    queue: str
    job_id: str
    entry_id: str
    token: str
    processed_on: str
    name: str
    data: str
    options: RunOptions
    attempts_made: int
    flow_id: str | None
    node: str | None
    signals: str = ""
    fallback_index: int = 0
    budget_key: str = ""
    inputs: Mapping[str, str] | None = field(default_factory=dict)
    unreadable: str = ""
    is_mute: bool = False
    generation: int = 0
    stored_flow: str = ""
    epoch: int = 0
    is_ahead: bool = False
    suspect: int | None = None
    seconds: float = 0.0
    slice: Slice | None = None
    element: int | None = None
    array_id: str = ""
    is_growing: bool = False

    @classmethod
    def from_wire(cls, queue: str, entry_id: str, token: str, fields: Mapping[str, str]) -> Attempt:
        """Build from the fields of an active job hash; accepts any content."""
        name, opts, made = fields.get("name", ""), fields.get("opts", ""), fields.get("attemptsMade")
        stored = fields.get(FIELD_FLOW)
        flow_id, generation = read_generation(stored) if stored else (stored, 0)
        return cls(
            queue=queue,
            job_id=fields.get("id", ""),
            entry_id=entry_id,
            token=token,
            processed_on=fields.get("processedOn", ""),
            name=name,
            data=fields.get("data", ""),
            options=RunOptions.from_wire(opts),
            attempts_made=exact(made) or 0,
            flow_id=flow_id,
            node=fields.get(FIELD_NODE),
            unreadable=_flaw(("name", name), ("opts", opts)) or _invalid_count(("attemptsMade", made)),
            generation=generation,
            stored_flow=stored or "",
        )

    @classmethod
    def from_row(cls, queue: str, token: str, row: list[Any]) -> Attempt:
        """Build from a row of ``gmo_finish_and_fetch``; accepts any content."""
        job_id, entry_id, processed_on, name, data, opts, made, flow_id, node = row[:9]
        signals, fallback, budget, inputs, epoch, suspect, ahead, *elements = row[9:]
        options = RunOptions.from_wire(opts or "")
        if not flow_id and options.portable:
            flow_id, node = options.portable
        stored, generation = flow_id or "", 0
        if stored:
            flow_id, generation = read_generation(stored)
        results: dict[str, str] | None = None if flow_id else {}
        if inputs is not None:
            results = dict(zip(inputs[::2], inputs[1::2], strict=False))
        unreadable = ""
        if not f"{job_id}{name}{opts}{flow_id}{node}".isascii():  # the common case: one check for all
            unreadable = _flaw(
                ("id", job_id), ("name", name), ("opts", opts), ("flow", flow_id), ("node", node)
            )
        if (made and made != "0") or fallback:
            unreadable = unreadable or _invalid_count(("attemptsMade", made), ("fallbackIndex", fallback))
        # As __init__ does, but without a call with two dozen arguments for each job.
        self = object.__new__(cls)
        self.queue = queue
        self.job_id = job_id
        self.entry_id = entry_id
        self.token = token + ahead
        self.processed_on = processed_on or ""
        self.name = name or ""
        self.data = data or ""
        self.options = options
        self.attempts_made = exact(made) or 0
        self.flow_id = flow_id
        self.node = node
        self.signals = signals or ""
        self.fallback_index = exact(fallback) or 0 if fallback else 0
        self.budget_key = budget or ""
        self.inputs = results
        self.unreadable = unreadable
        self.is_mute = False
        self.generation = generation
        self.stored_flow = stored
        self.epoch = exact(epoch) or 0
        self.is_ahead = bool(ahead)
        self.suspect = None if suspect is None else exact(suspect) or 0
        self.seconds = 0.0
        self.slice = self.element = None
        self.array_id, self.is_growing = "", False
        if elements and len(elements[0]) == _OF_ELEMENT:
            self.array_id, position, growing = elements[0]
            self.element, self.is_growing = int(position), growing == "1"
        elif elements:
            self.slice = Slice.from_row(job_id, elements[0])
            self.is_growing = bool(self.slice.items)
        return self

    @property
    def node_job_id(self) -> str:
        """The job of the node: the array, for a slice or an element of one."""
        return self.slice.array_id if self.slice else self.array_id or self.job_id

    @property
    def is_of_array(self) -> bool:
        """Whether it runs elements of an array."""
        return self.slice is not None or bool(self.array_id)


_OF_ELEMENT: Final = 3


def _flaw(*texts: tuple[str, str | None]) -> str:
    """Why one of the texts cannot be read; '' if all can."""
    for name, text in texts:
        if text and not text.isascii() and not is_utf8(text):
            return f"its {name} is not UTF-8"
    return ""


def _invalid_count(*counts: tuple[str, str | None]) -> str:
    """Why one of the counts cannot be read; '' if all can."""
    for name, text in counts:
        if text and exact(text) is None:
            return f"its {name} is not a whole number"
    return ""


def progress(attempt: Attempt, queue: QueueKeys, value: str, now_ms: int) -> Call[int]:
    """Store the progress of a job and emit an event."""
    return function(
        "gmo_progress", [queue.job(attempt.job_id)], (now_ms, *proof(attempt), value), replies.integer
    )


def note_published(attempt: Attempt, queue: QueueKeys, lines: Sequence[str], now_ms: int) -> Call[int]:
    """Record what an attempt has written; see ``gmo_note_published.lua``. Returns the number of records."""
    words = (now_ms, *proof(attempt), *lines)
    return function(
        "gmo_note_published", [queue.job(attempt.job_id)], words, replies.integer, repeatable=True
    )


def queue_timeout(queue: QueueKeys, job_id: str) -> Call[int]:
    """How many ms after it may run a node fails if no worker has started it; 0 for no limit."""
    return job_hash.get(queue, job_id, "gmo:queue_timeout", lambda reply: int(number(reply or "")))


def note_unhandled(queue: QueueKeys, job_id: str, why: str) -> Call[int]:
    """Store why workers cannot run a node, as the reason for its queue timeout. Idempotent."""
    return job_hash.touch(queue, job_id, "gmo:unhandled", why)


def proof(attempt: Attempt) -> Sequence[Word]:
    """The arguments with which the server checks the lease; see ``lease.lua``."""
    return (attempt.job_id, attempt.entry_id, GROUP, attempt.token, attempt.processed_on)


def from_outside(job_id: str) -> Sequence[Word]:
    """The proof of a caller that does not run the job."""
    return (job_id, "", "", "", "")


_BETWEEN = "/"


def token_of(worker_id: str, secret: str) -> str:
    """The token of all attempts that a worker starts with one call."""
    return f"{worker_id}{_BETWEEN}{secret}"


def worker_of(token: str) -> str | None:
    """The worker id in a token; None without one."""
    return readable(token.rpartition(_BETWEEN)[0]) or None


OURS: Final = "gmo-worker-"
OF_BROADCASTS: Final = "gmo-broadcast-"
_LEASE: Final = re.compile(r"-(\d{1,8})ms\Z")
_MAX_MS: Final = 86_400_000


def worker_id(kind: str, unique: str, lock_ms: int) -> str:
    """The id of a worker; ``kind`` is ``OURS`` or ``OF_BROADCASTS``. Leases are capped at a day."""
    return f"{kind}{unique}-{min(lock_ms, _MAX_MS)}ms"


def lease_of(worker: str) -> timedelta | None:
    """The length of the leases of a worker; None if its id does not contain it."""
    found = _LEASE.search(worker)
    return timedelta(milliseconds=int(found[1])) if found else None


NOT_PASSED: Final = "the check did not pass"
"""The failure reason of a job with ``must_pass``; its result is then stored as its progress."""


def has_passed(result: Any) -> bool:
    """Whether the result of a check passes. All do, except the following.

    ``False`` and ``{"passed": false}`` do not pass. ``{"checks": [...]}`` does not pass with a failed check,
    unless that is a warning: ``{"passed": false, "severity": "WARN"}``.
    """
    if not isinstance(result, dict):
        return result is not False
    checks = result.get("checks")
    parts = checks if isinstance(checks, list) else []
    return result.get("passed") is not False and all(map(_passes, parts))


def _passes(part: Any) -> bool:
    if not isinstance(part, dict) or part.get("passed") is not False:
        return True
    return str(part.get("severity", "")).upper() in ("WARN", "WARNING")
