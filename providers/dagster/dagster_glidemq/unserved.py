"""Notices that nobody can run what waits in a flow: no live worker serves the queue, or none has the handler.

Queue time-outs of the flow itself are held by whoever watches it; this is for flows that have none.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from dagster_glidemq.patience import Patience
from dagster_glidemq.watch import Batch
from glidemq_orchestrate import Flow, FlowProducer, NodeChange
from glidemq_orchestrate.errors import WorkersMissing
from glidemq_orchestrate.jobs.states import JobState

EVERY: Final = 5.0
WARN_AFTER: Final = 10.0
MAX: Final = 1_000
# A delayed node waits on purpose.
WAITING: Final = frozenset({JobState.WAITING, JobState.PRIORITIZED, JobState.GROUP_WAITING, JobState.ACTIVE})


class Unserved:
    """Looks now and then whether live workers serve what is to run in a flow.

    Args:
        producer: A client.
        flow: The flow.
        limit: How long nobody may serve it; None: for ever.
        warn: Told once for each thing that is missing.
        patience: How long the server may be unreachable.
    """

    def __init__(
        self,
        producer: FlowProducer,
        flow: Flow,
        *,
        limit: timedelta | None,
        warn: Callable[[str], None],
        patience: Patience,
    ) -> None:
        self._producer, self._flow, self._limit = producer, flow, limit
        self._warn, self._patience = warn, patience
        self._open: dict[str, tuple[str, str] | None] = {}  # its queue and job, once they are known
        self._looked = self._served = time.monotonic()
        self._warned = ""

    def look(self, batch: Batch) -> None:
        """Note changes of the flow; look, if it is time.

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
        if now < self._looked + EVERY:
            return
        self._looked = now
        missing = self._missing()
        if missing is None:
            self._served, self._warned = now, ""
            return
        away = now - self._served
        if self._limit is not None and away >= self._limit.total_seconds():
            raise missing
        if away >= WARN_AFTER and str(missing) != self._warned:
            self._warned = str(missing)
            limit = "" if self._limit is None else f"; the step fails when that lasts for {self._limit}"
            self._warn(f"flow {self._flow.id} waits: {missing}{limit}")

    def _missing(self) -> WorkersMissing | None:
        if not self._open:
            return None
        names = [name for name, place in self._open.items() if place is None][:MAX]
        for node in self._patience(lambda: self._flow.nodes(names)) if names else ():
            self._open[node.name] = (node.queue, node.job)
        jobs: dict[str, set[str]] = defaultdict(set)
        for queue, job in filter(None, self._open.values()):
            jobs[queue].add(job)
        try:
            self._patience(lambda: self._producer.check_workers(jobs))
        except WorkersMissing as exc:
            return exc
        return None
