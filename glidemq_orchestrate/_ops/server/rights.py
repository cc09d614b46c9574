"""Checks of what the user may do: by commands that change nothing, or nothing that lasts."""

from __future__ import annotations

from typing import Final

from glidemq_orchestrate._ops.server.finding import Finding, Verdict
from glidemq_orchestrate._protocol.call import Call, Op, ask_each
from glidemq_orchestrate._protocol.server import acl
from glidemq_orchestrate._protocol.server.server import load_library
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.keys import absent_key, doctors_key

_LOAD: Final = "glidemq library load"


def examine(prefix: str, *, look_only: bool = False) -> Op[Finding]:
    """Try every command on a key of its own, which is deleted afterwards.

    With ``look_only`` nothing is ever written: the key does not exist, and a few commands, which would always
    write, are left out.
    """
    if look_only:
        key = absent_key(prefix)
        tried = {name: acl.harmless_trial(name, key) for name in acl.COMMANDS if name not in acl.ALWAYS_WRITE}
    else:
        key, ends = doctors_key(prefix), ("del", "unlink")
        order = ["set", *(name for name in acl.COMMANDS if name not in {"set", *ends}), *ends]
        tried = {name: acl.trial(name, key) for name in order}
    denied = yield from _denied(tried)
    if not denied:
        left_out = f", as far as they can be tried without writing (not {' '.join(acl.ALWAYS_WRITE)})"
        return Finding(
            "rights", Verdict.OK, f"all that are needed on {prefix}:*{left_out if look_only else ''}"
        )
    found = "none" if len(denied) == len(tried) else f"missing: {' '.join(denied)}"
    advice = f"ACL SETUSER ... ~{prefix}:* {' '.join(f'+{name}' for name in denied)}"
    return Finding("rights", Verdict.FAILED, found, advice)


def to_load() -> Op[Finding]:
    """Whether the user may load the libraries: asked with an empty source, which the server refuses."""
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
