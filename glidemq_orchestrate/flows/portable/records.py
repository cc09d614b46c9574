"""The record of a portable flow: each fact is written once, so that late writers are harmless.

Each run of a flow is a round: 0 is the submission, every retry begins the next. For round *n* the record
contains ``begin:n`` (time and 0; for round 0 possibly ``drop``: aborted before it began), ``cancel:n`` (all
open nodes must end), ``counts:n`` (progress) and ``end:n``. Concurrent writers agree, since only the first
write counts. Fields of an older round do not affect the current one. After the retention, and once another
generation has begun, the next round is begun with -1 instead of 0, so that it can never run; ``expired_at``
is the time when the jobs were removed.

Before round *n* begins, ``note:n`` contains the nodes that it reruns or ends manually: see ``rounds``. A
round may be noted while the previous one runs. Then it continues that round, with the same cancellation and
the same owners.

Each generation has its own record. ``after`` is the id of the previous generation, until that has ended;
``how`` is the reason why it began; ``superseded`` is the number of the next one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import uuid4

from glidemq_orchestrate.flows.generation import read_entries
from glidemq_orchestrate.flows.status import FlowState
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, Word, ask_all, command, write_fields
from glidemq_orchestrate.wire.keys import QueueKeys, flow_homes, read_generation

MAX_LABELS: Final = 32
PATH: Final = "portable"
RUN: Final = "run"
GONE: Final = "gone"
_DROP: Final = "drop"
_NEVER: Final = -1


@dataclass(frozen=True, slots=True)
class Record:
    """The parsed record of a portable flow.

    Attributes:
        fields: The stored fields; empty without a record.
        number: The round that began last; -1 before the first.
        started_ms: When it began, or the first of the rounds that it continues.
        end: Its end: state, finished_at, counts and reason; empty while it runs.
        cancel: The cancellation of all open nodes: how (the state) and reason; empty without one.
        is_dropped: Whether the submission was aborted; its jobs are being removed.
        is_removed: Whether no round will follow, as its jobs are being removed after its retention.
        note: What the next round will do with which nodes; empty without a next round.
    """

    fields: Mapping[str, str]
    number: int = -1
    started_ms: int = 0
    end: Mapping[str, Any] = field(default_factory=dict)
    cancel: Mapping[str, Any] = field(default_factory=dict)
    is_dropped: bool = False
    is_removed: bool = False
    note: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, fields: Mapping[str, str]) -> Record:
        """Parse the fields of the record."""
        record = cls._of(fields)
        following = record.number + 1
        if not following or f"begin:{following}" in fields:
            return record
        return replace(record, note=json.loads(fields.get(f"note:{following}", "{}")))

    @classmethod
    def _of(cls, fields: Mapping[str, str]) -> Record:
        found = [int(name[6:]) for name in fields if name.startswith("begin:") and name[6:].isdigit()]
        rounds = [number for number in found if not fields[f"begin:{number}"].endswith(f" {_NEVER}")]
        is_removed = len(rounds) < len(found)
        if not rounds:
            return cls(fields, cancel=json.loads(fields.get("cancel:0", "{}")), is_removed=is_removed)
        number = max(rounds)
        began = fields[f"begin:{number}"]
        if began.startswith(_DROP):
            return cls(fields, is_dropped=True)
        end = json.loads(fields.get(f"end:{number}", "{}"))
        lasting = _lasting(fields, number)
        cancels = (json.loads(fields.get(f"cancel:{one}", "{}")) for one in lasting)
        cancel: dict[str, Any] = next(filter(None, cancels), {})
        started = _begun(fields, lasting[-1])
        return cls(fields, number, started, end, cancel, is_removed=is_removed)

    @property
    def lasting(self) -> list[int]:
        """The last round, and those that it continues, latest first."""
        return _lasting(self.fields, self.number)

    def begun_ms(self, number: int) -> int:
        """When a round began, if known, but not before ``started_ms``."""
        return max(_begun(self.fields, number), self.started_ms)

    @property
    def is_expired(self) -> bool:
        """Whether its jobs were removed after its retention, or are being removed."""
        return self.is_removed or "expired_at" in self.fields

    @property
    def after(self) -> str:
        """The generation that must end before the nodes of this one are released; '' for none."""
        return self.fields.get("after", "")

    @property
    def is_superseded(self) -> bool:
        """Whether another generation has begun."""
        return "superseded" in self.fields

    @property
    def state(self) -> FlowState:
        """The state of the flow."""
        if self.end:
            return FlowState(self.end["state"])
        if self.is_expired:
            return FlowState.FAILED
        if self.number >= 0:
            return FlowState.RUNNING
        is_over = self.cancel or (self.is_dropped and self.is_superseded)
        return FlowState.CANCELLED if is_over else FlowState.STAGING

    def plain(self) -> dict[str, str]:
        """The fields in the form of a staged flow."""
        fields = {**self.fields, "state": str(self.state)}
        if counts := json.loads(self.fields.get(f"counts:{self.number}", "{}")):
            fields |= {name: str(value) for name, value in counts.items()}
        elif f"begin:{self.number}" in self.fields:
            fields |= {"completed": "0", "failed": "0", "skipped": "0", "reason": ""}
        if self.cancel:
            fields["reason"] = str(self.cancel["reason"])
        elif self.is_dropped and self.is_superseded:
            fields["reason"] = superseding(fields["superseded"])
        begun = [number for number in range(1, self.number + 1) if not _continues(self.fields, number)]
        fields["runs"] = str(len(begun))
        return fields | {name: str(value) for name, value in self.end.items()}


def _lasting(fields: Mapping[str, str], number: int) -> list[int]:
    found = [number]
    while _continues(fields, found[-1]):
        found.append(found[-1] - 1)
    return found


def _continues(fields: Mapping[str, str], number: int) -> bool:
    """Whether a round was noted while the previous one ran."""
    return bool(json.loads(fields.get(f"note:{number}", "{}")).get("goes_on"))


def _begun(fields: Mapping[str, str], number: int) -> int:
    return int(fields.get(f"begin:{number}", "0").partition(" ")[0])


def superseding(number: int | str) -> str:
    """The reason for the cancellation of a superseded generation."""
    return f"generation {number} began"


def plain(fields: Mapping[str, str]) -> Mapping[str, str]:
    """The fields of any flow's record, in the form of a staged flow; never raises."""
    if fields.get("path") != PATH:
        return fields
    try:
        return Record.read(fields).plain()
    except (ValueError, TypeError, KeyError, AttributeError):
        return {**fields, "state": FlowState.UNKNOWN}


