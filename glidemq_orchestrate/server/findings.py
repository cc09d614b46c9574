"""Findings of ``glidemq doctor``: missing rights, and each way in which acknowledged writes may be lost.

``docs/explanation/durability.md`` explains the latter. The checks of rights change nothing that lasts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

from glidemq_orchestrate.errors import ConfigurationError, GlideMQError, ServerBusy
from glidemq_orchestrate.foundation.durations import milliseconds, seconds
from glidemq_orchestrate.server import calls as server
from glidemq_orchestrate.server.calls import load_library
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_each, command
from glidemq_orchestrate.wire.confirmation import (
    Confirmation,
    check_confirmation,
    mark,
    wait_disk,
    wait_replicas,
)
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX, absent_key, doctors_key

Facts = Mapping[str, str]
"""The fields of INFO."""


class Verdict(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        check: What was checked.
        verdict: ``ok``, ``warning`` (something may go wrong) or ``failed`` (something does).
        found: What was found.
        advice: How to fix it; empty if nothing needs to be done.
        server: The server that was checked.
    """

    check: str
    verdict: Verdict
    found: str
    advice: str = ""
    server: str = ""


PAGE: Final = "see docs/explanation/durability.md"
_LOST_WITH_POWER: Final = {
    "always": "nothing that was acknowledged is lost",
    "everysec": "about the last second of acknowledged writes is lost",
    "no": "what the operating system has not written yet is lost, often half a minute",
}


def examine_durability(
    facts: Facts, settings: ConnectionSettings, *, read_only: bool = False
) -> Op[list[Finding]]:
    """Find what a machine failure, a failover or a partition loses, and whether ``confirm`` holds.

    With ``read_only`` nothing is written: only the ability to confirm is checked.
    """
    found = list(_failover(facts, settings))
    if facts.get("aof_enabled") == "1":  # otherwise the persistence check reports what is lost
        found.insert(0, _power((yield from _fsync()), settings))
    if settings.confirmation is not None:
        found.append((yield from _confirm(settings, settings.confirmation, read_only=read_only)))
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


def _confirm(settings: ConnectionSettings, required: Confirmation, *, read_only: bool) -> Op[Finding]:
    """Have a write confirmed that leaves no trace."""
    name, limit_ms = "confirm", max(milliseconds(settings.confirm_timeout), 1)
    try:
        yield from check_confirmation(required)
    except ConfigurationError as exc:
        return Finding(name, Verdict.FAILED, f"{settings.confirm} cannot hold", str(exc))
    if read_only:
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


Role: TypeAlias = Literal["worker", "producer", "observer"]
_SPECIAL: Final = re.compile(r"[\\*?\[\]]")  # in a pattern of keys
_ESCAPED: Final = r"\\\g<0>"

# The server also checks commands inside functions against the rights of the caller.
_COMMANDS: Final = """
fcall info scan copy get getbit getrange bitfield mget set incr incrby decr decrby exists del unlink
expire pexpire persist hget hmget hgetall hset hsetnx hdel hexists hincrby hincrbyfloat hkeys hlen
hrandfield hscan llen lpop lpos lpush lrange lrem rpop rpush sadd scard sinter sintercard sismember
smembers smismember spop srandmember srem sscan time zadd zcard zcount zpopmin zrandmember zrange
zrangebyscore zrem zrevrange zrevrangebyscore zscore xack xadd xautoclaim xclaim xdel xgroup xinfo xlen
xpending xrange xread xreadgroup xrevrange xtrim
"""
COMMANDS: Final = tuple(_COMMANDS.split())
IN_A_CLUSTER: Final = ("asking", "cluster|slots")
TO_CONFIRM: Final = ("wait", "waitaof")
# Commands that a user of this role does not need.
WITHOUT: Final[dict[str, tuple[str, ...]]] = {
    "worker": ("scan",),
    "producer": ("xreadgroup", "xautoclaim", "xclaim", "xgroup", "rpop", "mget", "del"),
}
_READING: Final = """
fcall info scan time get getbit getrange mget hget hmget hgetall hscan hlen llen lrange scard sismember
smembers smismember sscan zcard zcount zrange zrangebyscore zrevrange zrevrangebyscore zscore xinfo xlen
xpending xrange xread xrevrange
"""
TO_OBSERVE: Final = tuple(_READING.split())
TO_LOAD: Final = ("fcall", "info", "cluster|nodes", "function|list", "function|load")


