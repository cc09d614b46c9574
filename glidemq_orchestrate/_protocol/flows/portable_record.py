"""The record of a portable flow: what happened is written once, so that no late writer does harm.

Each run of a flow is a round: 0 is the submission, every retry and restart begins the next. Of round *n*
the record has ``begin:n`` (when and which generation; of round 0 perhaps ``drop``: it was given up before
it began), ``cancel:n`` (all that is open is to end), ``counts:n`` (how far it is) and ``end:n``. The first
two writers of one of these agree, since only the first write counts; and what belongs to an older round
says nothing of this.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from glidemq_orchestrate._protocol import replies
from glidemq_orchestrate._protocol.call import Call, command
from glidemq_orchestrate.flows.spec import FlowState
from glidemq_orchestrate.keys import QueueKeys, flow_homes

PATH: Final = "portable"
MAX_LABELS: Final = 16
RUN: Final = "run"
GONE: Final = "gone"
_DROP: Final = "drop"


@dataclass(frozen=True, slots=True)
class Record:
    """What the record of a portable flow says.

    Attributes:
        fields: As they are stored; empty when there is no record.
        number: The round that began last; -1 before the first.
        started_ms: When it began.
        generation: How often the flow was restarted by then.
        end: How it has ended: state, finished_at, counts and reason; empty while it runs.
        cancel: Why all that is open is to end: how (the state) and reason; empty when nothing is.
        is_dropped: The submission was given up; its jobs are being removed.
    """

    fields: Mapping[str, str]
    number: int = -1
    started_ms: int = 0
    generation: int = 0
    end: Mapping[str, Any] = field(default_factory=dict)
    cancel: Mapping[str, Any] = field(default_factory=dict)
    is_dropped: bool = False

    @classmethod
    def read(cls, fields: Mapping[str, str]) -> Record:
        """From the fields of the record."""
        rounds = [int(name[6:]) for name in fields if name.startswith("begin:") and name[6:].isdigit()]
        if not rounds:
            return cls._of_old(fields)
        number = max(rounds)
        began = fields[f"begin:{number}"]
        if began.startswith(_DROP):
            return cls(fields, is_dropped=True)
        started, _, generation = began.partition(" ")
        end, cancel = (json.loads(fields.get(f"{kind}:{number}", "{}")) for kind in ("end", "cancel"))
        return cls(fields, number, int(started), int(generation or 0), end, cancel)

    @classmethod
    def _of_old(cls, fields: Mapping[str, str]) -> Record:
        """Of a flow that is not staged yet; or that a version without rounds has begun."""
        state, number = fields.get("state", "staging"), int(fields.get("round", 0))
        if state == "staging":
            return cls(fields, cancel=json.loads(fields.get("cancel:0", "{}")))
        end: dict[str, Any] = json.loads(fields.get(f"end:{number}", "{}"))
        if FlowState(state).is_terminal and not end:
            end = {name: fields[name] for name in _COUNTS if name in fields}
            end |= {"state": state, "finished_at": fields.get("finished_at", 0)}
            end |= json.loads(fields.get("final", "{}"))
        cancel: dict[str, Any] = json.loads(fields.get(f"cancel:{number}", "{}"))
        if "cancel" in fields:
            how = FlowState.FAILED if fields["cancel"] == "failed" else FlowState.CANCELLED
            cancel = {"how": how, "reason": fields.get("reason", "")}
        started, generation = int(fields.get("started_at", 0)), int(fields.get("generation", 0))
        return cls(fields, number, started, generation, end, cancel)

    @property
    def is_expired(self) -> bool:
        """Whether its jobs were removed after its retention, or are being removed."""
        return "expired_at" in self.fields

    @property
    def state(self) -> FlowState:
        """The state of the flow."""
        if self.end:
            return FlowState(self.end["state"])
        if self.is_expired:
            return FlowState.FAILED
        if self.number >= 0:
            return FlowState.RUNNING
        return FlowState.CANCELLED if self.cancel else FlowState.STAGING

    def plain(self) -> dict[str, str]:
        """The fields as a flow of the other path has them."""
        told = {**self.fields, "state": str(self.state), "generation": str(self.generation)}
        if counts := json.loads(self.fields.get(f"counts:{self.number}", "{}")):
            told |= {name: str(value) for name, value in counts.items()}
        elif f"begin:{self.number}" in self.fields:
            told |= {"completed": "0", "failed": "0", "skipped": "0", "reason": ""}
        if self.cancel:
            told["reason"] = str(self.cancel["reason"])
        return told | {name: str(value) for name, value in self.end.items()}


_COUNTS: Final = ("completed", "failed", "skipped", "reason")


def plain(fields: Mapping[str, str]) -> Mapping[str, str]:
    """The fields of any flow's record, those of a portable one as others have them; never raises."""
    if fields.get("path") != PATH:
        return fields
    try:
        return Record.read(fields).plain()
    except (ValueError, TypeError, KeyError, AttributeError):
        return {**fields, "state": FlowState.UNKNOWN}


