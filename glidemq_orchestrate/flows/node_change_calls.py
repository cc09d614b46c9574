"""Running nodes of a flow again, and ending them by hand; ``parts/rerun.lua`` says what follows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, command, function
from glidemq_orchestrate.wire.keys import QueueKeys

What = Literal["alone", "follow", "completed", "skipped", "failed"]
_BUSY: Final = "busy"


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


def change_nodes(  # noqa: PLR0913  the function has as many arguments
    home: QueueKeys, flow_id: str, change: Change, names: Sequence[str], now_ms: int, *, strict: bool
) -> Call[list[str] | None]:
    """Note what is to become of these nodes: the names of those that change; None while the flow is busy."""

    def decode(reply: Any) -> list[str] | None:
        state, *changed = (replies.text(part) for part in reply)
        return None if state == _BUSY else changed

    pairs = [word for name in names for word in (name, change.text)]
    args = (now_ms, flow_id, change.what, change.token, int(strict), *pairs)
    return function("gmo_change_nodes", [home.flow(flow_id)], args, decode, repeatable=True)


def has_grown(home: QueueKeys, flow_id: str) -> Call[bool]:
    """Whether nodes of the flow have added nodes to it."""
    return command("HEXISTS", home.flow(flow_id), "grown", decode=bool)


def grows(queue: QueueKeys, job_id: str) -> Call[bool]:
    """Whether a node has completed and added nodes."""
    return job_hash.get_some(
        queue, job_id, ("state", "gmo:grows"), lambda reply: reply[0] == "completed" and reply[1] is not None
    )


def requests(queue: QueueKeys, job_id: str) -> Call[list[str]]:
    """The tokens of the requests that changed a node last."""
    return job_hash.get(queue, job_id, "gmo:requests", lambda reply: (reply or "").split(","))
