"""Owners: a flow is wanted while one of those for whom it runs lives; both paths."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowProducer, FlowSpec, Owner
from glidemq_orchestrate.attempts import upkeep
from glidemq_orchestrate.errors import ConfigurationError, FlowNotFound, Superseded, WaitTimeout
from glidemq_orchestrate.flows import ownership
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.ownership import Ownership, Renewals
from glidemq_orchestrate.flows.portable.upkeep import sweep
from glidemq_orchestrate.flows.submission import submit_flow
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.builders import NEAR, node
from tests.profile import sampled
from tests.server.conftest import REACHES
from tests.server.policy_work import LONG, Work

if TYPE_CHECKING:
    from tests.server.conftest import Hand

pytestmark = pytest.mark.usefixtures("path")

ETL = QueueKeys("glide", "etl")
FLOW = FlowSpec("n", [node("a"), node("b", "a")])
MINUTE = Owner("ada", timedelta(minutes=1))


class Ahead(SystemClock):
    """A clock that is some seconds ahead."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now_ms(self) -> int:
        return super().now_ms() + int(self.seconds * 1000)

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + int(self.seconds * 1000)


class Supervisor:
    """Looks after the flows when it is told to."""

    def __init__(self, hand: Hand) -> None:
        self.hand, self.clock = hand, Ahead()

    def look(self, *at: float) -> None:
        """At these seconds after now."""
        for self.clock.seconds in at:
            self.hand.run(upkeep.upkeep([ETL], self.clock))
            self.hand.run(sweep(ETL, self.clock))


@pytest.fixture
def supervisor(hand: Hand) -> Supervisor:
    return Supervisor(hand)


def keys_of_owners(redis_client: Any) -> list[str]:
    return [*redis_client.keys("*gmo:owned:*"), *redis_client.keys("*:owners")]


class TestVanishing:
    def test_a_flow_whose_owner_has_vanished_is_cancelled_and_says_why(
        self, flows: FlowProducer, supervisor: Supervisor, redis_client: Any, path: str
    ) -> None:
        flow = flows.submit(FLOW, owner=MINUTE)
        supervisor.look(1, 29, 31, 58)
        assert flow.status().state == "running"
        supervisor.look(62)
        status = flow.wait(timeout=LONG).status
        assert status.state == "cancelled"
        pattern = r"its owner ada is gone: its last renewal was at (\S+ \S+) UTC, its lease lasts 60 s"
        found = re.fullmatch(pattern, status.reason)
        assert found is not None, status.reason
        heard = datetime.fromisoformat(f"{found[1]}+00:00")
        assert status.created_at is not None
        assert abs(heard - status.created_at) < timedelta(seconds=5)
        if path == "staged":
            assert keys_of_owners(redis_client) == []

    def test_the_time_is_that_of_the_calendar(
        self, flows: FlowProducer, supervisor: Supervisor, redis_client: Any
    ) -> None:
        for at in [0, 86_399, 951_782_400, 951_868_799, 1_709_164_800, 4_107_542_399]:
            redis_client.flushdb()
            supervisor.clock.seconds = 0
            flow = flows.submit(FLOW, owner=MINUTE)
            redis_client.zadd("glide:{etl}:gmo:owners", {"60000:ada": at * 1000})
            ahead = max(at - supervisor.clock.now_ms() / 1000, 0)
            supervisor.look(ahead + 31, ahead + 62)
            then = f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"
            assert then in flow.status().reason

    def test_a_flow_may_be_kept(self, flows: FlowProducer, supervisor: Supervisor) -> None:
        flow = flows.submit(FLOW, owner=Owner("ada", on_expiry="keep"))
        supervisor.look(151, 302, 453, 1000, 2000)
        assert flow.status().state == "running"

    def test_time_in_which_the_server_was_away_ends_no_lease(
        self, flows: FlowProducer, supervisor: Supervisor
    ) -> None:
        """Nobody could renew, and whoever comes back first looks at once."""
        flow = flows.submit(FLOW, owner=MINUTE)
        supervisor.look(3600, 3601, 3625)
        assert flow.status().state == "running"
        supervisor.look(3631)
        assert flow.status().state == "cancelled"

    def test_one_that_comes_back_between_the_looks_keeps_its_flow(
        self, flows: FlowProducer, supervisor: Supervisor, hand: Hand, path: Any
    ) -> None:
        flow = flows.submit(FLOW, owner=MINUTE)
        supervisor.look(3600)
        supervisor.clock.seconds = 3610
        again = Ownership(MINUTE, Renewals(), flow.id)
        hand.run(again.renew_if_due(FlowRef(ETL, flow.id, path), supervisor.clock))
        supervisor.look(3631, 3641, 3665)
        assert flow.status().state == "running"
        supervisor.look(3675)
        assert flow.status().state == "cancelled"

    @pytest.mark.long
    def test_many_flows_of_one_owner(self, flows: FlowProducer, supervisor: Supervisor) -> None:
        mine = [flows.submit(FLOW, owner=MINUTE) for _ in range(50)]
        other = flows.submit(FLOW, owner=Owner("bob"))
        supervisor.look(31, *(62 + n for n in range(5)))
        assert {flow.status().state.value for flow in mine} == {"cancelled"}
        assert other.status().state == "running"


