"""What the page shows of the code of handlers."""

from __future__ import annotations

from typing import Any, Final

from glidemq_orchestrate.attempts.handler_code import HandlerCode
from glidemq_orchestrate.attempts.workers import WorkerInfo, code_in_use, serving
from glidemq_orchestrate.console.shown import masked_line
from glidemq_orchestrate.errors import ProtocolError

MAX_WORKERS: Final = 20
MAX_VERSIONS: Final = 20
MAX_HANDLERS: Final = 100
"""The code of so many handlers is listed with their worker."""


async def handler_row(console: Any, queue: str, handler: str) -> dict[str, Any] | None:
    """How many live workers serve a handler, and each version of its code; None if they cannot be read."""
    try:
        workers = await console.client.queue(queue).workers()
    except ProtocolError:  # keys of the queue are broken: the rest is still shown
        return None
    return {
        "served_by": len(serving(workers, handler)),
        "code": [
            {
                "subscription": one.subscription,
                **code_row(one.code),
                "workers": _some(one.workers),
                "count": len(one.workers),
            }
            for one in code_in_use(workers, handler)[:MAX_VERSIONS]
        ],
    }


def code_row(code: HandlerCode) -> dict[str, str]:
    """The code of a handler."""
    return {"path": masked_line(code.path), "file": masked_line(code.file), "digest": code.digest}


def _some(workers: list[WorkerInfo]) -> list[dict[str, Any]]:
    return [{"id": one.id, "host": one.host, "pid": one.pid} for one in workers[:MAX_WORKERS]]


def code_rows(worker: WorkerInfo) -> dict[str, dict[str, str]]:
    """The code of the first handlers of a worker, by their names; or of its subscription."""
    names = (worker.handlers or tuple(worker.code))[:MAX_HANDLERS]
    return {name: code_row(worker.code[name]) for name in names if name in worker.code}
