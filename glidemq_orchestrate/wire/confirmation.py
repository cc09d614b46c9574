"""What a write must have reached before it counts as done: the option ``confirm`` of a connection. Pure.

The calls at the end wait until writes are on disk or on replicas. They know only the writes of their
connection.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, command, function
from glidemq_orchestrate.wire.keys import QueueKeys, mark_key

MAX_REPLICAS: Final = 99
FORMS: Final = "disk, replicas:N or disk,replicas:N"

_FORM: Final = re.compile(r"(?:(disk)(?:,|\Z))?(?:replicas:([1-9][0-9]?))?\Z")


class Confirmation(NamedTuple):
    """What a write must have reached.

    Attributes:
        disk: The append-only file of the primary, on its disk.
        replicas: At least this many replicas, in their memory.
    """

    disk: bool
    replicas: int


def read_confirm(text: str | None) -> Confirmation | None:
    """Read the option; None when nothing is asked for.

    Raises:
        ConfigurationError: It has none of the forms that are understood; the message lists them.
    """
    if text is None:
        return None
    found = _FORM.match(text) if isinstance(text, str) else None
    if found is None or not text or text.endswith(","):
        raise ConfigurationError(f"confirm must be {FORMS}, with N from 1 to {MAX_REPLICAS}")
    return Confirmation(found[1] is not None, int(found[2] or 0))


def mark(prefix: str, key: str) -> Call[str]:
    """Write something without a trace in the slot of a key; returns the replication id of the server.

    While that id is the same, the server has lost nothing of what it had accepted before. Repeatable.
    """
    return function("gmo_mark", [mark_key(prefix, key)], (), replies.text, repeatable=True)


def mark_queue(queue: QueueKeys) -> Call[str]:
    """See ``mark``; in the slot of a queue."""
    return mark(queue.prefix, queue.base)


def wait_disk(timeout_ms: int) -> Call[bool]:
    """Wait until the writes of this connection are on the disk of the server; returns whether they are.

    Refused where the append-only file is switched off.
    """
    return command(
        "WAITAOF", 1, 0, timeout_ms, decode=lambda reply: reply[0] >= 1, blocks_for=timeout_ms / 1000
    )


def wait_replicas(count: int, timeout_ms: int) -> Call[int]:
    """Wait until so many replicas have the writes of this connection; returns how many have."""
    return command("WAIT", count, timeout_ms, decode=replies.integer, blocks_for=timeout_ms / 1000)