def record(home: QueueKeys, flow_id: str) -> Call[Record]:
    """The record; without fields if there is none."""
    return command("HGETALL", home.flow(flow_id), decode=lambda reply: Record.read(replies.pairs(reply)))


def write(home: QueueKeys, flow_id: str, fields: Mapping[str, str | int]) -> Call[None]:
    """Store fields of the record."""
    return write_fields(home.flow(flow_id), fields)


def write_once(home: QueueKeys, flow_id: str, name: str, value: str | int) -> Call[bool]:
    """Store a field unless it exists; returns whether this call stored it."""
    return command("HSETNX", home.flow(flow_id), name, value, decode=bool)


def erase(home: QueueKeys, flow_id: str, name: str) -> Call[None]:
    """Delete a field of the record."""
    return command("HDEL", home.flow(flow_id), name, decode=replies.anything)


def note(home: QueueKeys, flow_id: str, number: int, text: Mapping[str, Any]) -> Call[bool]:
    """Note what the next round does. Only the first note counts; returns whether it is this one."""
    return write_once(home, flow_id, f"note:{number}", json.dumps(text))


def begin(home: QueueKeys, flow_id: str, number: int, now_ms: int) -> Call[bool]:
    """Begin a round, unless it has begun or was aborted. Idempotent."""
    return write_once(home, flow_id, f"begin:{number}", f"{now_ms} 0")


