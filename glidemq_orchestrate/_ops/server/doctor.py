"""Looking at a server: what is wrong with it, and what to do. Changes nothing that lasts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from glidemq_orchestrate._lua import GLIDEMQ, ORCHESTRATE, library
from glidemq_orchestrate._ops.server.library import LibraryStatus, library_status, numbers
from glidemq_orchestrate._protocol.call import Op, ask, ask_each
from glidemq_orchestrate._protocol.server import acl, libraries, server
from glidemq_orchestrate.clock import Clock
from glidemq_orchestrate.errors import (
    ConfigurationError,
    GlideMQError,
    LibraryMissing,
    ServerTooOld,
    TransportError,
)
from glidemq_orchestrate.keys import doctors_key
from glidemq_orchestrate.settings import ConnectionSettings, Endpoint

SLOTS: Final = 16384
SKEW_MS: Final = (1_000, 30_000)
FULL: Final = (0.8, 0.95)
LOAD: Final = "glidemq library load"


class Verdict(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: What was looked at.
        verdict: ``ok``, ``warning`` (something may go wrong) or ``failed`` (something does).
        found: What is so.
        advice: What to do about it; empty when nothing is to be done.
        server: Where.
    """

    check: str
    verdict: Verdict
    found: str
    advice: str = ""
    server: str = ""


Facts = Mapping[str, str]


def examine(prefix: str, clock: Clock, settings: ConnectionSettings, place: Endpoint) -> Op[list[Finding]]:
    """Look at one server. A server that cannot be asked is a finding too."""
    where = settings.node(place)
    try:
        found = yield from _examined(prefix, clock, settings.kind)
    except GlideMQError as exc:
        return [unreachable(where, exc)]
    answers = Finding("connection", Verdict.OK, f"answers as {settings.user or 'default'}")
    return [replace(finding, server=where) for finding in (answers, *found)]


def _examined(prefix: str, clock: Clock, kind: str) -> Op[list[Finding]]:
    facts = yield from ask(server.server_facts())
    try:
        product, version = yield from ask(server.server_info())
    except ServerTooOld as exc:
        return [
            Finding("version", Verdict.FAILED, f"{exc.product} {exc.version}", "use Valkey 7.2 or Redis 7.0")
        ]
    found = [Finding("version", Verdict.OK, f"{product} {version}"), *_role(facts, kind)]
    found += [_persistence(facts), *_memory(facts)]
    found.append((yield from _rights(prefix)))
    found += yield from _libraries()
    found.append((yield from _clock(clock)))
    if kind == "cluster":
        found.append((yield from _slots()))
    return found


def _role(facts: Facts, kind: str) -> Iterator[Finding]:
    replicas = int(facts.get("connected_slaves", 0))
    if facts.get("role") != "master":
        yield Finding(
            "role", Verdict.FAILED, "a replica, which takes no writes", "name its primary, or its sentinels"
        )
    elif kind == "single" and facts.get("cluster_enabled") == "1":
        yield Finding("role", Verdict.FAILED, "a node of a cluster", "use valkey+cluster://HOST:PORT")
    elif kind != "single" and not replicas:
        yield Finding(
            "role", Verdict.WARNING, "a primary without replicas", "add one, or nobody can take over"
        )
    else:
        yield Finding("role", Verdict.OK, f"a primary with {replicas} replica{'' if replicas == 1 else 's'}")


def _persistence(facts: Facts) -> Finding:
    name = "persistence"
    if facts.get("aof_last_write_status", "ok") != "ok":
        return Finding(
            name, Verdict.FAILED, "the append-only file cannot be written", "look at the server's disk"
        )
    if facts.get("rdb_last_bgsave_status", "ok") != "ok":
        return Finding(name, Verdict.FAILED, "the last snapshot failed", "look at the server's disk and log")
    if facts.get("aof_enabled") == "1":
        return Finding(name, Verdict.OK, "append-only file")
    return Finding(name, Verdict.WARNING, "no append-only file: a restart loses jobs", "set appendonly yes")


