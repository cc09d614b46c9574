"""Checks of what a server keeps of acknowledged writes, one finding for each way to lose some.

``docs/durability.md`` explains them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from glidemq_orchestrate.errors import ConfigurationError, GlideMQError
from glidemq_orchestrate.server import calls as server
from glidemq_orchestrate.server.confirm import check_confirmation
from glidemq_orchestrate.server.finding import Facts, Finding, Verdict
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_each
from glidemq_orchestrate.wire.confirmation import Confirmation
from glidemq_orchestrate.wire.keys import doctors_key
from glidemq_orchestrate.wire.wait import mark, wait_disk, wait_replicas

PAGE: Final = "see docs/durability.md"
_LOST_WITH_POWER: Final = {
    "always": "nothing that was acknowledged is lost",
    "everysec": "about the last second of acknowledged writes is lost",
    "no": "what the operating system has not written yet is lost, often half a minute",
}


def examine(facts: Facts, settings: ConnectionSettings, *, look_only: bool = False) -> Op[list[Finding]]:
    """What is lost with its machine, by a failover, and when it is cut off; and whether ``confirm`` holds.

    With ``look_only`` nothing is written to find that out, only asked whether the server can confirm.
    """
    found = list(_failover(facts, settings))
    if facts.get("aof_enabled") == "1":  # else the check of the persistence says what is lost
        found.insert(0, _power((yield from _fsync()), settings))
    if settings.confirmation is not None:
        found.append((yield from _confirm(settings, settings.confirmation, look_only=look_only)))
    return found


def _fsync() -> Op[str | None]:
    """How the append-only file is brought to the disk; None where the user may not ask."""
    try:
        return (yield from ask(server.server_settings("appendfsync"))).get("appendfsync")
    except ConfigurationError:
        return None


def _power(fsync: str | None, settings: ConnectionSettings) -> Finding:
    """When the machine of the server loses its power."""
    name, wanted = "lost with the machine", settings.confirmation
    if fsync is None:
        return Finding(name, Verdict.OK, "depends on appendfsync; the user may not run CONFIG GET")
    found = f"appendfsync {fsync}: {_LOST_WITH_POWER.get(fsync, 'unknown')}"
    if fsync == "no" or (wanted and wanted.disk and fsync != "always"):
        return Finding(name, Verdict.WARNING, found, f"set appendfsync always; {PAGE}")
    return Finding(name, Verdict.OK, found)


def _failover(facts: Facts, settings: ConnectionSettings) -> Iterator[Finding]:
    """When another server takes over, and while this one does not know of it."""
    name, wanted = "lost by a failover", settings.confirmation
    replicas = int(facts.get("connected_slaves", 0))
    if wanted and wanted.replicas > replicas:
        found = f"{replicas} of {wanted.replicas} replicas: every write is reported as NotConfirmed"
        yield Finding(name, Verdict.FAILED, found, "add replicas, or lower confirm")
    elif wanted and wanted.replicas:
        yield Finding(name, Verdict.OK, "nothing that was confirmed, if a replica that has it takes over")
    elif not replicas:
        yield Finding(name, Verdict.OK, "no replica can take over")
    else:
        yield Finding(name, Verdict.OK, "what no replica has yet; confirm=replicas:1 waits for one")
    if replicas:
        is_set = "min_slaves_good_slaves" in facts
        found = "writes until it has missed its replicas for min-replicas-max-lag"
        if not is_set:
            found = "writes until it hears of the failover: min-replicas-to-write is 0"
        yield Finding("lost when cut off", Verdict.OK, found)


def _confirm(settings: ConnectionSettings, wanted: Confirmation, *, look_only: bool) -> Op[Finding]:
    """Have something confirmed that leaves no trace."""
    name, limit_ms = "confirm", max(int(settings.confirm_timeout * 1000), 1)
    try:
        yield from check_confirmation(wanted)
    except ConfigurationError as exc:
        return Finding(name, Verdict.FAILED, f"{settings.confirm} cannot hold", str(exc))
    if look_only:
        return Finding(name, Verdict.OK, f"{settings.confirm} can be asked for")
    waits: list[Call[Any]] = [wait_replicas(wanted.replicas, limit_ms)] if wanted.replicas else []
    waits += [wait_disk(limit_ms)] if wanted.disk else []
    marking = mark(settings.prefix, doctors_key(settings.prefix))
    reached = (yield from ask_each([marking, *waits]))[1:]  # also where the library is not loaded yet
    least = [wanted.replicas] * bool(wanted.replicas) + [True] * wanted.disk
    if all(
        not isinstance(one, GlideMQError) and one >= some for one, some in zip(reached, least, strict=True)
    ):
        return Finding(name, Verdict.OK, f"{settings.confirm} holds")
    found = f"{settings.confirm} does not hold within {settings.confirm_timeout:g} s"
    return Finding(name, Verdict.FAILED, found, "check the replicas and the disk of the server")
