"""Flows by the portable path: across the slots of a cluster, and on one server; any call may be the last."""

from __future__ import annotations

import pytest

from glidemq_orchestrate import FlowSpec, FlowState
from glidemq_orchestrate.errors import FlowConflict, FlowNotFound
from glidemq_orchestrate.flows import backend, outcome
from glidemq_orchestrate.flows.index import find_ref
from glidemq_orchestrate.flows.portable import advance, changes, upkeep
from glidemq_orchestrate.flows.watch import begin_watch, next_changes
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.builders import slot_node
from tests.node import PlainNode
from tests.profile import sampled
from tests.server.lua.portable_slots import QUEUES, Slots, places


def test_a_watching_client_moves_it_on_and_gets_changes_in_order(slots: Slots) -> None:
    slots.submit()
    workers = [PlainNode(slots.client(f"{{{name}}}"), name, slots.now) for name in QUEUES]
    watch = begin_watch(slots.ref(), None, None, slots)
    seen: list[tuple[str, str]] = []
    while not watch.is_over:
        changes, _ = slots.run(next_changes(watch))
        seen += [(getattr(change, "node", "the flow"), str(change.state)) for change in changes]
        for worker in workers:
            worker.run_all()
    ends = [name for name, state in seen if state == "completed"]
    assert sorted(ends) == ["a", "end", "m", "n", "side", "the flow"]
    assert ends.index("a") < ends.index("m") < ends.index("end")
    assert ends.index("n") < ends.index("end")
    assert ends[-1] == "the flow"
    assert len(set(seen)) == len(seen)


def test_it_runs_in_order_across_slots_and_returns_its_results(slots: Slots) -> None:
    slots.submit()
    order = slots.run_jobs()
    assert (order.index("a"), order[-1], len(order)) == (0, "end", 5)
    assert slots.status() == ("completed", 5, 0)
    results, _ = slots.run(outcome.results(slots.ref()))
    assert results == {name: f"f~{name}" for name in ("a", "m", "n", "end", "side")}
    events = slots.client("{b}").xrange("glide:{b}:events")
    assert [fields["event"] for _, fields in events].count("flow.completed") == 1


def test_a_failure_and_a_retry_reach_dependents_in_other_slots(
    slots: Slots,
) -> None:
    slots.submit()
    order = slots.run_jobs("~m")
    assert "end" not in order
    assert slots.status() == ("failed", 3, 2)
    assert slots.client("{b}").hget("glide:{b}:job:f~end", "failedReason") == "upstream failed: m"
    assert slots.run(changes.retry_failed(slots.ref(), slots))[0] is FlowState.RUNNING
    assert slots.run_jobs("~end") == ["m", "end"]
    assert slots.status() == ("failed", 4, 1)
    slots.run(changes.retry_failed(slots.ref(), slots))
    assert slots.run_jobs() == ["end"]
    assert slots.status() == ("completed", 5, 0)


def test_a_cancel_reaches_every_slot_and_can_be_repaired(slots: Slots) -> None:
    slots.submit()
    worker = PlainNode(slots.client("{b}"), "b", slots.now)
    assert worker.begin_next()
    assert slots.run(changes.cancel(slots.ref(), "enough", slots))[0] is FlowState.RUNNING
    assert slots.status() == ("cancelled", 0, 5)
    assert slots.run_jobs() == []
    slots.run(changes.retry_failed(slots.ref(), slots))
    assert len(slots.run_jobs()) == 5
    assert slots.status() == ("completed", 5, 0)


def test_a_submission_cut_anywhere_is_completed_by_a_repeat(slots: Slots) -> None:
    for cut in places(step=4):
        for client in slots.clients:
            client.flushall()
        _, sent = slots.submit(calls=cut)
        workers = [PlainNode(slots.client(f"{{{name}}}"), name, slots.now) for name in QUEUES]
        early = [job_id for worker in workers for job_id in worker.run_all()]
        assert not early or len([key for key in slots.stored() if ":job:" in key]) == 5
        slots.submit()
        slots.run_jobs()
        assert slots.status() == ("completed", 5, 0), cut
        if sent < cut:
            break
    assert cut > 20


