"""A change to nodes that a user requests: rerun them, or end them in some state."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.wire.call import Call
from glidemq_orchestrate.wire.keys import QueueKeys

What = Literal["alone", "follow", "completed", "skipped", "failed"]


@dataclass(frozen=True, slots=True)
class Change:
    """The requested change.

    Attributes:
        what: ``alone`` or ``follow``: rerun them, alone or with all that follow; else the state in which to
            end them.
        request: The idempotency key.
        text: The result as JSON, or the reason.
    """

    what: What
    request: str
    text: str = ""

    @classmethod
    def rerun(cls, request: str, *, dependents: bool) -> Change:
        """A rerun."""
        return cls("follow" if dependents else "alone", request)

    @property
    def token(self) -> str:
        """The request in the form stored in jobs."""
        return hashlib.sha256(self.request.encode(errors="replace")).hexdigest()[:16]


def requests(queue: QueueKeys, job_id: str) -> Call[list[str]]:
    """The tokens of the last requests that changed a node."""
    return job_hash.get(queue, job_id, "gmo:requests", lambda reply: (reply or "").split(","))