def remove(home: QueueKeys, flow_id: str, number: int, now_ms: int) -> Call[bool]:
    """Block a round that has not begun, so that it never can. Idempotent."""
    return write_once(home, flow_id, f"begin:{number}", f"{now_ms} {_NEVER}")


def drop(home: QueueKeys, flow_id: str, token: str) -> Call[bool]:
    """Abort a flow that has not begun. Idempotent. The first token counts."""
    return write_once(home, flow_id, "begin:0", f"{_DROP} {token}")


def lose(home: QueueKeys, flow_id: str, token: str) -> Call[None]:
    """Abort a generation that has begun but has permanently lost to another one. Idempotent."""
    return write(home, flow_id, {"begin:0": f"{_DROP} {token}"})


def began(home: QueueKeys, flow_id: str) -> Call[str]:
    """Whether a flow has begun.

    ``run`` if it has, ``drop`` and a token if it was aborted, ``gone`` without a record, else ''.
    """

    def decode(reply: Any) -> str:
        word, digest = reply
        if str(word or "").startswith(_DROP):
            return str(word)
        return GONE if not digest else RUN if word else ""

    return command("HMGET", home.flow(flow_id), "begin:0", "digest", decode=decode)


def cancel(home: QueueKeys, flow_id: str, number: int, how: FlowState, reason: str) -> Call[bool]:
    """Request the end of all open nodes of a round; the first reason counts."""
    return write_once(home, flow_id, f"cancel:{number}", json.dumps({"how": how, "reason": reason}))


def count(home: QueueKeys, flow_id: str, number: int, counts: Mapping[str, str | int]) -> Call[None]:
    """Record the progress of a round."""
    return write(home, flow_id, {f"counts:{number}": json.dumps(counts)})


def end(home: QueueKeys, flow_id: str, number: int, counts: Mapping[str, str | int]) -> Call[bool]:
    """Record the end of a round; the first one counts. Returns whether it is this one."""
    return write_once(home, flow_id, f"end:{number}", json.dumps(counts))


def drop_record(home: QueueKeys, flow_id: str) -> Call[None]:
    """Delete the record of a flow."""
    return command("UNLINK", home.flow(flow_id), decode=replies.anything)


def announce(home: QueueKeys, flow_id: str, what: str) -> Call[None]:
    """Emit an event of the flow: its end, which wakes waiting clients, or ``retried``.

    The event has the public id and, after generation 0, the number, like in ``flow_events.lua``.
    """
    public, number = read_generation(flow_id)
    words: list[Word] = ["MAXLEN", "~", 1000, "*", "event", f"flow.{what}", "jobId", "", "flowId", public]
    words += ["generation", number] if number else []
    return command("XADD", home.key("events"), *words, decode=replies.anything)


def noted_generation(home: QueueKeys, flow_id: str) -> Call[str]:
    """The id of the generation that was noted with the number of this one; '' without one."""
    at = f"{read_generation(flow_id)[1]}-1"

    def decode(reply: object) -> str:
        found = read_entries(reply)
        return found[0].stored_as if found else ""

    return command("XRANGE", home.generations(flow_id), at, at, decode=decode)


def index(
    home: QueueKeys, flow_id: str, labels: Mapping[str, str], state: FlowState, at: str
) -> list[Call[None]]:
    """Calls that list a flow of this home in exactly one state, like ``index.lua``. Idempotent."""
    flows, ignored = home.flows(), replies.anything
    others = [other for other in FlowState if other is not state]
    return [
        command("ZADD", flows, at, flow_id, decode=ignored),
        *(command("ZADD", key, at, flow_id, decode=ignored) for key in _label_keys(home, labels)),
        *(command("ZREM", f"{flows}:state:{other}", flow_id, decode=ignored) for other in others),
        command("ZADD", f"{flows}:state:{state}", at, flow_id, decode=ignored),
        command("SADD", flow_homes(home.prefix), home.queue, decode=ignored),
    ]