# The words after the key; with these a command on a string changes nothing or is refused.
_AFTER_KEY: Final = {
    "bitfield": ("GET", "u1", "0"),
    "getbit": ("0",),
    "set": ("1", "PX", "60000"),
    "expire": ("60",),
    "pexpire": ("60000",),
    "xack": ("g", "0-1"),
    "xadd": ("*", "f", "v"),
    "xautoclaim": ("g", "c", "0", "0"),
    "xclaim": ("g", "c", "0", "0-1"),
    "xdel": ("0-1",),
    "xpending": ("g",),
    "xtrim": ("MAXLEN", "0"),
}
_ONE: Final = """
decrby hdel hexists hget hmget hscan incrby lpos lpush rpush sadd sismember smismember srem sscan zrem
zscore
"""
_TWO: Final = """
getrange hincrby hincrbyfloat hset hsetnx lrange lrem xrange xrevrange zadd zcount zrange zrangebyscore
zrevrange zrevrangebyscore
"""
_ELSE: Final = {
    "copy": ("COPY", "KEY", "KEY"),
    "info": ("INFO", "server"),
    "scan": ("SCAN", "0", "COUNT", "1"),
    "sintercard": ("SINTERCARD", "1", "KEY"),
    "time": ("TIME",),
    "wait": ("WAIT", "0", "1"),
    "waitaof": ("WAITAOF", "0", "0", "1"),
    "fcall": ("FCALL", "glidemq_version", "0"),
    "xgroup": ("XGROUP", "CREATE", "KEY", "g", "0"),
    "xinfo": ("XINFO", "STREAM", "KEY"),
    "xread": ("XREAD", "STREAMS", "KEY", "0"),
    "xreadgroup": ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "KEY", ">"),
}

# The words after the key in a trial on a missing key; with these a command changes nothing.
_ON_ABSENT: Final = {
    "set": ("1", "XX"),
    "incrby": ("x",),
    "decrby": ("x",),
    "hincrby": ("f", "x"),
    "hincrbyfloat": ("f", "x"),
    "hset": ("f", "v", "g"),
    "xadd": ("NOMKSTREAM", "*", "f", "v"),
    "zadd": ("XX", "1", "m"),
}
ALWAYS_WRITE: Final = ("incr", "decr", "hsetnx", "lpush", "rpush", "sadd")
_LOAD: Final = "glidemq library load"


def harmless_trial(name: str, key: str) -> Call[None]:
    """Return a call of the command that changes nothing if the key does not exist.

    Not for the commands in ``ALWAYS_WRITE``.
    """
    if name in _ON_ABSENT:
        return command(name.upper(), key, *_ON_ABSENT[name], decode=replies.anything)
    return trial(name, key)


def trial(name: str, key: str) -> Call[None]:
    """Return a call of the command without effects; only ``set`` writes the key, for a minute.

    The key must hold a string: commands for other types are then refused after the check of rights.
    """
    more = 1 if name in _ONE.split() else 2 if name in _TWO.split() else 0
    words = _ELSE.get(name) or (name.upper(), "KEY", *_AFTER_KEY.get(name, ("1",) * more))
    return command(*(key if word == "KEY" else word for word in words), decode=replies.anything)


def rule(prefix: str = DEFAULT_PREFIX) -> str:
    """The rule for a user with all rights except that of loading libraries."""
    return f"resetchannels ~{prefix}:* -@all {_allowed(COMMANDS)}"


