"""Calls that note which generation of a portable flow is current; ``parts/generations.lua`` has the form."""

from __future__ import annotations

from typing import Final

from glidemq_orchestrate._protocol.flows.generations import Found, read_entries
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, command
from glidemq_orchestrate.wire.keys import QueueKeys, read_generation

MAX: Final = 100


def note(home: QueueKeys, found: Found) -> Call[None]:
    """Note a generation as the current one; refused once it or a later one was noted."""
    number = read_generation(found.stored_as)[1]
    words = ["id", found.stored_as, "digest", found.digest, "path", found.path]
    words += ["request", found.request, "how", found.how]
    key = home.generations(found.stored_as)
    return command("XADD", key, f"{number}-1", *words, decode=replies.anything, repeatable=True)


def noted(home: QueueKeys, flow_id: str) -> Call[str]:
    """The id of the generation that was noted with the number of this one; '' while none was."""
    at = f"{read_generation(flow_id)[1]}-1"

    def decode(reply: object) -> str:
        found = read_entries(reply)
        return found[0].stored_as if found else ""

    return command("XRANGE", home.generations(flow_id), at, at, decode=decode)


def oldest(home: QueueKeys, flow_id: str, count: int) -> Call[list[Found]]:
    """The oldest generations that are noted."""
    return command("XRANGE", home.generations(flow_id), "-", "+", "COUNT", count, decode=read_entries)


def count(home: QueueKeys, flow_id: str) -> Call[int]:
    """How many generations are noted."""
    return command("XLEN", home.generations(flow_id), decode=replies.integer)


def has_nodes(home: QueueKeys, flow_id: str) -> Call[bool]:
    """Whether the table of a generation still exists: its jobs were not removed yet."""
    return command("EXISTS", f"{home.flow(flow_id)}:nodes", decode=bool)


def forget(home: QueueKeys, flow_id: str) -> list[Call[None]]:
    """Calls that delete what is kept of an old generation. Repeatable."""
    entry = f"{read_generation(flow_id)[1]}-1"
    return [
        command("UNLINK", home.flow(flow_id), decode=replies.anything),
        command("XDEL", home.generations(flow_id), entry, decode=replies.anything),
    ]


def keep(key: str) -> Call[None]:
    """Let a key not expire. Repeatable."""
    return command("PERSIST", key, decode=replies.anything, repeatable=True)


def keep_for(key: str, ms: int) -> Call[None]:
    """Let a key expire after so long, unless it is about to. Repeatable."""
    return command("PEXPIRE", key, ms, "NX", decode=replies.anything, repeatable=True)