def test_an_advance_and_a_retry_cut_anywhere_are_done_by_the_next(slots: Slots) -> None:
    for cut in sampled(range(60), 6):
        for client in slots.clients:
            client.flushall()
        slots.submit()
        for name, broken in (("b", "\n"), ("c", "~m"), ("q", "\n")):
            PlainNode(slots.client(f"{{{name}}}"), name, slots.now).run_all(broken)
            slots.run(advance.advance(slots.ref(), slots), cut)
        slots.advance()
        slots.run_jobs("~m")
        assert slots.status() == ("failed", 3, 2), cut
        slots.run(changes.retry_failed(slots.ref(), slots), cut)
        slots.run(changes.retry_failed(slots.ref(), slots))
        slots.advance()
        slots.run_jobs()
        assert slots.status() == ("completed", 5, 0), cut


def test_what_was_abandoned_is_swept_and_what_runs_is_advanced(slots: Slots) -> None:
    slots.submit(calls=19)
    home = QueueKeys("glide", "b")
    slots.run(upkeep.sweep(home, slots))
    assert slots.stored()
    slots.now += upkeep.ABANDONED_MS + 1
    slots.run(upkeep.sweep(home, slots))
    assert {key for key in slots.stored() if not key.endswith((":id", ":metrics:completed"))} == set()
    slots.submit()
    PlainNode(slots.client("{b}"), "b", slots.now).run_all()
    slots.run(upkeep.sweep(home, slots))
    assert PlainNode(slots.client("{c}"), "c", slots.now).run_all() == ["f~m"]


def test_ids_that_are_taken_are_refused_and_nothing_is_left(slots: Slots) -> None:
    slots.client("{q}").hset("glide:{q}:job:f~n", mapping={"id": "f~n", "state": "completed", "opts": "{}"})
    before = slots.stored()
    with pytest.raises(FlowConflict):
        slots.submit()
    assert slots.stored() == before
    with pytest.raises(FlowNotFound):
        slots.run(find_ref("glide", "f"))
    slots.client("{q}").delete("glide:{q}:job:f~n")
    slots.submit()
    with pytest.raises(FlowConflict):
        slots.submit(FlowSpec("n", [slot_node("other")]))
    assert slots.status() == ("running", 0, 0)


def test_the_path_is_chosen_by_itself_and_all_calls_follow_it(slots: Slots) -> None:
    ref, _ = slots.run(slots.submission())
    assert ref.path == "portable"
    keeper = backend.backend_of(ref)
    slots.run_jobs("~m")
    status, _ = slots.run(keeper.wait(ref, 20_000, slots))
    assert status.state is FlowState.FAILED
    found, _ = slots.run(outcome.outcome(ref, status))
    reasons = [(failed.name, failed.reason) for failed in found.failed]
    assert reasons == [("m", "boom"), ("end", "upstream failed: m")]
    nodes, _ = slots.run(keeper.nodes(ref))
    assert {node.name: node.state.value for node in nodes} == {
        "a": "completed",
        "side": "completed",
        "m": "failed",
        "n": "completed",
        "end": "failed",
    }
    again, _ = slots.run(slots.submission(on_existing="retry_failed"))
    assert slots.run_jobs() == ["m", "end"]
    assert slots.run(keeper.status(again))[0].state is FlowState.COMPLETED
    assert set(slots.run(outcome.results(again))[0]) == {"a", "m", "n", "end", "side"}
    assert slots.run(keeper.cancel(again, "late", slots))[0] is FlowState.COMPLETED
    assert slots.run(keeper.retry_failed(again, slots))[0] is FlowState.COMPLETED
