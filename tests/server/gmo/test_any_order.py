"""One flow on two queues, driven in any order by workers that die, are slow, or come too late."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from glidemq_orchestrate import Dependency, FlowNode, FlowSpec, JobOptions, Rule
from glidemq_orchestrate.attempts import exchange, workers
from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.errors import LeaseLost
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.dependencies import OnFailure
from glidemq_orchestrate.flows.staged.changes import cancel_flow
from glidemq_orchestrate.flows.staged.submit import advance_flow, retry_flow
from glidemq_orchestrate.flows.submission import submit_flow
from glidemq_orchestrate.jobs import attempt as attempt_calls
from glidemq_orchestrate.wire.call import Call, ask, function
from glidemq_orchestrate.wire.keys import GROUP, QueueKeys
from tests.profile import IS_LONG
from tests.rule_oracle import decisions, may_begin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from glidemq_orchestrate.jobs.attempt import Attempt
    from tests.server.conftest import Hand

QUEUES = [QueueKeys("glide", name) for name in ("etl", "spark")]
LOCK_MS, MAX_LOST, FLOW = 1_000, 2, "f"
ENDED = ("completed", "failed", "skipped")
OVER = ("completed", "failed", "cancelled")
RULES = ["all_success"] * 12 + list(Rule)
POLICIES = [None] * 6 + list(OnFailure)


@st.composite
def flows(draw: st.DrawFn) -> FlowSpec:
    """A small DAG: every node may wait for any earlier one."""
    nodes: list[FlowNode] = []
    for number in range(draw(st.integers(1, 7))):
        earlier = [node.name for node in nodes]
        names = draw(st.lists(st.sampled_from(earlier), unique=True, max_size=3)) if earlier else []
        after = [Dependency(name, draw(st.sampled_from(POLICIES))) for name in names]
        options = JobOptions(
            attempts=draw(st.integers(1, 2)),
            delay=timedelta(milliseconds=draw(st.sampled_from([0, 0, 0, 50]))),
        )
        nodes.append(
            FlowNode(
                f"n{number}",
                queue=draw(st.sampled_from(["etl", "spark"])),
                job="work",
                after=after,
                options=options,
                rule=draw(st.sampled_from(RULES)),
                on_failure=draw(st.sampled_from(POLICIES)) or "fail",
            )
        )
    return FlowSpec("any", nodes, fail_fast=draw(st.sampled_from([False, False, False, True])))


@dataclass
class Clock:
    """The present, moved by the rules."""

    now: int = 1_000_000

    def now_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> int:
        return self.now_ms()


@dataclass
class World:
    """What the rules share."""

    hand: Hand
    client: Any
    clock: Clock = field(default_factory=Clock)
    held: list[Attempt] = field(default_factory=list)
    lost: list[Attempt] = field(default_factory=list)
    tokens: int = 0

    def call(self, call: Call[Any]) -> Any:
        return self.hand.run(ask(call))

    def exchange(
        self, queue: QueueKeys, outcomes: Sequence[Outcome] = (), wanted: int = 0, *, again: bool = False
    ) -> list[str]:
        """Hand in outcomes, begin jobs, and answer the verdicts."""
        self.tokens += not again
        request = exchange.Request(outcomes, wanted, f"t{self.tokens}", again)
        answer = self.call(exchange.finish_and_fetch(queue, "w", request, self.clock.now))
        assert answer.troubles == []
        self.held += answer.fetched
        return list(answer.verdicts)

    def read(self, queue: QueueKeys) -> None:
        """A Node worker reads an entry, and dies."""
        self.client.xreadgroup(GROUP, "node", {queue.key("stream"): ">"}, count=1)

    def owns(self, attempt: Attempt) -> bool:
        """Whether the attempt may still hand something in."""
        job = self.client.hgetall(self.queue(attempt).job(attempt.job_id))
        wanted = ("active", attempt.token, attempt.processed_on)
        return (job.get("state"), job.get("gmo:token"), job.get("processedOn")) == wanted

    def queue(self, attempt: Attempt) -> QueueKeys:
        return QueueKeys("glide", attempt.queue)

    def reclaim(self, queue: QueueKeys) -> None:
        self.client.hdel(f"{queue.base}:gmo:supervised", "looked", "spared")  # somebody asks all the time
        args = (self.clock.now, GROUP, "w", 0, LOCK_MS, MAX_LOST)
        self.call(function("gmo_reclaim", [queue.key("stream")], args, list))


class AnyOrder(RuleBasedStateMachine):
    """Rules are what workers, users and the clock do; the invariant must hold between any two of them."""

    hand: Hand
    client: Any

    @initialize(spec=flows())
    def start(self, spec: FlowSpec) -> None:
        self.client.flushall()
        self.world = World(self.hand, self.client)
        self.spec = {node.name: node for node in spec.nodes}
        self.hand.run(workers.open_queues(QUEUES))
        checked = check_flow(spec)
        self.ref = self.hand.run(submit_flow("glide", checked, FLOW, "attach", self.world.clock))
        self.home = self.ref.home
        self.ids = {name: f"{FLOW}~{name}" for name in self.spec}
        self.completed: set[str] = set()
        self.is_steered = self.fails_fast = spec.fail_fast

    @rule(queue=st.sampled_from(QUEUES), wanted=st.integers(1, 3))
    def a_worker_begins(self, queue: QueueKeys, wanted: int) -> None:
        self.world.exchange(queue, wanted=wanted)

    @rule(queue=st.sampled_from(QUEUES), wanted=st.integers(1, 3))
    def a_worker_begins_and_the_reply_is_lost(self, queue: QueueKeys, wanted: int) -> None:
        before = len(self.world.held)
        self.world.exchange(queue, wanted=wanted)
        begun = self.world.held[before:]
        del self.world.held[before:]
        self.world.exchange(queue, again=True)
        assert self.world.held[before:] == begun

    @rule(queue=st.sampled_from(QUEUES))
    def a_node_worker_dies_with_an_entry(self, queue: QueueKeys) -> None:
        self.world.read(queue)

    @precondition(lambda self: self.world.held)
    @rule(data=st.data(), wanted=st.integers(0, 2))
    def a_worker_hands_in(self, data: st.DataObject, wanted: int) -> None:
        """Several outcomes, some too late or said twice, travel in one call with a wish for more jobs."""
        queue = self.world.queue(data.draw(st.sampled_from(self.world.held)))
        ours = [a for a in (*self.world.held, *self.world.lost) if a.queue == queue.queue]
        some = data.draw(st.lists(st.sampled_from(ours), min_size=1, max_size=6))
        said = [self.an_outcome(data, attempt) for attempt in some]
        owned = [a for a in ours if self.world.owns(a)]
        for outcome, verdict in zip(said, self.world.exchange(queue, said, wanted), strict=True):
            self.it_was_heard(outcome, verdict, owned)

    def an_outcome(self, data: st.DataObject, attempt: Attempt) -> Outcome:
        kind = data.draw(st.sampled_from([Kind.DONE, Kind.DONE, Kind.SKIP, Kind.FAIL, Kind.BACK]))
        pause = data.draw(st.sampled_from([0, 30]))
        return Outcome(attempt, kind, "1", "", attempt.options.attempts, pause)

    def it_was_heard(self, outcome: Outcome, verdict: str, owned: list[Attempt]) -> None:
        """The first outcome of whoever owns the job is taken, unless it is to be sent again."""
        attempt = outcome.attempt
        if verdict == "again":
            return
        if attempt in self.world.held:
            self.world.held.remove(attempt)
            self.world.lost.append(attempt)
        if verdict.startswith("stale "):
            # Where a failure cancels the rest, one of the same call may have taken the job away.
            assert attempt not in owned or self.fails_fast, (outcome, verdict)
            return
        assert attempt in owned, (outcome, verdict)
        owned.remove(attempt)
        assert verdict in (["retrying", "failed"] if outcome.kind is Kind.FAIL else ["ok"])
        if outcome.kind is Kind.DONE:
            assert attempt.job_id not in self.completed, "completed twice"
            self.completed.add(attempt.job_id)

    @precondition(lambda self: self.world.held)
    @rule(data=st.data())
    def a_worker_dies_at_work(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(self.world.held))
        self.world.held.remove(attempt)
        self.world.lost.append(attempt)

    @precondition(lambda self: self.world.held)
    @rule()
    def all_workers_give_a_sign_of_life(self) -> None:
        self.world.clock.now += LOCK_MS // 3
        for queue in QUEUES:
            held = [attempt for attempt in self.world.held if attempt.queue == queue.queue]
            answers = self.world.call(exchange.heartbeats(queue, held, self.world.clock.now))
            for attempt, answer in zip(held, answers, strict=True):
                if answer == -1:
                    self.world.held.remove(attempt)
                    self.world.lost.append(attempt)

    @precondition(lambda self: self.world.lost)
    @rule(data=st.data(), how=st.sampled_from([*Kind, "progress", "heartbeat"]))
    def one_that_was_given_up_comes_back(self, data: st.DataObject, how: str) -> None:
        attempt = data.draw(st.sampled_from(self.world.lost))
        if self.world.owns(attempt):  # it was only thought dead
            return
        queue, now = self.world.queue(attempt), self.world.clock.now
        job = self.client.hgetall(queue.job(attempt.job_id))
        if how == "progress":
            with pytest.raises(LeaseLost):
                self.world.call(attempt_calls.progress(attempt, queue, "2", now))
        elif how == "heartbeat":
            assert self.world.call(exchange.heartbeats(queue, [attempt], now)) == [-1]
        else:
            (verdict,) = self.world.exchange(queue, [Outcome(attempt, Kind(how), "2", "", 9)])
            assert verdict.startswith("stale ")
        assert self.client.hgetall(queue.job(attempt.job_id)) == job

    @rule(queue=st.sampled_from(QUEUES), late=st.booleans())
    def a_worker_looks_after_the_dead(self, queue: QueueKeys, late: bool) -> None:  # noqa: FBT001  a strategy
        self.world.clock.now += LOCK_MS if late else 1
        self.world.reclaim(queue)

    @rule(queue=st.sampled_from(QUEUES))
    def time_passes(self, queue: QueueKeys) -> None:
        self.world.clock.now += 50
        keys = queue.keys("scheduled", "stream", "events")
        self.world.call(function("glidemq_promote", keys, (self.world.clock.now,), int))

    @rule()
    def somebody_cancels(self) -> None:
        self.is_steered = True
        self.world.call(cancel_flow(self.home, self.ref.flow_id, "enough", self.world.clock.now))

    @rule()
    def somebody_retries(self) -> None:
        self.is_steered = True
        self.world.call(retry_flow(self.home, self.ref.flow_id, self.world.clock.now))

    @rule()
    def somebody_advances(self) -> None:
        self.world.call(advance_flow(self.home, self.ref.flow_id, self.world.clock.now))

    def jobs(self) -> dict[str, dict[str, str]]:
        return {
            name: self.client.hgetall(QueueKeys("glide", node.queue).job(self.ids[name]))
            for name, node in self.spec.items()
        }

    @invariant()
    def the_record_tells_the_truth(self) -> None:
        if not hasattr(self, "world"):
            return
        key = self.home.flow(self.ref.flow_id)
        trip = self.client.pipeline(transaction=False)
        trip.hgetall(key).smembers(f"{key}:open").smembers(f"{key}:failed")
        for name, node in self.spec.items():
            trip.hgetall(QueueKeys("glide", node.queue).job(self.ids[name]))
        record, still_open, failed, *found = trip.execute()
        jobs = dict(zip(self.spec, found, strict=True))
        states = {name: "skipped" if "gmo:skipped" in job else job["state"] for name, job in jobs.items()}
        refs = {name: f"glide:{{{node.queue}}}:{self.ids[name]}" for name, node in self.spec.items()}
        assert still_open == {refs[n] for n, s in states.items() if s not in ENDED}
        again = {n for n, job in jobs.items() if job.get("gmo:skipped", "").startswith("upstream")}
        to_run_again = {refs[n] for n, s in states.items() if s == "failed" or n in again}
        assert failed == to_run_again
        for count in ENDED:
            assert int(record.get(count, 0)) == list(states.values()).count(count), (count, record, states)
        if not self.is_steered:
            self.every_rule_is_obeyed(states, jobs)
        self.it_completes_by_what_was_accepted({self.ids[n] for n, s in states.items() if s == "completed"})
        is_over = record["state"] in OVER
        begins_again = "retry" in record or "after" in record
        assert is_over == all(state in ENDED for state in states.values()) or (begins_again and not is_over)
        failures = {name for name, state in states.items() if state == "failed"}
        forgiven = {name for name in failures if self.spec[name].on_failure == "ignore"}
        assert int(record.get("ignored", 0)) == len(forgiven)
        if record["state"] == "completed":
            assert failures == forgiven
        if record["state"] == "failed":
            assert failures > forgiven

    def it_completes_by_what_was_accepted(self, completed: set[str]) -> None:
        assert completed == self.completed

    def every_rule_is_obeyed(self, states: dict[str, str], jobs: dict[str, dict[str, str]]) -> None:
        """Whether a node runs, fails or is skipped is as its rule says."""
        for name, node in self.spec.items():
            ends = {str(one): states[one] for one in node.after if states[one] in ENDED}
            reason = jobs[name].get("gmo:skipped") or jobs[name].get("failedReason", "")
            if node.after and states[name] == "waiting-children":
                continue
            seen = states[name] if reason.startswith("upstream") else "run"
            if seen == "run":
                assert may_begin(node, ends, self.spec), (name, node.rule, ends, states)
            elif len(ends) == len(node.after):
                allowed = decisions(node, {one: {end} for one, end in ends.items()}, self.spec)
                assert seen in allowed, (name, node.rule, ends, states)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        world.held.clear()  # every worker dies; a new one does all there is to do
        for _ in range(60):
            world.clock.now += 2 * LOCK_MS
            world.call(advance_flow(self.home, self.ref.flow_id, world.clock.now))
            for queue in QUEUES:
                world.reclaim(queue)
                world.exchange(queue, wanted=100)
            for queue in QUEUES:
                said = [Outcome(a, Kind.DONE, "1") for a in world.held if a.queue == queue.queue]
                for outcome, verdict in zip(said, world.exchange(queue, said), strict=True):
                    if verdict == "ok":
                        self.completed.add(outcome.attempt.job_id)
            world.held.clear()
            if not any(self.client.xlen(queue.key("stream")) for queue in QUEUES) and self.is_over():
                break
        assert self.is_over(), self.stuck()
        assert [self.client.xlen(queue.key("stream")) for queue in QUEUES] == [0, 0]
        assert self.client.smembers(self.home.key("gmo:todo")) == set()
        self.the_record_tells_the_truth()

    def stuck(self) -> str:
        """What the flow and its jobs look like, for a failure of this test."""
        record = self.client.hgetall(self.home.flow(self.ref.flow_id))
        fields = ("state", "gmo:skipped", "processedOn", "delay")
        jobs = {name: {f: job[f] for f in fields if f in job} for name, job in self.jobs().items()}
        return f"{record} {jobs}"

    def is_over(self) -> bool:
        return self.client.hget(self.home.flow(self.ref.flow_id), "state") in OVER


def run_machine(machine: type[AnyOrder], hand: Hand, client: Any, examples: int) -> None:
    run_state_machine_as_test(
        type("Machine", (machine,), {"hand": hand, "client": client}),
        settings=settings(
            max_examples=examples,
            phases=[Phase.generate],
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.long
def test_a_flow_survives_any_order_of_events(hand: Hand, redis_client: Any) -> None:
    run_machine(AnyOrder, hand, redis_client, 400 if IS_LONG else 25)
