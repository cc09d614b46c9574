"""What becomes of a flow after its retention: watched from beside the server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

from glidemq_orchestrate.errors import FlowExpired, FlowNotFound
from glidemq_orchestrate.flows import backend
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.index import find_ref
from glidemq_orchestrate.flows.status import FlowState, FlowStatus
from glidemq_orchestrate.foundation.durations import milliseconds
from glidemq_orchestrate.wire.call import Call
from glidemq_orchestrate.wire.keys import flow_home
from tests.properties.simulation.ledger import FLOW, PREFIX
from tests.properties.simulation.limits import in_ms
from tests.properties.simulation.plan import Plan
from tests.properties.simulation.scheduler import Scheduler

TOMBSTONE_MS: Final = 31 * 24 * 3_600_000


class Expiry:
    """The end of a flow with a retention.

    Args:
        plan: What was drawn.
        scheduler: The world.
        current: Returns where the current generation of the flow is.
        check: Compares an ended flow with its plan, while its jobs are there.

    Attributes:
        ended: The flow as it was when it ended last.
        problems: What is not as it must be.
        is_gone: The tombstone has ended.
    """

    def __init__(
        self, plan: Plan, scheduler: Scheduler, current: Callable[[], FlowRef],
        check: Callable[[FlowRef], Iterator[str]],
    ) -> None:  # fmt: skip
        self.plan, self.scheduler, self._current, self.check = plan, scheduler, current, check
        self.client = scheduler.store.client
        self.claim = flow_home(PREFIX, FLOW)
        self.ended: FlowStatus | None = None
        self.problems: list[str] = []
        self.is_gone = self._is_looking = False

    @property
    def ref(self) -> FlowRef:
        """Where the current generation is."""
        return self._current()

    @property
    def record(self) -> str:
        """The key of its record."""
        return self.ref.home.flow(self.ref.flow_id)

    def reset(self) -> None:
        """Forget a flow of which nothing is left."""
        self.ended, self.is_gone = None, False

    # --- while it happens ---

    def before(self, call: Call[Any]) -> None:
        """A staged flow may be removed by this call: only one that has ended, after its retention."""
        if self._is_looking or self.plan.spec.retention is None or call.words[0] != "FCALL":
            return
        if call.words[1] == "gmo_sweep" and self.ref.path == "staged":
            state, expired = self.client.hmget(self.record, "state", "expired_at")
            if state is not None and FlowState(state).is_terminal and expired is None:
                self._look()

    def after(self, call: Call[Any], reply: Any) -> None:
        """A portable flow may have ended by this call."""
        if self._is_looking or self.plan.spec.retention is None or call.words[0] != "HSETNX" or not reply:
            return
        if str(call.words[2]).startswith("end:") and call.words[1] == self.record:
            self._look()

    def _look(self) -> None:
        self._is_looking = True
        self.problems += self.check(self.ref)
        self.ended = self._status()
        self._is_looking = False

    def _status(self) -> FlowStatus:
        status: FlowStatus = self.scheduler.run(backend.backend_of(self.ref).status(self.ref))
        return status

    # --- afterwards ---

    @property
    def is_expired(self) -> bool:
        """Whether its jobs were removed, or are being removed."""
        return self.client.hget(self.record, "expired_at") is not None

    def is_over(self) -> bool:
        """Whether only the tombstone is left, and that ends by itself, and the sweep has nothing to do."""
        home = self.ref.home
        lists = (home.key("gmo:portable:expiring"), home.key("gmo:portable:leaving"))
        is_listed = any(self.client.zcard(one) for one in lists)
        return self.is_expired and self.scheduler.store.ends_by_itself(self.record) and not is_listed

    def tombstone_problems(self) -> Iterator[str]:
        """The outcome can be read, the rest is gone, and nothing else is left."""
        limit, now = self.plan.spec.retention, self._status()
        expired = int(self.client.hget(self.record, "expired_at"))
        if limit is None or self.ended is None:
            yield f"the flow was removed, and it had not ended or has no retention: {now}"
            return
        if expired < in_ms(self.ended.finished_at) + milliseconds(limit):
            yield f"the flow was removed before its retention: at {expired}, {self.ended}"
        if _outcome(now) != _outcome(self.ended):
            yield f"the tombstone is {now}, the flow was {self.ended}"
        on = backend.backend_of(self.ref)
        for read in (on.nodes, on.results):
            with suppress(FlowExpired):
                yield f"of a removed flow can be read: {self.scheduler.run(read(self.ref))}"
        records = self.client.keys(f"{self.ref.home.flow(FLOW)}{{*}}")
        home = self.ref.home
        yield from self._left({*records, home.flow(FLOW), home.generations(FLOW), self.claim})

    def nothing_problems(self) -> Iterator[str]:
        """After the tombstone the id is free, and nothing is left."""
        self.is_gone = True
        try:
            yield f"the flow is still there: {self.scheduler.run(find_ref(PREFIX, FLOW))}"
        except FlowNotFound:
            yield from self._left(set())

    def _left(self, known: set[str]) -> Iterator[str]:
        of_jobs = (f":{FLOW}~", f":{FLOW}@", ":gmo:flow:", ":gmo:generations:", ":gmo:home:")
        ids = {key for key in self.client.keys("*") if any(part in key for part in of_jobs)}
        if left := {key for key in ids - known if self.client.ttl(key) == -1}:
            yield f"the flow was removed, and there is {sorted(left)}"
        for key in self.client.keys("*"):
            kind = self.client.type(key)
            members = self.client.zrange(key, 0, -1) if kind == "zset" else ()
            members = self.client.smembers(key) if kind == "set" else members
            if key.endswith("gmo:expiring") and self.record in known:
                continue
            of_flow = [one for one in members if re.search(rf"(^|[:\n]){FLOW}([~@{{]|$)", one)]
            if of_flow:
                yield f"the flow was removed, and {key} has {of_flow}"


def _outcome(status: FlowStatus) -> tuple[object, ...]:
    """What a tombstone keeps."""
    return (
        status.state, status.total, status.completed, status.failed, status.skipped, status.reason,
        status.finished_at, status.generation
    )  # fmt: skip
