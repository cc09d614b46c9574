"""Where a portable flow is listed, however its callers overtake each other or die."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowSpec, FlowState
from glidemq_orchestrate.clients import flows as producer
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.portable import advance, records, upkeep
from glidemq_orchestrate.flows.submission import submit_flow
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.wire.call import ask
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.builders import node
from tests.server.conftest import REACHES
from tests.server.policy_work import LONG

if TYPE_CHECKING:
    from tests.conftest import RunWorker
    from tests.server.conftest import Hand

ETL = QueueKeys("glide", "etl")
REF = FlowRef(ETL, "f", "portable")
FLOW = FlowSpec("n", [node("a"), node("b", "a")])


class Later(SystemClock):
    """The clock of a supervisor that comes when a submission is taken for abandoned."""

    def now_ms(self) -> int:
        return super().now_ms() + 16 * 60_000


def test_a_sweep_that_overtakes_a_submission_does_not_hide_it(hand: Hand, redis_client: Any) -> None:
    """It reads after the flow was listed and before it has a record, and delists it after that."""
    for calls in range(4, 16):
        redis_client.flushdb()
        hand.run(ask(records.enlist(ETL, "f", 0)))
        sweeping = hand.steps(upkeep.sweep(ETL, SystemClock()))
        while getattr(next(sweeping), "words", ("",))[0] != "HGETALL":
            pass
        making = submit_flow(
            "glide", check_flow(FLOW), "f", "attach", SystemClock(), reach=REACHES["portable"]
        )
        hand.run_until(making, calls)
        for _ in sweeping:
            pass
        hand.run(upkeep.sweep(ETL, Later()))
        assert redis_client.keys("*f~*") == []
        assert redis_client.keys("*gmo:flow:f*") == []


def test_who_has_waited_for_its_end_finds_it_listed(
    url: str, hand: Hand, redis_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the client that has ended it was killed before it listed that."""
    monkeypatch.setattr(producer, "Reach", lambda *_: REACHES["portable"])
    with producer.FlowProducer(url) as flows:
        flow = flows.submit(FLOW, flow_id="f")
        hand.run(ask(records.cancel(ETL, "f", 0, FlowState.CANCELLED, "why")))
        for _ in hand.steps(advance.advance(REF, SystemClock())):
            if redis_client.hexists(ETL.flow("f"), "end:0"):
                break
        assert flows.list(state="cancelled") == []
        assert flow.wait(timeout=LONG).status.state == "cancelled"
        assert [one.id for one in flows.list(state="cancelled")] == ["f"]
        assert flows.list(state="running") == []


def test_one_that_runs_again_while_a_client_is_killed_that_closes_it_is_listed(
    url: str, hand: Hand, redis_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any step: also after it has delisted the flow that another client has listed again."""
    monkeypatch.setattr(producer, "Reach", lambda *_: REACHES["portable"])
    with producer.FlowProducer(url) as flows:
        for killed in range(2, 9):
            for restarted in range(1, killed):
                redis_client.flushdb()
                flow = flows.submit(FLOW, flow_id="f")
                flow.cancel()
                assert flow.wait(timeout=LONG).status.state == "cancelled"
                closing = hand.steps(advance.close(REF, SystemClock()))
                for _ in range(restarted):
                    next(closing, None)
                flow.retry_failed()
                for _ in range(killed - restarted):
                    next(closing, None)
                for clock in (SystemClock(), Later()):
                    hand.run(upkeep.sweep(ETL, clock))
                assert redis_client.zrange("glide:{etl}:gmo:portable", 0, -1) == ["f"], (restarted, killed)
                assert redis_client.zcard("glide:{etl}:gmo:portable:leaving") == 0


def test_one_that_was_listed_in_an_older_state_at_its_end_is_corrected(
    url: str, hand: Hand, redis_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a client that was cut off, while another one listed the end."""
    monkeypatch.setattr(producer, "Reach", lambda *_: REACHES["portable"])
    with producer.FlowProducer(url) as flows:
        flow = flows.submit(FLOW, flow_id="f")
        flow.cancel()
        assert flow.wait(timeout=LONG).status.state == "cancelled"
    redis_client.zadd("glide:{etl}:gmo:flows:state:running", {"f": 1})
    hand.run(advance.close(REF, SystemClock()))
    hand.run(upkeep.sweep(ETL, SystemClock()))
    listed = {
        key for key in redis_client.keys("*gmo:flows:state:*") if redis_client.zscore(key, "f") is not None
    }
    assert listed == {"glide:{etl}:gmo:flows:state:cancelled"}
    assert redis_client.zcard("glide:{etl}:gmo:portable") == 0


def test_a_submission_that_goes_on_after_the_end_of_its_flow_keeps_no_id(
    url: str, hand: Hand, redis_client: Any, run_worker: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client has submitted the same flow, and it was removed after its retention."""
    monkeypatch.setattr(producer, "Reach", lambda *_: REACHES["portable"])
    spec = FlowSpec("n", [node("a"), node("b", "a")], retention=timedelta(milliseconds=1))
    slow = hand.steps(
        submit_flow("glide", check_flow(spec), "f", "attach", SystemClock(), reach=REACHES["portable"])
    )
    while "glide:{etl}:job:f~a" not in redis_client.keys("*:job:*"):
        next(slow)
    with producer.FlowProducer(url) as flows:
        flow = flows.submit(spec, flow_id="f")
        run_worker(["etl"], {"work": lambda _: 1})
        flow.wait(timeout=LONG)
    while not redis_client.hexists(ETL.flow("f"), "expired_at"):
        hand.run(upkeep.sweep(ETL, SystemClock()))
    assert redis_client.ttl("glide:gmo:home:{f}") > 0
    for _ in slow:
        pass
    assert redis_client.ttl("glide:gmo:home:{f}") > 0
    assert redis_client.keys("*:job:f~*") == []
