"""The token of an attempt: it proves ownership of the job and contains the worker's id. Pure."""

from __future__ import annotations

from glidemq_orchestrate.wire.codec import readable

_BETWEEN = "/"


def token_of(worker_id: str, secret: str) -> str:
    """The token of all attempts that a worker starts with one call."""
    return f"{worker_id}{_BETWEEN}{secret}"


def worker_of(token: str) -> str | None:
    """The worker id in a token; None without one."""
    return readable(token.rpartition(_BETWEEN)[0]) or None
