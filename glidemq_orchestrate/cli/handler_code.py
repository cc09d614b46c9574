"""Where the code of the handler of a job is, as commands show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from glidemq_orchestrate.attempts.handler_code import HandlerCode, named_code
from glidemq_orchestrate.attempts.workers import CodeInUse, code_in_use, serving
from glidemq_orchestrate.clients.queue import Queue
from glidemq_orchestrate.errors import ProtocolError

UNSERVED: Final = "no worker that serves this handler is there now"
MAX_NAMED: Final = 5


def code_row(queue: Queue, job: str, data: Any) -> dict[str, Any]:
    """``code``: what the data of a job names; ``handler``: what the live workers of its queue tell of it."""
    try:
        workers = queue.workers()
    except ProtocolError:  # keys of the queue are broken: the rest is still shown
        handler = None
    else:
        versions = [_version(one) for one in code_in_use(workers, job)]
        handler = {"served_by": len(serving(workers, job)), "code": versions}
    return {"code": named_code(job, data), "handler": handler}


def _version(found: CodeInUse) -> dict[str, Any]:
    return {
        "subscription": found.subscription,
        **asdict(found.code),
        "workers": [{"id": one.id, "host": one.host, "pid": one.pid} for one in found.workers],
    }


def code_text(row: Mapping[str, Any]) -> str:
    """It as text, a line for each version with its workers; empty if nobody tells."""
    handler = row.get("handler") or {"served_by": None, "code": []}
    versions = handler["code"]
    if row.get("code"):
        lines = [row["code"]]
    elif len(versions) == 1:
        lines = [_place(versions[0])]
    else:
        lines = [f"{_place(one)}, source {one['digest'] or 'unknown'}, on {_where(one)}" for one in versions]
    return "\n".join([*lines, UNSERVED] if handler["served_by"] == 0 else lines)


def _place(version: Mapping[str, Any]) -> str:
    place = str(HandlerCode(version["path"], version["file"]))
    return f"subscription {version['subscription']}: {place}" if version["subscription"] else place


def _where(version: Mapping[str, Any]) -> str:
    workers = version["workers"]
    more = f" and {len(workers) - MAX_NAMED:,} more" if len(workers) > MAX_NAMED else ""
    return ", ".join(f"{one['host']} {one['pid']}" for one in workers[:MAX_NAMED]) + more
