"""The beginning of a generation that dies, is repeated, or meets another."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    Flow,
    FlowProducer,
    FlowSpec,
    JobState,
)
from glidemq_orchestrate.flows import index
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.index import find_flow
from glidemq_orchestrate.flows.portable import upkeep
from glidemq_orchestrate.flows.submission import begin_next, restart_flow, submit_flow
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.builders import diamond, node
from tests.profile import sampled
from tests.server.conftest import REACHES, STAGED
from tests.server.flows.generations.conftest import end_with_a_failure
from tests.server.policy_work import LONG, Work

if TYPE_CHECKING:
    from glidemq_orchestrate.flows.generation import FlowRef
    from glidemq_orchestrate.wire.call import Op
    from tests.conftest import Eventually
    from tests.server.conftest import Hand

pytestmark = pytest.mark.usefixtures("path")


ETL = QueueKeys("glide", "etl")


@pytest.mark.parametrize("on_existing", ["restart", "retry_failed"])
def test_a_beginning_that_died_after_any_call_is_completed_by_a_repeat(
    flows: FlowProducer, work: Work, hand: Hand, on_existing: Any
) -> None:
    for calls in sampled(range(24)):
        flow_id = f"f{calls}"
        end_with_a_failure(flows, work, flow_id)
        spec = replace(check_flow(diamond(b={"data": 1})), request="r")
        hand.run_until(submit_flow("glide", spec, flow_id, on_existing, SystemClock()), calls)
        hand.run(submit_flow("glide", spec, flow_id, on_existing, SystemClock()))
        flow = flows.get(flow_id)
        assert flow.wait(timeout=LONG).status.completed == 5, calls
        assert flow.generation == 1
        assert sorted(work.ran) == list("abcde" if on_existing == "restart" else "bd"), calls


def test_what_completes_between_a_kill_and_the_repeat_is_kept_too(
    flows: FlowProducer, work: Work, hand: Hand, eventually: Eventually
) -> None:
    for calls in sampled(range(5, 12)):
        flow_id = f"f{calls}"
        work.ran.clear()
        work.held |= {"a": threading.Event(), "e": threading.Event()}
        flow = flows.submit(diamond(), flow_id=flow_id)
        eventually(lambda: sorted(work.ran) == ["a", "e"])
        mended = check_flow(diamond(b={"data": 1}))
        hand.run_until(submit_flow("glide", mended, flow_id, "retry_failed", SystemClock()), calls)
        if calls < 10:  # the next generation has not begun
            work.held["a"].set()
            eventually(partial(has_completed, flow, "c"))
        hand.run(submit_flow("glide", mended, flow_id, "retry_failed", SystemClock()))
        for event in work.held.values():
            event.set()
        outcome = flows.get(flow_id).wait(timeout=LONG)
        assert (outcome.status.completed, outcome.status.total) == (5, 5), calls
        assert outcome.results == {name: f"{name}!" for name in "abcde"}
        assert work.ran.count("a") == (1 if calls < 10 else 2), calls


def has_completed(flow: Flow, name: str) -> bool:
    return flow.node(name).state is JobState.COMPLETED


@pytest.mark.parametrize("on_existing", ["restart", "retry_failed"])
def test_a_beginning_that_is_given_up_leaves_nothing(
    broken: FlowProducer, hand: Hand, on_existing: Any, redis_client: Any, path: str
) -> None:
    class Later(SystemClock):
        def now_ms(self) -> int:
            return super().now_ms() + 16 * 60_000

    def of_next() -> list[str]:
        return [key for key in redis_client.keys("*") if "f{1." in key or "f@1." in key]

    nodes = [*diamond(b={"data": 1}).nodes, *(node(f"n{n}", "a") for n in range(60))]
    making = submit_flow("glide", check_flow(FlowSpec("n", nodes)), "f", on_existing, SystemClock())
    hand.run_until(making, 9 if path == "staged" else 70)
    assert len(of_next()) > 40
    while hand.run(index.sweep([ETL], Later())):
        pass
    hand.run(upkeep.sweep(ETL, Later()))
    assert of_next() == []
    assert [one.generation for one in broken.list()] == [0]
    assert broken.get("f").status().state == "failed"
    assert redis_client.smembers("glide:{etl}:parents:f~a") == {"glide:{etl}:f~b", "glide:{etl}:f~c"}


def test_two_who_mend_differently_begin_one_after_the_other(
    broken: FlowProducer, hand: Hand, work: Work
) -> None:
    """Both stage generation 1; the second finds that it is not, and begins generation 2."""
    place = hand.run(find_flow("glide", "f"))
    specs = [check_flow(diamond(b={"data": number})) for number in range(2)]
    refs = [hand.run(begin_next(place, spec, "retry_failed", SystemClock())) for spec in specs]
    assert [ref.generation for ref in refs] == [1, 2]
    assert broken.get("f").wait(timeout=LONG).status.completed == 5


@STAGED
def test_an_extension_that_comes_meanwhile_is_not_lost(flows: FlowProducer, work: Work, hand: Hand) -> None:
    flow = flows.submit(FlowSpec("n", [node("a")]), flow_id="f")
    flow.wait(timeout=LONG)
    beginning = restart_flow(flow._ref, "", SystemClock())
    request = next(beginning)
    while "gmo_stage_flow" not in str(request):
        request = beginning.send(hand.answers(request))
    flow.extend([node("b", "a")])
    flow.wait(timeout=LONG)
    while True:
        try:
            request = beginning.send(hand.answers(request))
        except StopIteration:
            break
    assert set(flows.get("f").wait(timeout=LONG).results) == {"a", "b"}


def test_a_flow_that_is_being_staged_is_mended_too(
    flows: FlowProducer, hand: Hand, work: Work, path: str
) -> None:
    half = check_flow(FlowSpec("n", [node(f"n{n}") for n in range(130)]))
    reach, calls = REACHES[path], 8 if path == "staged" else 100
    hand.run_until(submit_flow("glide", half, "f", "attach", SystemClock(), reach=reach), calls)
    assert flows.get("f").status().state == "staging"
    flow = flows.submit(diamond(), flow_id="f", on_existing="restart")
    assert flow.wait(timeout=LONG).status.completed == 5
    assert flow.history()[0].state == "cancelled"
    assert sorted(work.ran) == list("abcde")


def test_a_restart_finds_what_the_same_request_of_another_caller_began_at_any_moment(
    flows: FlowProducer, work: Work, hand: Hand
) -> None:
    for calls in range(6):
        flow_id = f"f{calls}"
        end_with_a_failure(flows, work, flow_id)
        ref = flows.get(flow_id)._ref
        found: list[FlowRef] = []
        late = hand.steps(kept(restart_flow(ref, "click 1", SystemClock()), found))
        for _ in zip(range(calls), late, strict=False):
            pass
        flow = flows.get(flow_id)
        flow.restart(idempotency_key="click 1")
        list(late)
        assert [one.flow_id for one in found] == [flow._ref.flow_id], calls
        assert flow.wait(timeout=LONG).status.completed == 5
        assert flows.get(flow_id).generation == 1


def kept(op: Op[FlowRef], found: list[FlowRef]) -> Op[None]:
    found.append((yield from op))
