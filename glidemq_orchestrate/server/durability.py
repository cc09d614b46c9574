"""Checks how a server may lose acknowledged writes, with one finding for each way.

``docs/explanation/durability.md`` explains them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from glidemq_orchestrate.errors import ConfigurationError, GlideMQError
from glidemq_orchestrate.foundation.durations import milliseconds, seconds
from glidemq_orchestrate.server import calls as server
from glidemq_orchestrate.server.confirm import check_confirmation
from glidemq_orchestrate.server.finding import Facts, Finding, Verdict
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_each
from glidemq_orchestrate.wire.confirmation import Confirmation
from glidemq_orchestrate.wire.keys import doctors_key
from glidemq_orchestrate.wire.wait import mark, wait_disk, wait_replicas

PAGE: Final = "see docs/explanation/durability.md"
_LOST_WITH_POWER: Final = {
    "always": "nothing that was acknowledged is lost",
    "everysec": "about the last second of acknowledged writes is lost",
    "no": "what the operating system has not written yet is lost, often half a minute",
}


def examine(facts: Facts, settings: ConnectionSettings, *, look_only: bool = False) -> Op[list[Finding]]:
    """What is lost with its machine, by a failover, or by a partition; and whether ``confirm`` holds.

    With ``look_only`` nothing is written: only the ability to confirm is checked.
    """
    found = list(_failover(facts, settings))
    if facts.get("aof_enabled") == "1":  # otherwise the persistence check reports what is lost
        found.insert(0, _power((yield from _fsync()), settings))
    if settings.confirmation is not None:
        found.append((yield from _confirm(settings, settings.confirmation, look_only=look_only)))
    return found


def _fsync() -> Op[str | None]:
    """How often the append-only file is synced to disk; None if the user may not read the setting."""
    try:
        return (yield from ask(server.server_settings("appendfsync"))).get("appendfsync")
    except ConfigurationError:
        return None


def _power(fsync: str | None, settings: ConnectionSettings) -> Finding:
    """What a power failure of the server's machine loses."""
    name, required = "lost with the machine", settings.confirmation
    if fsync is None:
        return Finding(name, Verdict.OK, "depends on appendfsync; the user may not run CONFIG GET")
    found = f"appendfsync {fsync}: {_LOST_WITH_POWER.get(fsync, 'unknown')}"
    if fsync == "no" or (required and required.disk and fsync != "always"):
        return Finding(name, Verdict.WARNING, found, f"set appendfsync always; {PAGE}")
    return Finding(name, Verdict.OK, found)


def _failover(facts: Facts, settings: ConnectionSettings) -> Iterator[Finding]:
    """What a failover loses, and what the old primary still accepts afterwards."""
    name, required = "lost by a failover", settings.confirmation
    replicas = int(facts.get("connected_slaves", 0))
    if required and required.replicas > replicas:
        found = f"{replicas} of {required.replicas} replicas: every write is reported as NotConfirmed"
        yield Finding(name, Verdict.FAILED, found, "add replicas, or lower confirm")
    elif required and required.replicas:
        yield Finding(name, Verdict.OK, "nothing that was confirmed, if a replica that has it is promoted")
    elif not replicas:
        yield Finding(name, Verdict.OK, "no replica can take over")
    else:
        yield Finding(name, Verdict.OK, "writes that no replica has yet; confirm=replicas:1 waits for one")
    if replicas:
        is_set = "min_slaves_good_slaves" in facts
        found = "writes until its replicas have been missing for min-replicas-max-lag"
        if not is_set:
            found = "writes until it notices the failover: min-replicas-to-write is 0"
        yield Finding("lost when cut off", Verdict.OK, found)


def _confirm(settings: ConnectionSettings, required: Confirmation, *, look_only: bool) -> Op[Finding]:
    """Have a write confirmed that leaves no trace."""
    name, limit_ms = "confirm", max(milliseconds(settings.confirm_timeout), 1)
    try:
        yield from check_confirmation(required)
    except ConfigurationError as exc:
        return Finding(name, Verdict.FAILED, f"{settings.confirm} cannot hold", str(exc))
    if look_only:
        return Finding(name, Verdict.OK, f"{settings.confirm} is supported")
    waits: list[Call[Any]] = [wait_replicas(required.replicas, limit_ms)] if required.replicas else []
    waits += [wait_disk(limit_ms)] if required.disk else []
    marking = mark(settings.prefix, doctors_key(settings.prefix))
    reached = (yield from ask_each([marking, *waits]))[1:]  # works even before the library is loaded
    minimums = [required.replicas] * bool(required.replicas) + [True] * required.disk
    if all(
        not isinstance(got, GlideMQError) and got >= min_ for got, min_ in zip(reached, minimums, strict=True)
    ):
        return Finding(name, Verdict.OK, f"{settings.confirm} holds")
    found = f"{settings.confirm} does not hold within {seconds(settings.confirm_timeout):g} s"
    return Finding(name, Verdict.FAILED, found, "check the replicas and the disk of the server")