def record(home: QueueKeys, flow_id: str) -> Call[Record]:
    """The record; without fields when there is none."""
    return command("HGETALL", home.flow(flow_id), decode=lambda reply: Record.read(replies.pairs(reply)))


def write(home: QueueKeys, flow_id: str, fields: Mapping[str, str | int]) -> Call[None]:
    """Store fields of the record."""
    words = [word for pair in fields.items() for word in pair]
    return command("HSET", home.flow(flow_id), *words, decode=replies.anything)


def write_once(home: QueueKeys, flow_id: str, name: str, value: str | int) -> Call[bool]:
    """Store a field that is not there yet; whether this call has stored it."""
    return command("HSETNX", home.flow(flow_id), name, value, decode=bool)


def erase(home: QueueKeys, flow_id: str, name: str) -> Call[None]:
    """Delete a field of the record."""
    return command("HDEL", home.flow(flow_id), name, decode=replies.anything)


def begin(home: QueueKeys, flow_id: str, number: int, now_ms: int, generation: int) -> Call[bool]:
    """Let a round begin, unless it has, or was given up. Repeatable."""
    return write_once(home, flow_id, f"begin:{number}", f"{now_ms} {generation}")


def drop(home: QueueKeys, flow_id: str, token: str) -> Call[bool]:
    """Give up a flow that has not begun. Repeatable; the first token counts."""
    return write_once(home, flow_id, "begin:0", f"{_DROP} {token}")


def began(home: QueueKeys, flow_id: str) -> Call[str]:
    """Whether a flow has begun.

    ``run`` when it has, the word of the drop when it was given up, ``gone`` without a record, '' before that.
    """

    def decode(reply: Any) -> str:
        word, digest = reply
        if not digest:
            return GONE
        return str(word) if str(word or "").startswith(_DROP) else RUN if word else ""

    return command("HMGET", home.flow(flow_id), "begin:0", "digest", decode=decode)


def cancel(home: QueueKeys, flow_id: str, number: int, how: FlowState, reason: str) -> Call[bool]:
    """Say that all that is open in a round is to end; the first reason counts."""
    return write_once(home, flow_id, f"cancel:{number}", json.dumps({"how": how, "reason": reason}))


def count(home: QueueKeys, flow_id: str, number: int, counts: Mapping[str, str | int]) -> Call[None]:
    """Say how far a round is."""
    return write(home, flow_id, {f"counts:{number}": json.dumps(counts)})


def end(home: QueueKeys, flow_id: str, number: int, told: Mapping[str, str | int]) -> Call[bool]:
    """Say how a round has ended; the first end counts. Whether it is this one."""
    return write_once(home, flow_id, f"end:{number}", json.dumps(told))


