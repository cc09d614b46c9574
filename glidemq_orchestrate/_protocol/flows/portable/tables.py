"""The tables of a portable flow: nodes, policies, waiting nodes, and the nodes that a round is noted for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glidemq_orchestrate._protocol.flows.portable.gates import PAGE
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, command
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import number


def write_table(home: QueueKeys, flow_id: str, rows: Mapping[str, str]) -> Call[None]:
    """Store rows of the node table."""
    words = [word for pair in rows.items() for word in pair]
    return command("HSET", f"{home.flow(flow_id)}:nodes", *words, decode=replies.anything)


def policies(home: QueueKeys, flow_id: str, cursor: str) -> Call[tuple[str, dict[str, str]]]:
    """A page of the policies of nodes, as ``_ops.flows.portable.table.policy_text`` writes them."""

    def decode(reply: Any) -> tuple[str, dict[str, str]]:
        return reply[0], replies.pairs(reply[1])

    return command("HSCAN", home.portable_policies(flow_id), cursor, "COUNT", PAGE, decode=decode)


def policy(home: QueueKeys, flow_id: str, name: str) -> Call[str]:
    """The policy of a node, '' for an ordinary one."""
    return command("HGET", home.portable_policies(flow_id), name, decode=lambda reply: reply or "")


def write_policies(home: QueueKeys, flow_id: str, texts: Mapping[str, str]) -> Call[None]:
    """Store policies of nodes."""
    words = [word for pair in texts.items() for word in pair]
    return command("HSET", home.portable_policies(flow_id), *words, decode=replies.anything)


def note_waiting(home: QueueKeys, flow_id: str, name: str, now_ms: int) -> list[Call[Any]]:
    """Calls that record when a node was first seen waiting for a worker, and return that time in ms."""
    key = home.portable_waiting(flow_id)
    return [
        command("HSETNX", key, name, now_ms, decode=replies.anything),
        command("HGET", key, name, decode=lambda reply: number(reply, now_ms) or now_ms),
    ]


def forget_waiting(home: QueueKeys, flow_id: str, names: Sequence[str]) -> Call[None]:
    """Forget since when these nodes have waited: they run again."""
    return command("HDEL", home.portable_waiting(flow_id), *names, decode=replies.anything)


def write_noted(home: QueueKeys, flow_id: str, rows: Mapping[str, str]) -> Call[None]:
    """Store nodes, with the name of their note before their own."""
    words = [word for pair in rows.items() for word in pair]
    return command("HSET", home.portable_notes(flow_id), *words, decode=replies.anything)


def noted(home: QueueKeys, flow_id: str, cursor: str) -> Call[tuple[str, dict[str, str]]]:
    """A page of the nodes of all notes."""

    def decode(reply: Any) -> tuple[str, dict[str, str]]:
        return reply[0], replies.pairs(reply[1])

    return command("HSCAN", home.portable_notes(flow_id), cursor, "COUNT", PAGE, decode=decode)


def forget_noted(home: QueueKeys, flow_id: str, rows: Sequence[str]) -> Call[None]:
    """Forget nodes of a note."""
    return command("HDEL", home.portable_notes(flow_id), *rows, decode=replies.anything)


def drop_tables(home: QueueKeys, flow_id: str) -> Call[None]:
    """Delete the tables of a flow."""
    keys = [f"{home.flow(flow_id)}:nodes", home.portable_policies(flow_id)]
    keys += [home.portable_waiting(flow_id), home.portable_notes(flow_id)]
    return command("UNLINK", *keys, decode=replies.anything)
