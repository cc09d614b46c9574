"""One flow on two queues, driven in any order by workers that die, are slow, or come too late."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from glidemq_orchestrate import Dependency, FlowNode, FlowSpec, JobOptions, OnFailure, Rule
from glidemq_orchestrate._ops import attempt as attempt_ops
from glidemq_orchestrate._ops import flow as flow_ops
from glidemq_orchestrate._protocol import exchange as wire
from glidemq_orchestrate._protocol import glidemq, orchestrate
from glidemq_orchestrate._protocol.call import Call, ask, function
from glidemq_orchestrate.errors import LeaseLost
from glidemq_orchestrate.keys import GROUP, QueueKeys
from tests.rule_oracle import counts_as, verdicts

if TYPE_CHECKING:
    from glidemq_orchestrate.job import Attempt
    from tests.server.conftest import Hand

QUEUES = [QueueKeys("glide", name) for name in ("etl", "spark")]
LOCK_MS, MAX_LOST, FLOW = 1_000, 2, "f"
ENDED = ("completed", "failed", "skipped")
RULES = ["all_success"] * 12 + list(Rule)
EARLY = {"one_success", "one_failed", "one_done", "always"}
POLICIES = [None] * 6 + list(OnFailure)


@dataclass
class Delivery:
    """A stream entry in the hands of a worker that has not begun it."""

    queue: QueueKeys
    job_id: str
    entry_id: str


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
                draw(st.sampled_from(["etl", "spark"])),
                "work",
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


@dataclass
class World:
    """What the rules share."""

    hand: Hand
    client: Any
    clock: Clock = field(default_factory=Clock)
    deliveries: list[Delivery] = field(default_factory=list)
    held: list[Attempt] = field(default_factory=list)
    lost: list[Attempt] = field(default_factory=list)
    tokens: int = 0

    def call(self, call: Call[Any]) -> Any:
        return self.hand.run(ask(call))

    def deliver(self, queue: QueueKeys) -> bool:
        streams = self.client.xreadgroup(GROUP, "w", {queue.key("stream"): ">"}, count=1)
        for _, entries in streams or []:
            for entry_id, fields in entries:
                self.deliveries.append(Delivery(queue, fields["jobId"], entry_id))
        return bool(streams)

    def begin(self, delivery: Delivery) -> None:
        self.tokens += 1
        call = orchestrate.activate(
            delivery.queue, delivery.job_id, delivery.entry_id, f"t{self.tokens}", self.clock.now
        )
        answer = self.call(call)
        if not isinstance(answer, str):
            self.held.append(answer)

    def say(self, attempt: Attempt, call: Call[Any]) -> bool:
        """Hand something in; false when the attempt no longer counts."""
        try:
            self.call(call)
        except LeaseLost:
            return False
        return True

    def queue(self, attempt: Attempt) -> QueueKeys:
        return QueueKeys("glide", attempt.queue)

    def reclaim(self, queue: QueueKeys) -> None:
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
        self.hand.run(attempt_ops.open_queues(QUEUES))
        checked = spec.check()
        self.hand.run(flow_ops.submit("glide", checked, FLOW, "attach", self.world.clock))
        self.home = QueueKeys("glide", checked.home)
        self.completed: set[str] = set()
        self.is_steered = spec.fail_fast
        self.is_restarted = False

    @rule(queue=st.sampled_from(QUEUES))
    def a_worker_takes_an_entry(self, queue: QueueKeys) -> None:
        self.world.deliver(queue)

    @precondition(lambda self: self.world.deliveries)
    @rule(data=st.data(), twice=st.booleans())
    def a_worker_begins(self, data: st.DataObject, twice: bool) -> None:  # noqa: FBT001  a strategy
        delivery = data.draw(st.sampled_from(self.world.deliveries))
        if not twice:
            self.world.deliveries.remove(delivery)
        self.world.begin(delivery)

    @precondition(lambda self: self.world.deliveries)
    @rule(data=st.data())
    def a_worker_dies_with_an_entry(self, data: st.DataObject) -> None:
        self.world.deliveries.remove(data.draw(st.sampled_from(self.world.deliveries)))

    @precondition(lambda self: self.world.held)
    @rule(data=st.data())
    def a_worker_finishes(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(self.world.held))
        self.world.held.remove(attempt)
        queue = self.world.queue(attempt)
        if self.world.say(attempt, orchestrate.finish(attempt, queue, "1", self.world.clock.now)):
            assert attempt.job_id not in self.completed, "completed twice"
            self.completed.add(attempt.job_id)
        self.world.lost.append(attempt)

    @precondition(lambda self: self.world.held)
    @rule(data=st.data())
    def a_worker_finds_its_job_needless(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(self.world.held))
        self.world.held.remove(attempt)
        said = [wire.Outcome(attempt, wire.Kind.SKIP, "needless")]
        request = wire.Request(said, 0, "t")
        self.world.call(wire.finish_and_fetch(self.world.queue(attempt), "w", request, self.world.clock.now))
        self.world.lost.append(attempt)

    @precondition(lambda self: self.world.held)
    @rule(data=st.data(), pause=st.sampled_from([0, 30]))
    def a_worker_fails(self, data: st.DataObject, pause: int) -> None:
        attempt = data.draw(st.sampled_from(self.world.held))
        self.world.held.remove(attempt)
        self.world.say(
            attempt,
            orchestrate.fail(
                attempt,
                self.world.queue(attempt),
                "boom",
                max_attempts=attempt.options.attempts,
                backoff_ms=pause,
                now_ms=self.world.clock.now,
            ),
        )
        self.world.lost.append(attempt)

    @precondition(lambda self: self.world.held)
    @rule(data=st.data())
    def a_worker_gives_back(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(self.world.held))
        self.world.held.remove(attempt)
        self.world.say(
            attempt, orchestrate.give_back(attempt, self.world.queue(attempt), self.world.clock.now)
        )
        self.world.lost.append(attempt)

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
        self.world.held = [
            attempt
            for attempt in self.world.held
            if self.world.say(
                attempt, orchestrate.heartbeat(attempt, self.world.queue(attempt), self.world.clock.now)
            )
        ]

    @precondition(lambda self: self.world.lost)
    @rule(data=st.data(), how=st.sampled_from(["finish", "fail", "give back", "progress"]))
    def one_that_was_given_up_comes_back(self, data: st.DataObject, how: str) -> None:
        attempt = data.draw(st.sampled_from(self.world.lost))
        queue, now = self.world.queue(attempt), self.world.clock.now
        job = self.client.hgetall(queue.job(attempt.job_id))
        owns = job["state"] == "active" and job.get("gmo:token") == attempt.token
        if owns:  # it was only thought dead
            return
        calls: dict[str, Call[Any]] = {
            "finish": orchestrate.finish(attempt, queue, "2", now),
            "fail": orchestrate.fail(attempt, queue, "x", max_attempts=9, backoff_ms=0, now_ms=now),
            "give back": orchestrate.give_back(attempt, queue, now),
            "progress": orchestrate.progress(attempt, queue, "2", now),
        }
        assert not self.world.say(attempt, calls[how])
        assert self.client.hgetall(queue.job(attempt.job_id)) == job

    @rule(queue=st.sampled_from(QUEUES), late=st.booleans())
    def a_worker_looks_after_the_dead(self, queue: QueueKeys, late: bool) -> None:  # noqa: FBT001  a strategy
        self.world.clock.now += LOCK_MS if late else 1
        self.world.reclaim(queue)

    @rule(queue=st.sampled_from(QUEUES))
    def time_passes(self, queue: QueueKeys) -> None:
        self.world.clock.now += 50
        self.world.call(glidemq.promote(queue, self.world.clock.now))

    @rule()
    def somebody_cancels(self) -> None:
        self.is_steered = True
        self.world.call(orchestrate.cancel_flow(self.home, FLOW, "enough", self.world.clock.now))

    @rule()
    def somebody_restarts(self) -> None:
        self.is_steered = self.is_restarted = True
        self.world.call(orchestrate.restart_flow(self.home, FLOW, self.world.clock.now))

    @rule()
    def somebody_retries(self) -> None:
        self.is_steered = True
        self.world.call(orchestrate.retry_flow(self.home, FLOW, self.world.clock.now))

    @rule()
    def somebody_advances(self) -> None:
        self.world.call(orchestrate.advance_flow(self.home, FLOW, self.world.clock.now))

    def jobs(self) -> dict[str, dict[str, str]]:
        return {
            name: self.client.hgetall(QueueKeys("glide", node.queue).job(f"{FLOW}~{name}"))
            for name, node in self.spec.items()
        }

    @invariant()
    def the_record_tells_the_truth(self) -> None:
        if not hasattr(self, "world"):
            return
        key = self.home.flow(FLOW)
        trip = self.client.pipeline(transaction=False)
        trip.hgetall(key).smembers(f"{key}:open").smembers(f"{key}:failed")
        for name, node in self.spec.items():
            trip.hgetall(QueueKeys("glide", node.queue).job(f"{FLOW}~{name}"))
        record, still_open, failed, *found = trip.execute()
        jobs = dict(zip(self.spec, found, strict=True))
        states = {name: "skipped" if "gmo:skipped" in job else job["state"] for name, job in jobs.items()}
        refs = {name: f"glide:{{{node.queue}}}:{FLOW}~{name}" for name, node in self.spec.items()}
        assert still_open == {refs[n] for n, s in states.items() if s not in ENDED}
        again = {n for n, job in jobs.items() if job.get("gmo:skipped", "").startswith("upstream")}
        to_run_again = {refs[n] for n, s in states.items() if s == "failed" or n in again}
        # A restart that was cut off by a cancel is for the next retry to go on with.
        assert failed >= to_run_again if self.is_restarted else failed == to_run_again
        for count in ENDED:
            assert int(record.get(count, 0)) == list(states.values()).count(count), (count, record, states)
        if not self.is_steered:
            self.every_rule_is_obeyed(states, jobs)
        completed = {f"{FLOW}~{name}" for name, state in states.items() if state == "completed"}
        assert completed <= self.completed
        if self.is_restarted:
            self.completed = completed
        assert completed == self.completed
        is_over = record["state"] in ("completed", "failed", "cancelled")
        begins_again = "retry" in record or "restart" in record
        assert is_over == all(state in ENDED for state in states.values()) or (begins_again and not is_over)
        failures = {name for name, state in states.items() if state == "failed"}
        forgiven = {name for name in failures if self.spec[name].on_failure == "ignore"}
        assert int(record.get("ignored", 0)) == len(forgiven)
        if record["state"] == "completed":
            assert failures == forgiven
        if record["state"] == "failed":
            assert failures > forgiven

    def every_rule_is_obeyed(self, states: dict[str, str], jobs: dict[str, dict[str, str]]) -> None:
        """Whether a node runs, fails or is skipped is as its rule says."""
        for name, node in self.spec.items():
            ends = [
                counts_as(states[str(one)], one.on_failure or self.spec[str(one)].on_failure)
                for one in node.after
                if isinstance(one, Dependency) and states[str(one)] in ENDED
            ]
            reason = jobs[name].get("gmo:skipped") or jobs[name].get("failedReason", "")
            if not node.after:
                seen = "run"
            elif states[name] == "waiting-children":
                continue
            else:
                seen = states[name] if reason.startswith("upstream") else "run"
            if len(ends) == len(node.after) and ends:
                assert seen in verdicts(node.rule, ends), (name, node.rule, ends, states)
            elif seen == "run" and node.after:
                assert node.rule in EARLY, (name, node.rule, ends, states)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        world.deliveries.clear()
        world.held.clear()  # every worker dies; a new one does all there is to do
        for _ in range(60):
            world.clock.now += 2 * LOCK_MS
            world.call(orchestrate.advance_flow(self.home, FLOW, world.clock.now))
            for queue in QUEUES:
                world.call(glidemq.promote(queue, world.clock.now))
                world.reclaim(queue)
                while world.deliver(queue):
                    pass
            for delivery in world.deliveries:
                world.begin(delivery)
            world.deliveries.clear()
            for attempt in world.held:
                if world.say(
                    attempt, orchestrate.finish(attempt, world.queue(attempt), "1", world.clock.now)
                ):
                    self.completed.add(attempt.job_id)
            world.held.clear()
            if not any(self.client.xlen(queue.key("stream")) for queue in QUEUES) and self.is_over():
                break
        assert self.is_over(), (self.client.hgetall(self.home.flow(FLOW)), self.jobs())
        assert [self.client.xlen(queue.key("stream")) for queue in QUEUES] == [0, 0]
        assert self.client.smembers(self.home.key("gmo:todo")) == set()
        self.the_record_tells_the_truth()

    def is_over(self) -> bool:
        return self.client.hget(self.home.flow(FLOW), "state") in ("completed", "failed", "cancelled")


def test_a_flow_survives_any_order_of_events(hand: Hand, redis_client: Any) -> None:
    machine = type("Machine", (AnyOrder,), {"hand": hand, "client": redis_client})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=300,
            phases=[Phase.generate],
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
