"""A change that a user asks of nodes: to run again, or to end in some state."""

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
    """What is to become of nodes.

    Attributes:
        what: ``alone`` or ``follow``: they run again, alone or with all that follow; else how they end.
        request: Whoever asked for it.
        text: The result as JSON, or the reason.
    """

    what: What
    request: str
    text: str = ""

    @classmethod
    def rerun(cls, request: str, *, dependents: bool) -> Change:
        """They run again."""
        return cls("follow" if dependents else "alone", request)

    @property
    def token(self) -> str:
        """The request as jobs remember it."""
        return hashlib.sha256(self.request.encode(errors="replace")).hexdigest()[:16]


def requests(queue: QueueKeys, job_id: str) -> Call[list[str]]:
    """The tokens of the requests that changed a node last."""
    return job_hash.get(queue, job_id, "gmo:requests", lambda reply: (reply or "").split(","))