def is_indexed(home: QueueKeys, flow_id: str, state: FlowState) -> Call[bool]:
    """Whether a flow of this home is listed in this state."""
    key = f"{home.flows()}:state:{state}"
    return command("ZSCORE", key, flow_id, decode=lambda reply: reply is not None)


def unindex(home: QueueKeys, flow_id: str, labels: Mapping[str, str]) -> list[Call[None]]:
    """Calls that delist a flow everywhere in its home, except where its removal is due. Idempotent."""
    lists = [f"{home.flows()}:state:{state}" for state in FlowState]
    keys = [home.flows(), *_label_keys(home, labels), *lists, _listed(home)]
    return [command("ZREM", key, flow_id, decode=replies.anything) for key in keys]


def _label_keys(home: QueueKeys, labels: Mapping[str, str]) -> list[str]:
    return [f"{home.flows()}:label:{key}={value}" for key, value in list(labels.items())[:MAX_LABELS]]


def _listed(home: QueueKeys) -> str:
    return home.key("gmo:portable")


def _leaving(home: QueueKeys) -> str:
    return home.key("gmo:portable:leaving")


def _expiring(home: QueueKeys) -> str:
    return home.key("gmo:portable:expiring")


def listed(home: QueueKeys, max_: int) -> Call[list[str]]:
    """The portable flows of a home that may need advancing, least recently checked first."""
    return command("ZRANGE", _listed(home), 0, max_ - 1, decode=list)


def enlist(home: QueueKeys, flow_id: str, now_ms: int) -> Call[None]:
    """List a portable flow as one to advance."""
    return command("ZADD", _listed(home), now_ms, flow_id, decode=replies.anything)


def requeue(home: QueueKeys, flow_id: str, now_ms: int) -> Call[None]:
    """Move a listed flow to the end of the list."""
    return command("ZADD", _listed(home), "XX", now_ms, flow_id, decode=replies.anything)


def delist(home: QueueKeys, flow_id: str, now_ms: int) -> Op[tuple[Record, str]]:
    """Delist a flow that seems to need no advancing; returns its record as it was after that, and a mark.

    Another client may have listed it just before, to run it again. So the caller lists it again if the record
    says so, and then removes the mark with ``delisted``. If it is killed before that, the sweep lists it.
    """
    mark = f"{flow_id}\n{uuid4().hex}"
    marking = command("ZADD", _leaving(home), now_ms, mark, decode=replies.anything)
    removing = command("ZREM", _listed(home), flow_id, decode=replies.anything)
    calls: list[Call[Any]] = [marking, removing, record(home, flow_id)]
    *_, found = yield from ask_all(calls)
    return found, mark


def delisted(home: QueueKeys, mark: str) -> Call[None]:
    """Remove the mark of a flow that was delisted, and listed again if necessary."""
    return command("ZREM", _leaving(home), mark, decode=replies.anything)


def unsettled(home: QueueKeys, before_ms: int, max_: int) -> Call[dict[str, str]]:
    """The flows that were delisted before this time, by their marks, which are still there."""

    def decode(reply: Any) -> dict[str, str]:
        return {mark: mark.partition("\n")[0] for mark in reply}

    return command("ZRANGEBYSCORE", _leaving(home), "-inf", before_ms, "LIMIT", 0, max_, decode=decode)


def expire_at(home: QueueKeys, flow_id: str, at_ms: int) -> Call[None]:
    """Schedule the removal of the jobs of a flow."""
    return command("ZADD", _expiring(home), at_ms, flow_id, decode=replies.anything)


def expire_never(home: QueueKeys, flow_id: str) -> Call[None]:
    """Keep the jobs of a flow."""
    return command("ZREM", _expiring(home), flow_id, decode=replies.anything)


def expiring(home: QueueKeys, now_ms: int, max_: int) -> Call[list[str]]:
    """The flows whose jobs are due to be removed."""
    return command("ZRANGEBYSCORE", _expiring(home), "-inf", now_ms, "LIMIT", 0, max_, decode=list)