class TestSeveral:
    def test_a_flow_is_wanted_while_one_owner_lives(
        self, flows: FlowProducer, supervisor: Supervisor, hand: Hand, path: Any
    ) -> None:
        flow = flows.submit(FLOW, flow_id="f", owner=MINUTE)
        bob = Owner("bob", timedelta(minutes=2))
        flows.submit(FLOW, flow_id="f", owner=bob)
        supervisor.look(31, 62, 70)
        assert flow.status().state == "running"
        supervisor.look(122)
        status = flow.status()
        assert (status.state, status.reason[:21]) == ("cancelled", "its owner bob is gone")

    @pytest.mark.parametrize(
        ("first", "last", "state"), [("keep", "cancel", "cancelled"), ("cancel", "keep", "running")]
    )
    def test_the_last_one_decides(
        self, flows: FlowProducer, supervisor: Supervisor, first: Any, last: Any, state: str
    ) -> None:
        flow = flows.submit(FLOW, flow_id="f", owner=Owner("ada", timedelta(minutes=1), first))
        flows.get("f", owner=Owner("bob", timedelta(minutes=2), last)).renew()
        supervisor.look(31, 62, 122, 180, 240)
        assert flow.status().state == state

    @pytest.mark.parametrize(
        ("first", "last", "state"), [("keep", "cancel", "cancelled"), ("cancel", "keep", "running")]
    )
    def test_the_last_one_decides_also_when_both_are_found_at_once(
        self, flows: FlowProducer, supervisor: Supervisor, first: Any, last: Any, state: str
    ) -> None:
        flow = flows.submit(FLOW, flow_id="f", owner=Owner("zoe", timedelta(minutes=1), first))
        time.sleep(0.01)
        flows.get("f", owner=Owner("ada", timedelta(minutes=1), last)).renew()
        supervisor.look(100, 200)
        status = flow.status()
        assert (status.state, "owner ada" in status.reason) == (state, state == "cancelled")

    def test_one_name_with_two_lapses_has_two_leases(
        self, flows: FlowProducer, supervisor: Supervisor
    ) -> None:
        short = flows.submit(FLOW, owner=MINUTE)
        long = flows.submit(FLOW, owner=Owner("ada", timedelta(hours=1)))
        supervisor.look(31, 62)
        assert (short.status().state, long.status().state) == ("cancelled", "running")

    def test_another_lapse_takes_the_place_of_the_first(
        self, flows: FlowProducer, supervisor: Supervisor
    ) -> None:
        flow = flows.submit(FLOW, flow_id="f", owner=MINUTE)
        flows.get("f", owner=Owner("ada", timedelta(hours=1))).renew()
        supervisor.look(31, 62, 1000)
        assert flow.status().state == "running"
        supervisor.look(1801, 3602)
        assert flow.status().state == "cancelled"


class TestAgain:
    def test_an_ended_flow_has_no_owner_when_somebody_else_runs_it_again(
        self, flows: FlowProducer, work: Work, supervisor: Supervisor, redis_client: Any, path: str
    ) -> None:
        work.ends["a"] = "failed"
        flow = flows.submit(FLOW, flow_id="f", owner=MINUTE)
        flow.wait(timeout=LONG)
        if path == "staged":
            assert keys_of_owners(redis_client) == []
        work.ends.clear()
        work.held["a"] = threading.Event()
        flows.get("f").retry_failed()
        supervisor.look(31, 62, 100)
        assert flow.status().state == "running"
        work.held["a"].set()

    @pytest.mark.parametrize("how", ["retry_failed", "submit", "restart", "rerun"])
    def test_one_that_an_owner_runs_again_is_owned(
        self,
        *,
        flows: FlowProducer,
        work: Work,
        supervisor: Supervisor,
        how: str,
        path: str,
    ) -> None:
        work.ends["a"] = "failed"
        flow = flows.submit(FLOW, flow_id="f", owner=MINUTE)
        flow.wait(timeout=LONG)
        work.worker.stop()  # its last step in the first run may unlist the flow for a moment
        if how == "submit":
            flow = flows.submit(FLOW, flow_id="f", on_existing="retry_failed", owner=MINUTE)
        elif how != "rerun":
            getattr(flow, how)()
        elif path == "staged":
            flow.rerun("a")
        else:
            return
        assert flow.status().state == "running"
        supervisor.look(31, 62, 93)  # on the portable path, a check of the round before may be the first
        assert flow.wait(timeout=LONG).status.reason.startswith("its owner ada is gone")

    def test_the_owner_of_an_older_generation_is_told_so(self, flows: FlowProducer) -> None:
        flow = flows.submit(FLOW, flow_id="f", owner=MINUTE)
        flows.get("f").restart()
        with pytest.raises(Superseded):
            flow.renew()
        with pytest.raises(Superseded):
            flow.wait(timeout=LONG)

    def test_a_restart_by_somebody_else_has_no_owner(
        self, flows: FlowProducer, supervisor: Supervisor
    ) -> None:
        flows.submit(FLOW, flow_id="f", owner=MINUTE)
        flows.get("f").restart()
        supervisor.look(31, 62, 100)
        assert flows.get("f").status().state == "running"


