"""Why nothing happens in a flow, for the log of the task that waits for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_glidemq.node_reports import PASSING, in_line
from glidemq_orchestrate.errors import GlideMQError

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from glidemq_orchestrate import Flow, Wait

FIRST: Final = 10.0  # seconds without a node that ends, after which it is looked why
LAST: Final = 600.0
SHOWN: Final = 5
UNTOLD: Final = "why is in: glidemq flow show %s"


@dataclass(slots=True)
class Silence:
    """When to look why nothing happens: ten seconds after a node has ended, and then less and less often.

    Each look reads all nodes of the flow. What was logged is not logged again.
    """

    ended: int = -1
    due: float = 0.0
    pause: float = FIRST
    logged: str = ""

    def seconds_left(self, now: float) -> float:
        """Until the next look."""
        return max(self.due - now, 0.0)

    def is_due(self, ended: int, now: float) -> bool:
        """Whether to look now; ``ended``: how many nodes have."""
        if ended != self.ended:
            self.ended, self.pause, self.due = ended, FIRST, now + FIRST
            return False
        if now < self.due:
            return False
        self.pause = min(self.pause * 2, LAST)
        self.due = now + self.pause
        return True

    def line(self, waits: Mapping[str, Wait], flow_id: str = "") -> str:
        """What to log: the first nodes that wait; '' for nothing new.

        ``flow_id``: of a flow of which no reason may be shown here; see ``masked``.
        """
        if flow_id:
            parts = [f"{len(waits)} nodes wait; {UNTOLD % flow_id}"] if waits else []
        else:
            parts = [f"{name} waits {in_line(str(wait))}" for name, wait in list(waits.items())[:SHOWN]]
            parts += [f"{len(waits) - SHOWN} more wait"] if len(waits) > SHOWN else []
        text = "; ".join(parts)
        if text == self.logged:
            return ""
        self.logged = text
        return text


def log_silence(flow: Flow, silence: Silence, log: Logger) -> None:
    """Log why nodes of a flow wait; never fails."""
    try:
        if line := silence.line(flow.waits()):
            log.info("%s", line)
    except PASSING:
        pass
    except GlideMQError as exc:
        log.warning("Why nodes wait cannot be read: %s", exc)
