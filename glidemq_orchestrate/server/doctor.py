"""Checks a server: what is wrong, and how to fix it. Leaves nothing changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from glidemq_orchestrate._lua import GLIDEMQ, ORCHESTRATE, library
from glidemq_orchestrate.errors import (
    ConfigurationError,
    GlideMQError,
    OutcomeUnknown,
    ServerTooOld,
    TransportError,
)
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.server import calls as server
from glidemq_orchestrate.server import libraries
from glidemq_orchestrate.server.findings import (
    Facts,
    Finding,
    Verdict,
    examine_durability,
    examine_rights,
    examine_writes,
    to_load,
)
from glidemq_orchestrate.server.libraries import LibraryStatus, library_status, numbers
from glidemq_orchestrate.settings import ConnectionSettings, Endpoint
from glidemq_orchestrate.wire.call import Op, ask
from glidemq_orchestrate.wire.confirmation import unconfirmed

SLOTS: Final = 16384
SKEW_MS: Final = (1_000, 30_000)
FULL: Final = (0.8, 0.95)
LOAD: Final = "glidemq library load"
__all__ = ["Finding", "Verdict", "examine", "unreachable"]


def examine(
    prefix: str, clock: Clock, settings: ConnectionSettings, place: Endpoint, *, read_only: bool = False
) -> Op[list[Finding]]:
    """Check one server. A server that cannot be reached is a finding too."""
    where = settings.node(place)
    try:
        found = yield from unconfirmed(_examined(prefix, clock, settings, read_only=read_only))
    except GlideMQError as exc:
        return [unreachable(where, exc)]
    connected = Finding("connection", Verdict.OK, f"connected as {settings.user or 'default'}")
    return [replace(finding, server=where) for finding in (connected, *found)]


def _examined(
    prefix: str, clock: Clock, settings: ConnectionSettings, *, read_only: bool
) -> Op[list[Finding]]:
    facts = yield from ask(server.server_facts())
    try:
        product, version = yield from ask(server.server_info())
    except ServerTooOld as exc:
        return [
            Finding("version", Verdict.FAILED, f"{exc.product} {exc.version}", "use Valkey 7.2 or Redis 7.0")
        ]
    found = [Finding("version", Verdict.OK, f"{product} {version}"), *_role(facts, settings.kind)]
    found += [_persistence(facts), *_memory(facts)]
    if facts.get("role") != "master":  # it refuses what the other checks try
        return found
    found += yield from examine_durability(facts, settings, read_only=read_only)
    found += yield from examine_writes(prefix)
    found.append((yield from examine_rights(prefix, read_only=read_only)))
    found += yield from _libraries()
    found.append((yield from _clock(clock)))
    if settings.kind == "cluster":
        found.append((yield from _slots()))
    return found


def _role(facts: Facts, kind: str) -> Iterator[Finding]:
    replicas = int(facts.get("connected_slaves", 0))
    if facts.get("role") != "master":
        yield Finding(
            "role", Verdict.FAILED, "a replica, which refuses writes", "use its primary or its sentinels"
        )
    elif kind == "single" and facts.get("cluster_enabled") == "1":
        yield Finding("role", Verdict.FAILED, "a node of a cluster", "use valkey+cluster://HOST:PORT")
    elif kind != "single" and not replicas:
        yield Finding("role", Verdict.WARNING, "a primary without replicas", "add one that can take over")
    else:
        yield Finding("role", Verdict.OK, f"a primary with {replicas} replica{'' if replicas == 1 else 's'}")


def _persistence(facts: Facts) -> Finding:
    name = "persistence"
    if facts.get("aof_last_write_status", "ok") != "ok":
        return Finding(
            name, Verdict.FAILED, "the append-only file cannot be written", "check the server's disk"
        )
    if facts.get("rdb_last_bgsave_status", "ok") != "ok":
        return Finding(name, Verdict.FAILED, "the last snapshot failed", "check the server's disk and log")
    if facts.get("aof_enabled") == "1":
        return Finding(name, Verdict.OK, "append-only file")
    return Finding(name, Verdict.WARNING, "no append-only file: a restart loses jobs", "set appendonly yes")


def _memory(facts: Facts) -> Iterator[Finding]:
    limit, policy = int(facts.get("maxmemory", 0)), facts.get("maxmemory_policy", "noeviction")
    used = int(facts.get("used_memory", 0))
    if policy == "noeviction":
        yield Finding("eviction", Verdict.OK, policy)
    else:
        # Without a memory limit nothing is evicted.
        verdict = Verdict.FAILED if limit else Verdict.WARNING
        yield Finding(
            "eviction",
            verdict,
            f"{policy}: jobs are lost when memory is full",
            "set maxmemory-policy noeviction",
        )
    found = f"{used / 2**20:,.0f} MiB of {f'{limit / 2**20:,.0f} MiB' if limit else 'no limit'}"
    advice = "raise maxmemory, or clean ended jobs: glidemq queue clean, retention"
    full = used / limit if limit else 0.0
    if full >= FULL[1]:
        yield Finding("memory", Verdict.FAILED, found, advice)
    elif full >= FULL[0]:
        yield Finding("memory", Verdict.WARNING, found, advice)
    else:
        yield Finding("memory", Verdict.OK, found)


def _libraries() -> Op[list[Finding]]:
    found = [_library(status) for status in (yield from library_status())]
    if any(finding.advice.startswith(LOAD) and finding.verdict is Verdict.WARNING for finding in found):
        found.append((yield from to_load()))
    return found


def _library(status: LibraryStatus) -> Finding:
    """The finding for one library: missing, another program's, another build, newer or fine."""
    check, version = f"library {status.name}", status.version or "unknown"
    if not status.loaded:
        return Finding(check, Verdict.WARNING, "not loaded", f"{LOAD} (or a client that may load it does)")
    if status.name == GLIDEMQ:
        if status.version == libraries.SUPPORTED_VERSION:
            return Finding(check, Verdict.OK, f"version {version}{'' if status.ours else ', another build'}")
        return Finding(
            check,
            Verdict.FAILED,
            f"version {version}, {libraries.SUPPORTED_VERSION} is needed",
            f"{LOAD} --replace",
        )
    if status.ours:
        return Finding(check, Verdict.OK, f"version {version}")
    if numbers(version) > numbers(library(ORCHESTRATE).version):
        return Finding(
            check, Verdict.FAILED, f"version {version} is newer", "update glidemq-orchestrate here"
        )
    return Finding(check, Verdict.WARNING, f"version {version}, another build", LOAD)