class TestOneThatDoesNotJoin:
    """It owns what it begins, and nothing else."""

    ADA = Owner("ada", timedelta(minutes=1), joins=False)

    def test_it_owns_and_renews_what_it_has_begun(
        self, flows: FlowProducer, supervisor: Supervisor, work: Work
    ) -> None:
        work.ends["a"] = "failed"
        flow = flows.submit(FLOW, flow_id="f", owner=self.ADA)
        flow.wait(timeout=LONG)
        work.held["b"] = threading.Event()
        flow.complete_node("a", 1)
        assert flow.owners() == ["ada"]
        flows.get("f", owner=replace(self.ADA, lease=timedelta(hours=1))).renew()
        supervisor.look(31, 62)
        assert (flow.status().state, flow.owners()) == ("running", ["ada"])
        work.held["b"].set()
        flow.wait(timeout=LONG)
        work.held["a"] = threading.Event()
        flow.restart()
        assert flow.owners() == ["ada"]
        work.held["a"].set()

    @pytest.mark.parametrize("how", ["submit", "retry_failed", "restart", "rerun", "complete_node"])
    def test_it_owns_nothing_that_somebody_else_has_set_running(
        self, flows: FlowProducer, supervisor: Supervisor, work: Work, how: str
    ) -> None:
        work.held["b"] = threading.Event()
        if how != "submit":
            work.ends["a"] = "failed"
            flows.submit(FLOW, flow_id="f", owner=self.ADA).wait(timeout=LONG)
            work.ends.clear()
        if how == "submit":
            flows.submit(FLOW, flow_id="f")
        elif how in ("rerun", "complete_node"):
            getattr(flows.get("f"), how)("a")
        else:
            getattr(flows.get("f"), how)()
        mine = flows.get("f", owner=self.ADA)
        mine.renew()
        with pytest.raises(WaitTimeout):
            mine.wait(timeout=timedelta(milliseconds=1))
        flows.submit(FLOW, flow_id="f", owner=self.ADA)
        assert mine.owners() == []
        supervisor.look(31, 62, 100)
        assert mine.status().state == "running"
        work.held["b"].set()

    def test_a_change_of_nodes_in_a_flow_that_runs_for_others_does_not_own_it(
        self, flows: FlowProducer, work: Work
    ) -> None:
        work.held["b"] = threading.Event()
        flows.submit(FLOW, flow_id="f")
        flows.get("f", owner=self.ADA).complete_node("a", 1)
        assert flows.get("f").owners() == []
        work.held["b"].set()