def role_rule(role: Role, prefix: str = DEFAULT_PREFIX, queues: Sequence[str] = ()) -> str:
    """The rule for a user of one role.

    Args:
        role: ``worker`` runs jobs. ``producer`` adds, follows, cancels and reruns jobs, flows and schedules,
            but runs no jobs. ``observer`` only reads.
        prefix: First part of every key.
        queues: The queues that the user may access; all by default.
    """
    keys = " ".join(patterns(prefix, queues))
    if role == "observer":
        return f"resetchannels {keys} -@all {_allowed(TO_OBSERVE)}"
    return f"resetchannels {keys} -@all {_allowed(COMMANDS)} {' '.join(f'-{name}' for name in WITHOUT[role])}"


def patterns(prefix: str = DEFAULT_PREFIX, queues: Sequence[str] = ()) -> list[str]:
    """The key patterns of some or all queues, and of the homes of flows."""
    if not queues:
        return [f"~{prefix}:*"]
    named = [f"~{prefix}:{{{_SPECIAL.sub(_ESCAPED, queue)}}}:*" for queue in queues]
    return [*named, f"~{prefix}:gmo:*", f"~{prefix}:usage:queues"]


def cluster_rule() -> str:
    """The additional rule in a cluster."""
    return _allowed(IN_A_CLUSTER)


def confirm_rule() -> str:
    """The additional rule where writes are confirmed."""
    return _allowed(TO_CONFIRM)


def loader_rule() -> str:
    """The rule for a user that loads the libraries (``glidemq library load``)."""
    return f"resetchannels -@all {_allowed(TO_LOAD)}"


def _allowed(commands: tuple[str, ...]) -> str:
    return " ".join(f"+{command}" for command in commands)


def examine_rights(prefix: str, *, read_only: bool = False) -> Op[Finding]:
    """Try every command on a temporary key, which is deleted afterwards.

    With ``read_only`` nothing is ever written: the key does not exist, and the few commands that always write
    are skipped.
    """
    if read_only:
        key = absent_key(prefix)
        tried = {name: harmless_trial(name, key) for name in COMMANDS if name not in ALWAYS_WRITE}
    else:
        key, ends = doctors_key(prefix), ("del", "unlink")
        order = ["set", *(name for name in COMMANDS if name not in {"set", *ends}), *ends]
        tried = {name: trial(name, key) for name in order}
    denied = yield from _denied(tried)
    if not denied:
        left_out = f", except those that cannot be tried without writing ({' '.join(ALWAYS_WRITE)})"
        return Finding(
            "rights", Verdict.OK, f"all required rights on {prefix}:*{left_out if read_only else ''}"
        )
    found = "none" if len(denied) == len(tried) else f"missing: {' '.join(denied)}"
    advice = f"ACL SETUSER ... ~{prefix}:* {' '.join(f'+{name}' for name in denied)}"
    return Finding("rights", Verdict.FAILED, found, advice)


def examine_writes(prefix: str) -> Op[list[Finding]]:
    """Find why the server refuses writes from everyone, if it does; tried on a missing key."""
    (reply,) = yield from ask_each([harmless_trial("set", absent_key(prefix))])
    if not isinstance(reply, ServerBusy):
        return []
    found, _, advice = str(reply).partition(". Fix: ")
    return [Finding("writes", Verdict.FAILED, found, advice or "see the log of the server")]


def to_load() -> Op[Finding]:
    """Whether the user may load libraries, tried with an empty source that the server refuses."""
    denied = yield from _denied({"function|load": load_library("")})
    if denied:
        return Finding(
            "loading", Verdict.FAILED, "the user may not load libraries", f"{_LOAD}, as a user who may"
        )
    return Finding("loading", Verdict.OK, "the user may load libraries")


def _denied(tried: dict[str, Call[None]]) -> Op[list[str]]:
    replies = yield from ask_each(tried.values())
    return [name for name, reply in zip(tried, replies, strict=True) if _is_denied(reply)]


def _is_denied(reply: object) -> bool:
    return isinstance(reply, GlideMQError) and reply.code == "NOPERM"
