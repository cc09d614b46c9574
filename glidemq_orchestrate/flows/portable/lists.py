"""The lists of portable flows: by state and label like staged flows, those to advance, those to expire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from glidemq_orchestrate.flows.status import FlowState
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, command
from glidemq_orchestrate.wire.keys import QueueKeys, flow_homes

MAX_LABELS: Final = 32


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
    """Calls that delist a flow everywhere in its home. Idempotent."""
    lists = [f"{home.flows()}:state:{state}" for state in FlowState]
    keys = [home.flows(), *_label_keys(home, labels), *lists, _listed(home), _expiring(home)]
    return [command("ZREM", key, flow_id, decode=replies.anything) for key in keys]


def _label_keys(home: QueueKeys, labels: Mapping[str, str]) -> list[str]:
    return [f"{home.flows()}:label:{key}={value}" for key, value in list(labels.items())[:MAX_LABELS]]


def _listed(home: QueueKeys) -> str:
    return home.key("gmo:portable")


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


def delist(home: QueueKeys, flow_id: str) -> Call[None]:
    """Delist a flow that has ended."""
    return command("ZREM", _listed(home), flow_id, decode=replies.anything)


def expire_at(home: QueueKeys, flow_id: str, at_ms: int) -> Call[None]:
    """Schedule the removal of the jobs of a flow."""
    return command("ZADD", _expiring(home), at_ms, flow_id, decode=replies.anything)


def expire_never(home: QueueKeys, flow_id: str) -> Call[None]:
    """Keep the jobs of a flow."""
    return command("ZREM", _expiring(home), flow_id, decode=replies.anything)


def expiring(home: QueueKeys, now_ms: int, max_: int) -> Call[list[str]]:
    """The flows whose jobs are due to be removed."""
    return command("ZRANGEBYSCORE", _expiring(home), "-inf", now_ms, "LIMIT", 0, max_, decode=list)