class TestRenewing:
    def test_whoever_waits_for_a_flow_of_others_owns_it(
        self, flows: FlowProducer, supervisor: Supervisor
    ) -> None:
        """Also where the lease was renewed lately, for another flow."""
        other = flows.submit(FLOW, owner=MINUTE)
        flows.submit(FLOW, flow_id="f")
        mine = flows.get("f", owner=MINUTE)
        for flow in (other, mine):
            with pytest.raises(WaitTimeout):
                flow.wait(timeout=timedelta(milliseconds=1))
        supervisor.look(31, 62)
        assert mine.status().state == "cancelled"

    @pytest.mark.parametrize("way", ["wait", "result", "watch"])
    def test_whoever_waits_renews(
        self, flows: FlowProducer, work: Work, monkeypatch: pytest.MonkeyPatch, redis_client: Any, way: str
    ) -> None:
        def heard() -> float:
            return float(redis_client.zscore("glide:{etl}:gmo:owners", "60000:ada"))

        monkeypatch.setattr(ownership, "PER_LEASE", 600)  # every 0.1 s
        flows.submit(FlowSpec("n", [node("y"), node("x", queue=NEAR)]), owner=MINUTE)
        names = "abcde"
        work.held |= {name: threading.Event() for name in names}
        flow = flows.submit(FlowSpec("n", [node(name) for name in names]), owner=MINUTE)
        before = heard()
        for number, name in enumerate(names, 1):
            threading.Timer(number * 0.2, work.held[name].set).start()
        for _ in flow.watch(timeout=LONG) if way == "watch" else [getattr(flow, way)(timeout=LONG)]:
            pass
        assert flow.status().state == "completed"
        assert heard() > before + 500

    def test_a_thousand_flows_cost_one_call_a_third_of_a_lease(
        self, flows: FlowProducer, hand: Hand, path: Any
    ) -> None:
        shared, clock, calls = Renewals(), Ahead(), []
        refs = [FlowRef(ETL, flows.submit(FLOW, owner=MINUTE).id, path) for _ in range(20)] * 50
        mine = [(Ownership(MINUTE, shared, ref.flow_id), ref) for ref in refs]
        for clock.seconds in range(1, 62, 5):
            for one, ref in mine:
                calls += list(hand.steps(one.renew_if_due(ref, clock)))
        words = [getattr(call, "words", ()) for call in calls]
        assert [each[:1] for each in words] == [("ZADD",)] * 4

    def test_renewing_needs_an_owner(self, flows: FlowProducer) -> None:
        flow = flows.submit(FLOW)
        with pytest.raises(ConfigurationError, match="no owner was given"):
            flow.renew()

    def test_a_flow_that_is_gone(self, flows: FlowProducer, redis_client: Any) -> None:
        flow = flows.submit(FLOW, owner=MINUTE)
        redis_client.flushdb()
        with pytest.raises(FlowNotFound):
            flow.renew()

    def test_renewing_an_ended_flow_changes_nothing(
        self, flows: FlowProducer, redis_client: Any, path: str
    ) -> None:
        flow = flows.submit(FLOW, owner=MINUTE)
        flow.cancel()
        assert flow.renew() == "cancelled"
        if path == "staged":
            assert keys_of_owners(redis_client) == []


def test_an_owner_that_is_none_is_refused_before_anything_is_sent(
    flows: FlowProducer, redis_client: Any
) -> None:
    wrong: list[Any] = [1, "ada", {"name": "ada"}]
    for owner in wrong:
        for how in ("attach", "restart"):
            with pytest.raises(
                ConfigurationError, match=f"must be Owner or None, got {type(owner).__name__}"
            ):
                flows.submit(FLOW, flow_id="f", owner=owner, on_existing=how)
        assert redis_client.keys("*") == []


def test_a_submission_that_dies_anywhere_leaves_no_flow_without_owner(
    flows: FlowProducer, hand: Hand, supervisor: Supervisor, path: str, redis_client: Any
) -> None:
    for calls in sampled(range(30)):
        redis_client.flushdb()
        flow = replace(check_flow(FLOW), owner=MINUTE)
        making = submit_flow("glide", flow, "f", "attach", SystemClock(), reach=REACHES[path])
        hand.run_until(making, calls)
        supervisor.look(31, 62, 65)
        assert all(one.state in {"staging", "cancelled"} for one in flows.list())
        supervisor.look(70, 16 * 60, 16 * 60 + 1)
        assert all(one.state == "cancelled" for one in flows.list())


def test_a_supervisor_that_dies_after_any_call_is_followed_by_another(
    flows: FlowProducer, hand: Hand, supervisor: Supervisor, redis_client: Any
) -> None:
    for calls in sampled(range(20)):
        redis_client.flushdb()
        mine = [flows.submit(FLOW, owner=MINUTE) for _ in range(25)]
        supervisor.look(31)
        supervisor.clock.seconds = 62
        hand.run_until(upkeep.upkeep([ETL], supervisor.clock), calls)
        hand.run_until(sweep(ETL, supervisor.clock), calls)
        supervisor.look(63, 64, 65)
        assert {flow.status().state.value for flow in mine} == {"cancelled"}


@pytest.mark.parametrize("is_owned", [True, False])
def test_a_submission_during_which_the_server_loses_all_submits_again(
    flows: FlowProducer, hand: Hand, redis_client: Any, path: str, *, is_owned: bool
) -> None:
    for at in sampled(range(1, 14)):
        redis_client.flushdb()
        flow = replace(check_flow(FLOW), owner=MINUTE if is_owned else None)
        owned = Ownership(MINUTE, Renewals()) if is_owned else None
        op = submit_flow("glide", flow, "f", "attach", SystemClock(), reach=REACHES[path], owned=owned)
        has_begun = False
        for number, _ in enumerate(hand.steps(op), 1):
            if number == at:
                has_begun = any(one.state == "running" for one in flows.list())
                redis_client.flushdb()
        if not has_begun:
            assert flows.get("f").status().state == "running"
            assert [one.id for one in flows.list()] == ["f"]