def _memory(facts: Facts) -> Iterator[Finding]:
    limit, policy = int(facts.get("maxmemory", 0)), facts.get("maxmemory_policy", "noeviction")
    used = int(facts.get("used_memory", 0))
    if policy == "noeviction":
        yield Finding("eviction", Verdict.OK, policy)
    else:
        # Without a limit nothing is evicted, yet.
        verdict = Verdict.FAILED if limit else Verdict.WARNING
        yield Finding(
            "eviction",
            verdict,
            f"{policy}: jobs vanish when memory is full",
            "set maxmemory-policy noeviction",
        )
    told = f"{used / 2**20:,.0f} MiB of {f'{limit / 2**20:,.0f} MiB' if limit else 'no limit'}"
    advice = "raise maxmemory, or clean ended jobs: glidemq queue clean, retention"
    full = used / limit if limit else 0.0
    if full >= FULL[1]:
        yield Finding("memory", Verdict.FAILED, told, advice)
    elif full >= FULL[0]:
        yield Finding("memory", Verdict.WARNING, told, advice)
    else:
        yield Finding("memory", Verdict.OK, told)


def _rights(prefix: str) -> Op[Finding]:
    """Try every command on a key of its own that is gone afterwards."""
    key = doctors_key(prefix)
    order = ["set", *(name for name in acl.COMMANDS if name not in {"set", "del", "unlink"}), "del", "unlink"]
    replies = yield from ask_each([acl.trial(name, key) for name in order])
    denied = [name for name, reply in zip(order, replies, strict=True) if _is_denied(reply)]
    if not denied:
        return Finding("rights", Verdict.OK, f"all that is needed on {prefix}:*")
    told = "none" if len(denied) == len(order) else f"missing: {' '.join(denied)}"
    advice = f"ACL SETUSER ... ~{prefix}:* {' '.join(f'+{name}' for name in denied)}"
    return Finding("rights", Verdict.FAILED, told, advice)


def _is_denied(reply: object) -> bool:
    return isinstance(reply, GlideMQError) and reply.code == "NOPERM"


def _libraries() -> Op[list[Finding]]:
    try:
        statuses = yield from library_status()
    except ConfigurationError:  # the user may use libraries, and may not look at them
        statuses = yield from _by_version()
    return [_library(status) for status in statuses]


def _by_version() -> Op[list[LibraryStatus]]:
    found: list[LibraryStatus] = []
    for name in (GLIDEMQ, ORCHESTRATE):
        version, sha256 = None, None
        try:
            if name == GLIDEMQ:
                version = yield from ask(libraries.glidemq_version())
            else:
                version, sha256 = yield from ask(libraries.orchestrate_version())
        except (LibraryMissing, ConfigurationError):
            pass
        ours = sha256 == library(name).sha256 if sha256 else version == libraries.SUPPORTED_VERSION
        found.append(
            LibraryStatus(name, loaded=version is not None, ours=ours, version=version, sha256=sha256)
        )
    return found


def _library(status: LibraryStatus) -> Finding:
    check, version = f"library {status.name}", status.version or "unknown"
    if not status.loaded:
        return Finding(
            check, Verdict.WARNING, "not loaded", f"{LOAD} (a client with the right to does it too)"
        )
    if status.name == GLIDEMQ:
        if status.version == libraries.SUPPORTED_VERSION:
            return Finding(
                check, Verdict.OK, f"version {version}{'' if status.ours else ', of somebody else'}"
            )
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
    before = clock.now_ms()
    try:
        theirs = yield from ask(server.server_time())
    except ConfigurationError:
        return Finding("clock", Verdict.OK, "the user may not ask for the time")
    skew = theirs - (before + clock.now_ms()) // 2
    told = f"{abs(skew)} ms {'ahead of' if skew >= 0 else 'behind'} this machine"
    least, most = SKEW_MS
    if abs(skew) < least:
        return Finding("clock", Verdict.OK, told)
    verdict = Verdict.WARNING if abs(skew) < most else Verdict.FAILED
    return Finding(
        "clock", verdict, told, "synchronize clocks (NTP): delays and leases are by the workers' clocks"
    )


def _slots() -> Op[Finding]:
    served = yield from ask(server.slots_served())
    told = f"{served:,} of {SLOTS:,} served"
    if served == SLOTS:
        return Finding("slots", Verdict.OK, told)
    return Finding("slots", Verdict.FAILED, told, "bring the missing primaries back, or assign their slots")


def unreachable(where: str, exc: GlideMQError) -> Finding:
    """The finding for a server that cannot be asked."""
    told, _, advice = str(exc).partition(". ")
    fallback = "try again" if isinstance(exc, TransportError) else ""
    return Finding("connection", Verdict.FAILED, told, advice or fallback, where)
