"""The token of an attempt: it proves who holds a job, and names the worker. Pure."""

from __future__ import annotations

from glidemq_orchestrate.wire.codec import readable

_BETWEEN = "/"


def token_of(worker_id: str, secret: str) -> str:
    """The token of the attempts that a worker starts with one call."""
    return f"{worker_id}{_BETWEEN}{secret}"


def worker_of(token: str) -> str | None:
    """The worker that a token names; None where it names none."""
    return readable(token.rpartition(_BETWEEN)[0]) or None
