"""Notices that nobody can run what waits in a flow: no live worker serves the queue, or none has the handler.

Queue time-outs of the flow itself are enforced by those who watch it; this is for flows that have none.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from glidemq_orchestrate.errors import WorkersMissing
from glidemq_orchestrate.flows.watched import FlowChange, NodeChange
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.runs.patience import Patience, Warns
from glidemq_orchestrate.runs.steps import Steps

EVERY_SECONDS: Final = 5.0
WARN_AFTER_SECONDS: Final = 10.0
MAX_NODES: Final = 1_000
# A delayed node waits on purpose.
WAITING: Final = frozenset({JobState.WAITING, JobState.PRIORITIZED, JobState.GROUP_WAITING, JobState.ACTIVE})


class Unserved:
    """Checks now and then whether live workers serve what is to run in a flow.

    Args:
        producer: A client.
        flow: The flow.
        limit: How long nobody may serve it; None: without limit.
        log: Warned once for each thing that is missing.
        patience: How long the server may be unreachable.
    """

    def __init__(
        self, producer: Any, flow: Any, *, limit: timedelta | None, log: Warns, patience: Patience
    ) -> None:
        self._producer, self._flow, self._limit = producer, flow, limit
        self._log, self._patience = log, patience
        self._open: dict[str, tuple[str, str] | None] = {}  # its queue and job, once they are known
        self._checked = self._served = time.monotonic()
        self._warned = ""

    def check(self, batch: Sequence[NodeChange | FlowChange]) -> Steps[None]:
        """Take changes of the flow in; check the workers, if it is time.

        Raises:
            WorkersMissing: Nobody has served it for too long.
        """
        for change in batch:
            if isinstance(change, NodeChange):
                if change.state in WAITING:
                    self._open.setdefault(change.node)
                else:
                    self._open.pop(change.node, None)
        now = time.monotonic()
        if now < self._checked + EVERY_SECONDS:
            return
        self._checked = now
        missing = yield from self._missing()
        if missing is None:
            self._served, self._warned = now, ""
            return
        away = now - self._served
        if self._limit is not None and away >= self._limit.total_seconds():
            raise missing
        if away >= WARN_AFTER_SECONDS and str(missing) != self._warned:
            self._warned = str(missing)
            limit = "" if self._limit is None else f"; the task fails when that lasts for {self._limit}"
            self._log.warning("flow %s waits: %s%s", self._flow.id, missing, limit)

    def _missing(self) -> Steps[WorkersMissing | None]:
        if not self._open:
            return None
        names = [name for name, place in self._open.items() if place is None][:MAX_NODES]
        for node in (yield from self._patience.steps(lambda: self._flow.nodes(names))) if names else ():
            self._open[node.name] = (node.queue, node.job)
        jobs: dict[str, set[str]] = defaultdict(set)
        for queue, job in filter(None, self._open.values()):
            jobs[queue].add(job)
        try:
            yield from self._patience.steps(lambda: self._producer.check_workers(jobs))
        except WorkersMissing as exc:
            return exc
        return None
