"""One queue, one worker and a clock that only the test moves."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowNode, FlowSpec, JobOptions
from glidemq_orchestrate.attempts import exchange, workers
from glidemq_orchestrate.attempts.exchange import Answer, Kind, Outcome
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.staged import submit as staged_submit
from glidemq_orchestrate.flows.staged.submit import stage_flow
from glidemq_orchestrate.flows.submission import submit_flow
from glidemq_orchestrate.wire.call import Call, ask, function
from glidemq_orchestrate.wire.keys import GROUP, QueueKeys
from glidemq_orchestrate.wire.lifetimes import life_of
from tests.server.life_cycle import hold_to_life_cycle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from glidemq_orchestrate.jobs.attempt import Attempt
from tests.server.conftest import Dump, Hand

QUEUE = r"glide:\{(etl|spark)\}:"
DOCUMENTED = [
    r"glide:gmo:home:\{f\}",
    QUEUE + r"(id|stream|scheduled|events|completed|failed|suspended|metrics:(completed|failed))",
    QUEUE + r"(ordering|ratelimited|dedup|gmo:(dedup|ordering))",
    QUEUE + r"(job|deps|parents|log|gmo:notified|gmo:messages):[\w~-]+",
    QUEUE + r"job:[\w~-]+:sub:\w+",
    QUEUE + r"gmo:flow:f(:(nodes|order|open|ready|roots|failed|blocked|notifying|growing))?",
    QUEUE + r"gmo:flows(:state:\w+|:label:\w+=\w+)?",
    QUEUE
    + r"gmo:(staging|expiring|growing|todo|list-held|supervised|letters|due|workers|large-events|portable)",
    QUEUE + r"gmo:(leaving|kept:(completed|failed):\d+)",
    QUEUE + r"gmo:published",
    QUEUE + r"gmo:grow:[\w~-]+(:held|:edges|:meta)?",
    r"glide:gmo:homes",
    QUEUE + r"(meta|rate|lifo|priority|list-active|group:\w+|w:(gmo-worker|node)-[\w-]+)",
    QUEUE + r"(groupq:k|gmo:priorities)",
]


class Bench:
    """Calls with the time written on them, and what the server keeps of it."""

    def __init__(self, hand: Hand, client: Any, dump: Dump, *, is_held: bool = True) -> None:
        self.hand, self.client, self.dump = hand, client, dump
        self.now = 1_000_000
        self.tokens = 0
        self.lost: list[Any] = []
        self.silent: list[Any] = []
        self.etl, self.spark = QueueKeys("glide", "etl"), QueueKeys("glide", "spark")
        hand.run(workers.open_queues([self.etl, self.spark]))
        if is_held:
            hold_to_life_cycle(hand, client)

    def now_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> int:
        return self.now_ms()

    def call(self, call: Call[Any]) -> Any:
        return self.hand.run(ask(call))

    def raw(self, name: str, keys: list[str], *args: Any) -> Any:
        return self.call(function(name, keys, args, lambda reply: reply))

    def refused(self, call: Call[Any]) -> str:
        """The code of the refusal; the database is as before."""
        before = self.dump()
        answer = self.hand.answer(call)
        assert isinstance(answer, GlideMQError), answer
        assert self.dump() == before
        return str(answer.code)

    def unchanged(self, call: Call[Any]) -> Any:
        """The reply of a call that changes nothing."""
        before = self.dump()
        answer = self.call(call)
        assert self.dump() == before
        return answer

    def submit(self, *nodes: FlowNode) -> None:
        self.hand.run(submit_flow("glide", check_flow(FlowSpec("n", nodes)), "f", "attach", self))

    def stage(self, *nodes: FlowNode) -> Any:
        checked = check_flow(FlowSpec("n", nodes))
        pieces = [piece for node in checked.nodes for piece in staged_submit.pieces(node)]
        return next(stage_flow(QueueKeys("glide", checked.home), "f", checked, [pieces], self.now))

    def digest(self, *nodes: FlowNode) -> str:
        return check_flow(FlowSpec("n", nodes)).digest

    def take(self, consumer: str = "node") -> str:
        """A Node worker reads the next entry and does nothing with it yet; returns the entry's id."""
        ((_, ((entry_id, _fields),)),) = self.client.xreadgroup(
            GROUP, consumer, {self.etl.key("stream"): ">"}, 1
        )
        return str(entry_id)

    def exchange(
        self,
        *outcomes: Outcome,
        wanted: int = 0,
        queue: QueueKeys | None = None,
        again: bool = False,
        sizes: str = "",
    ) -> Answer:
        """Hand in outcomes and begin jobs; the attempts of each exchange have a token of their own."""
        self.tokens += not again
        request = exchange.Request(outcomes, wanted, f"w/t{self.tokens}", again, sizes=sizes)
        answer: Answer = self.call(exchange.finish_and_fetch(queue or self.etl, "w", request, self.now))
        return answer

    def begin(self, queue: QueueKeys | None = None) -> Attempt:
        (attempt,) = self.exchange(wanted=1, queue=queue).fetched
        if attempt.is_ahead:  # as a worker does
            assert self.exchange(Outcome(attempt, Kind.BEGUN), queue=queue).verdicts == ["ok"]
        return attempt

    def hand_in(self, outcome: Outcome) -> tuple[str, list[str]]:
        """The verdict about an outcome, and the flows that need advancing."""
        answer = self.exchange(outcome, queue=QueueKeys("glide", outcome.attempt.queue))
        (verdict,) = answer.verdicts
        return verdict, answer.flows

    def finish(self, attempt: Attempt, result: str = "1") -> list[str]:
        """Hand in a result, which must be taken; returns the flows that need advancing."""
        verdict, flows = self.hand_in(Outcome(attempt, Kind.DONE, result))
        assert verdict == "ok"
        return flows

    def fail(self, attempt: Attempt, attempts: int = 1, backoff_ms: int = 0) -> tuple[str, list[str]]:
        return self.hand_in(Outcome(attempt, Kind.FAIL, "boom", "", attempts, backoff_ms))

    def stale(self, *outcomes: Outcome) -> bool:
        """Whether every one of them is refused as stale; the database is as before."""
        before = self.dump()
        verdicts = self.exchange(*outcomes).verdicts
        assert self.dump() == before
        return len(verdicts) == len(outcomes) and all(verdict.startswith("stale ") for verdict in verdicts)

    def heartbeat(self, attempt: Attempt, later_ms: int = 0) -> int:
        """1 kept, 0 asked to stop, -1 not the attempt's any more."""
        (kept,) = self.call(exchange.heartbeats(self.etl, [attempt], self.now + later_ms))
        return int(kept)

    def reclaim(
        self,
        lock_ms: int = 1000,
        max_stalled: int = 3,
        consumer: str = "other",
        *,
        is_watched: bool = True,
        silent_ms: int = 0,
    ) -> Any:
        """The flows that need advancing; ``self.lost`` and ``self.silent``: a row for each such worker.

        ``is_watched``: somebody has asked all the time.
        """
        if is_watched:
            self.client.hdel("glide:{etl}:gmo:supervised", "looked", "spared")
        rules = 0, lock_ms, max_stalled, silent_ms
        flows, self.lost, self.silent = self.raw(
            "gmo_reclaim", [self.etl.key("stream")], self.now, GROUP, consumer, *rules
        )
        return flows

    def job(self, job_id: str, queue: str = "etl") -> dict[str, str]:
        return dict(self.client.hgetall(f"glide:{{{queue}}}:job:{job_id}"))

    def record(self) -> dict[str, str]:
        return dict(self.client.hgetall("glide:{etl}:gmo:flow:f"))

    def events(self, queue: str = "etl") -> list[tuple[str, str]]:
        found = self.client.xrange(f"glide:{{{queue}}}:events")
        return [(fields["event"], fields["jobId"] or fields.get("flowId", "")) for _, fields in found]

    def pending(self) -> int:
        return int(self.client.xpending("glide:{etl}:stream", GROUP)["pending"])


def a_node(name: str, *after: str, queue: str = "etl", **options: Any) -> FlowNode:
    return FlowNode(
        name, queue=queue, job="work", data={"n": name}, after=after, options=JobOptions(**options)
    )


@pytest.fixture
def bench(hand: Hand, redis_client: Any, dump: Dump) -> Iterator[Bench]:
    made = Bench(hand, redis_client, dump)
    yield made
    alike = {re.sub(r"\d+", "0", key): key for key in redis_client.keys("*")}  # one of a thousand is enough
    strange = [key for key in alike.values() if life_of(key) is None]
    assert strange == [], "keys outside the table of lifetimes"


@pytest.fixture
def node() -> Any:
    return a_node