def index(
    home: QueueKeys, flow_id: str, labels: Mapping[str, str], state: FlowState, at: str
) -> list[Call[None]]:
    """Calls that list a flow among those of its home, in one state, as ``index.lua`` does. Repeatable."""
    flows, gone = home.flows(), replies.anything
    others = [other for other in FlowState if other is not state]
    return [
        command("ZADD", flows, at, flow_id, decode=gone),
        *(command("ZADD", key, at, flow_id, decode=gone) for key in _label_keys(home, labels)),
        *(command("ZREM", f"{flows}:state:{other}", flow_id, decode=gone) for other in others),
        command("ZADD", f"{flows}:state:{state}", at, flow_id, decode=gone),
        command("SADD", flow_homes(home.prefix), home.queue, decode=gone),
    ]


def unindex(home: QueueKeys, flow_id: str, labels: Mapping[str, str]) -> list[Call[None]]:
    """Calls that take a flow off every list of its home. Repeatable."""
    lists = [f"{home.flows()}:state:{state}" for state in FlowState]
    keys = [home.flows(), *_label_keys(home, labels), *lists, _listed(home), _expiring(home)]
    return [command("ZREM", key, flow_id, decode=replies.anything) for key in keys]


def _label_keys(home: QueueKeys, labels: Mapping[str, str]) -> list[str]:
    return [f"{home.flows()}:label:{key}={value}" for key, value in list(labels.items())[:MAX_LABELS]]


def _listed(home: QueueKeys) -> str:
    return home.key("gmo:portable")


def _expiring(home: QueueKeys) -> str:
    return home.key("gmo:portable:expiring")


def listed(home: QueueKeys, most: int) -> Call[list[str]]:
    """The portable flows of a home that may need something; those that were not looked at longest first."""
    return command("ZRANGE", _listed(home), 0, most - 1, decode=list)


def enlist(home: QueueKeys, flow_id: str, now_ms: int) -> Call[None]:
    """List a portable flow."""
    return command("ZADD", _listed(home), now_ms, flow_id, decode=replies.anything)


def looked_at(home: QueueKeys, flow_id: str, now_ms: int) -> Call[None]:
    """Put a listed flow at the end of the list."""
    return command("ZADD", _listed(home), "XX", now_ms, flow_id, decode=replies.anything)


def delist(home: QueueKeys, flow_id: str) -> Call[None]:
    """Take a flow off the list."""
    return command("ZREM", _listed(home), flow_id, decode=replies.anything)


def expire_at(home: QueueKeys, flow_id: str, at_ms: int) -> Call[None]:
    """Say when the jobs of a flow are to be removed."""
    return command("ZADD", _expiring(home), at_ms, flow_id, decode=replies.anything)


def expire_never(home: QueueKeys, flow_id: str) -> Call[None]:
    """Keep the jobs of a flow."""
    return command("ZREM", _expiring(home), flow_id, decode=replies.anything)


def expiring(home: QueueKeys, now_ms: int, most: int) -> Call[list[str]]:
    """The flows whose jobs are due to be removed."""
    return command("ZRANGEBYSCORE", _expiring(home), "-inf", now_ms, "LIMIT", 0, most, decode=list)


def drop_tables(home: QueueKeys, flow_id: str) -> Call[None]:
    """Delete the tables of a flow."""
    keys = (f"{home.flow(flow_id)}:nodes", policies_key(home, flow_id), waiting_key(home, flow_id))
    return command("UNLINK", *keys, decode=replies.anything)


def drop_record(home: QueueKeys, flow_id: str) -> Call[None]:
    """Delete the record of a flow."""
    return command("UNLINK", home.flow(flow_id), decode=replies.anything)


def bury(home: QueueKeys, flow_id: str, tombstone_ms: int) -> Call[None]:
    """Keep the record only so long."""
    return command("PEXPIRE", home.flow(flow_id), tombstone_ms, decode=replies.anything)


def policies_key(home: QueueKeys, flow_id: str) -> str:
    """The policies of the nodes. The id stands last, so that no id makes the key of another flow of it."""
    return home.key(f"gmo:portable:policies:{flow_id}")


def waiting_key(home: QueueKeys, flow_id: str) -> str:
    """Since when nodes wait for a worker."""
    return home.key(f"gmo:portable:waiting:{flow_id}")