def _clock(clock: Clock) -> Op[Finding]:
    """The difference between the clocks of server and client."""
    before = clock.now_ms()
    try:
        theirs = yield from ask(server.server_time())
    except ConfigurationError:
        return Finding("clock", Verdict.OK, "the user may not run TIME")
    skew = theirs - (before + clock.now_ms()) // 2
    found = f"{abs(skew)} ms {'ahead of' if skew >= 0 else 'behind'} this machine"
    warning_ms, failed_ms = SKEW_MS
    if abs(skew) < warning_ms:
        return Finding("clock", Verdict.OK, found)
    verdict = Verdict.WARNING if abs(skew) < failed_ms else Verdict.FAILED
    return Finding(
        "clock",
        verdict,
        found,
        "synchronize clocks (NTP): Node workers use their own clock, ours use the server's",
    )


def _slots() -> Op[Finding]:
    served = yield from ask(server.slots_served())
    found = f"{served:,} of {SLOTS:,} served"
    if served == SLOTS:
        return Finding("slots", Verdict.OK, found)
    return Finding("slots", Verdict.FAILED, found, "restart the missing primaries, or reassign their slots")


def unreachable(where: str, exc: GlideMQError) -> Finding:
    """The finding for a server that cannot be reached."""
    found, _, advice = str(exc).partition(". Fix: ")
    fallback = "try again" if isinstance(exc, TransportError) else ""
    if isinstance(exc, OutcomeUnknown) and where.startswith("valkey:"):
        fallback = "try again; valkeys:// if the server uses TLS at this port"
    return Finding("connection", Verdict.FAILED, found, advice or fallback, where)
