"""Calls about the server itself: product, version, clock, and its function libraries.

Clocks are synchronized with the server, so that nothing depends on the wall clock of a client.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Final, NamedTuple

from glidemq_orchestrate.errors import GlideMQError, ServerTooOld, TransportError
from glidemq_orchestrate.foundation.clock import SYNC_EVERY_MS, Clock, ServerClock
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask, command

MINIMUM: Final = {"redis": (7, 0), "valkey": (7, 2)}


def server_info() -> Call[tuple[str, str]]:
    """Product and version of the server.

    Raises:
        ServerTooOld: Older than Redis 7.0 or Valkey 7.2.
    """

    def decode(reply: Any) -> tuple[str, str]:
        fields = (
            reply
            if isinstance(reply, dict)
            else dict(re.findall(r"^([a-z_]+):(.*?)\r?$", reply, re.MULTILINE))
        )
        product = "valkey" if "valkey_version" in fields else "redis"
        version = str(fields.get(f"{product}_version", "0"))
        if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < MINIMUM[product]:
            raise ServerTooOld(product, version)
        return product, version

    return command("INFO", "server", decode=decode)


def server_facts() -> Call[dict[str, str]]:
    """All fields of INFO."""
    return command(
        "INFO", decode=lambda reply: dict(re.findall(r"^([a-z_0-9]+):(.*?)\r?$", reply, re.MULTILINE))
    )


def server_memory() -> Call[tuple[int, int]]:
    """How many bytes the server uses, and how many it may use; 0 for no limit."""

    def decode(reply: str) -> tuple[int, int]:
        fields = dict(re.findall(r"^([a-z_]+):(\d+)\r?$", reply, re.MULTILINE))
        return int(fields["used_memory"]), int(fields.get("maxmemory", 0))

    return command("INFO", "memory", decode=decode)


def server_settings(*names: str) -> Call[dict[str, str]]:
    """Settings of the server; many users lack the right to read them."""
    return command("CONFIG", "GET", *names, decode=replies.mapping)


def server_time() -> Call[int]:
    """The server's clock, ms since the epoch."""
    return command("TIME", decode=lambda reply: _time_us(reply) // 1000)


def server_time_us() -> Call[int]:
    """The server's clock, microseconds since the epoch."""
    return command("TIME", decode=_time_us)


def _time_us(reply: Any) -> int:
    seconds, micros = map(int, reply)
    return replies.time_ms(seconds * 1000) * 1000 + micros


def slots_served() -> Call[int]:
    """How many of the 16,384 slots of the cluster are served."""
    return command("CLUSTER", "SLOTS", decode=lambda reply: sum(row[1] - row[0] + 1 for row in reply))


def load_library(source: str, *, replace: bool = False) -> Call[None]:
    """Load a function library. Safe to repeat: without ``replace`` an existing library is an error."""
    words = ("FUNCTION", "LOAD", *(("REPLACE",) if replace else ()), source)
    # Unconfirmed: a server that takes over without the library gets it with the next call.
    return Call(words, replies.anything, repeatable=True, confirms=False)


def library_code(name: str) -> Call[str | None]:
    """The source of a loaded function library; None if it is not loaded."""

    def decode(reply: Any) -> str | None:
        return replies.text(replies.pairs(reply[0])["library_code"]) if reply else None

    return command("FUNCTION", "LIST", "LIBRARYNAME", name, "WITHCODE", decode=decode)


class Primary(NamedTuple):
    """A primary of a cluster. ``serves``: it has slots."""

    host: str
    port: int
    serves: bool


def cluster_primaries() -> Call[list[Primary]]:
    """The reachable primaries, those that serve slots first; an error outside a cluster."""

    def decode(reply: Any) -> list[Primary]:
        found = []
        for node in map(str.split, replies.text(reply).splitlines()):
            flags = node[2]
            if "master" in flags and not any(flag in flags for flag in ("fail", "handshake", "noaddr")):
                host, port = node[1].split("@")[0].rsplit(":", 1)
                found.append(Primary(host, int(port), serves=len(node) > 8))
        return sorted(found, key=lambda one: not one.serves)

    return command("CLUSTER", "NODES", decode=decode)


FIRST_TIMES: Final = 3

logger = logging.getLogger("glidemq_orchestrate.foundation.clock")


def learn_time_well(clock: Clock) -> Op[None]:
    """``learn_time`` with several replies, since the first may be slow; the clock keeps the best."""
    for _ in range(FIRST_TIMES):
        yield from learn_time(clock, every_ms=0)


def learn_time(clock: Clock, *, every_ms: int = SYNC_EVERY_MS) -> Op[None]:
    """Synchronize the clock with the server's if the last time was more than ``every_ms`` ago.

    Changes nothing if the server refuses TIME.
    """
    if not isinstance(clock, ServerClock) or not clock.begin_sync(every_ms=every_ms):
        return
    sent_us = clock.monotonic_us()
    try:
        server_us = yield from ask(server_time_us())
    except GlideMQError as exc:
        if isinstance(exc, TransportError) or exc.code is None:  # not a reply to TIME
            clock.forget_sync()  # the next call will report the error
            return
        logger.warning(
            "the server refuses TIME, so leases and delays depend on this machine's clock. "
            "Fix: allow the user to run TIME: %s",
            exc,
            extra={"action": "server_time"},
        )
    else:
        clock.learn(server_us, sent_us)
