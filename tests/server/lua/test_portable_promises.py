"""What flows promise holds on the portable path, whichever client is cut off, comes twice or comes late."""

from __future__ import annotations

import itertools
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from redis.crc import key_slot

from glidemq_orchestrate import FlowNode, FlowSpec, FlowState, JobOptions
from glidemq_orchestrate.errors import ConfigurationError, FlowConflict, FlowExpired, FlowNotFound
from glidemq_orchestrate.flows import backend, outcome
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.index import find_ref
from glidemq_orchestrate.flows.nodes import leaf_names
from glidemq_orchestrate.flows.portable import advance, changes, reading, records, upkeep
from glidemq_orchestrate.flows.submission import restart_flow
from glidemq_orchestrate.wire.call import ask
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.builders import slot_node
from tests.node import PlainNode
from tests.profile import sampled
from tests.server.lua.portable_slots import FLOW, QUEUES, Slots, places

HOME = QueueKeys("glide", "b")
ALL = Counter({"a": 1, "m": 1, "n": 1, "end": 1, "side": 1})
TWO = FlowSpec("n", [slot_node("a"), slot_node("m", "a", queue="c")])


def clear(slots: Slots) -> None:
    for client in slots.clients:
        client.flushall()


def test_a_submission_cut_again_and_again_runs_every_node_once(slots: Slots) -> None:
    for cut in sampled(range(1, 70), 6):
        clear(slots)
        for calls in itertools.count(cut):
            _, sent = slots.submit(calls=calls)
            if sent < calls:
                break
        assert Counter(slots.run_jobs()) == ALL, cut
        assert slots.status() == ("completed", 5, 0), cut


@pytest.mark.parametrize("ends", [False, True], ids=["while it runs", "after it has ended"])
def test_a_second_submitter_at_any_place_of_the_first_runs_every_node_once(
    slots: Slots, *, ends: bool
) -> None:
    for place in places(step=4):
        clear(slots)
        slow, is_over = slots.begun(slots.submission(TWO), place)
        slots.submit(TWO)
        ran = Counter(slots.run_jobs()) if ends else Counter()
        for _ in slow:
            pass
        ran += Counter(slots.run_jobs())
        assert ran == {"a": 1, "m": 1}, place
        assert slots.status() == ("completed", 2, 0), place
        if is_over:
            break
    assert place > 20


def test_submitters_that_take_turns_run_every_node_once(slots: Slots) -> None:
    for first, second in sampled([*itertools.product(range(1, 8), repeat=2)]):
        clear(slots)
        both = [slots.steps(slots.submission(TWO)) for _ in range(2)]
        live = list(zip(both, (first, second), strict=True))
        while live:
            live = [
                (steps, size)
                for steps, size in live
                if all(next(steps, "over") != "over" for _ in range(size))
            ]
        assert Counter(slots.run_jobs()) == {"a": 1, "m": 1}, (first, second)
        assert slots.status() == ("completed", 2, 0)


def test_a_sweep_of_what_seems_abandoned_at_any_place_of_a_submission(slots: Slots) -> None:
    """The submitter was only slow: it starts again, or finds that it was faster."""
    for place in places(step=4):
        clear(slots)
        slow, is_over = slots.begun(slots.submission(TWO), place)
        slots.now += upkeep.ABANDONED_MS + 1
        slots.run(upkeep.sweep(QueueKeys("glide", check_flow(TWO).home), slots))
        for _ in slow:
            pass
        assert Counter(slots.run_jobs()) == {"a": 1, "m": 1}, place
        assert slots.status() == ("completed", 2, 0), place
        if is_over:
            break


@pytest.mark.parametrize("slot_servers", ["cluster"], indirect=True)
def test_a_retry_at_any_place_of_the_end_stays_with_the_supervisors(slots: Slots) -> None:
    for place in places(step=4):
        clear(slots)
        slots.submit()
        for name in QUEUES:
            PlainNode(slots.client(f"{{{name}}}"), name, slots.now).run_all("~a", "~side")
        late, is_over = slots.begun(advance.advance(slots.ref(), slots), place)
        assert slots.advance() is FlowState.FAILED
        assert slots.run(changes.retry_failed(slots.ref(), slots))[0] is FlowState.RUNNING
        for _ in late:
            pass
        workers = [PlainNode(slots.client(f"{{{name}}}"), name, slots.now) for name in QUEUES]
        for _ in range(5):  # no client waits: supervisors alone
            for worker in workers:
                worker.run_all()
            slots.run(upkeep.sweep(HOME, slots))
        assert slots.status() == ("completed", 5, 0), place
        if is_over:
            break
    assert place > 10


@pytest.mark.parametrize("slot_servers", ["cluster"], indirect=True)
def test_retries_at_any_place_of_a_retry_run_every_node_once(slots: Slots) -> None:
    for place in places(step=4):
        clear(slots)
        slots.submit(TWO)
        slots.run_jobs("~a")
        assert slots.status() == ("failed", 0, 2)
        slow, is_over = slots.begun(changes.retry_failed(slots.ref(), slots), place)
        slots.run(changes.retry_failed(slots.ref(), slots))
        for _ in slow:
            pass
        assert Counter(slots.run_jobs()) == {"a": 1, "m": 1}, place
        assert slots.status() == ("completed", 2, 0), place
        if is_over:
            break


@pytest.mark.long
def test_every_flow_of_a_home_ends_however_many_there_are(slots: Slots) -> None:
    """Flows that wait for a queue without workers do not keep those behind them waiting."""
    stuck = FlowSpec("n", [slot_node("a", queue="nobody"), slot_node("b"), slot_node("c")])
    for number in range(100):
        slots.submit(stuck, f"stuck-{number}")
    slots.now += 1
    slots.submit(FLOW, "late")
    workers = [PlainNode(slots.client(f"{{{name}}}"), name, slots.now) for name in QUEUES]
    for _ in range(8):
        for worker in workers:
            worker.run_all()
        slots.now += 1000
        slots.run(upkeep.sweep(HOME, slots))
    ref, _ = slots.run(find_ref("glide", "late"))
    assert slots.run(reading.status(ref))[0].state is FlowState.COMPLETED


def test_flows_whose_ids_look_like_tables_of_each_other(slots: Slots) -> None:
    last = FlowNode("digest", queue="c", job="work", after=["state"], rule="all_done")
    rules = FlowSpec("n", [slot_node("state"), last])
    ids = ["x", "x:policies", "x:waiting", "x:portable", "policies:x", "expiring"]
    for flow_id in ids:
        slots.submit(rules, flow_id)
    workers = [PlainNode(slots.client(f"{{{name}}}"), name, slots.now) for name in QUEUES]
    for _ in range(4):
        for worker in workers:
            worker.run_all()
        slots.run(upkeep.sweep(QueueKeys("glide", check_flow(rules).home), slots))
    for flow_id in ids:
        ref, _ = slots.run(find_ref("glide", flow_id))
        assert slots.run(reading.status(ref))[0].state is FlowState.COMPLETED, flow_id


def test_a_flow_that_cannot_be_read_holds_up_no_other(slots: Slots) -> None:
    for flow_id in ("f1", "f2", "f3"):
        slots.submit(TWO, flow_id)
    home = QueueKeys("glide", check_flow(TWO).home)
    broken = slots.client(home.base)
    broken.delete(f"{home.flow('f1')}:nodes")
    broken.set(f"{home.flow('f1')}:nodes", "odd")
    PlainNode(slots.client("{b}"), "b", slots.now).run_all()
    with pytest.raises(Exception, match="WRONGTYPE"):
        slots.run(upkeep.sweep(home, slots))
    assert set(PlainNode(slots.client("{c}"), "c", slots.now).run_all()) == {"f2~m", "f3~m"}


def test_a_node_whose_job_is_missing_has_failed_with_that_reason(slots: Slots) -> None:
    slots.submit()
    slots.client("{c}").delete("glide:{c}:job:f~m")
    slots.run_jobs()
    assert slots.status() == ("failed", 3, 2)
    found = {one.name: one for one in slots.run(reading.nodes(slots.ref()))[0]}
    assert (found["m"].state, found["m"].reason) == ("failed", "its job was removed")
    assert found["end"].reason == "upstream failed: m"


def test_nodes_are_kept_whatever_their_options_say(slots: Slots) -> None:
    gone = JobOptions(remove_on_complete=True, remove_on_fail=True)
    nodes = [
        FlowNode("a", queue="b", job="work", options=gone),
        FlowNode("m", queue="c", job="work", after=["a"], options=gone),
    ]
    slots.submit(FlowSpec("n", nodes))
    stored = slots.client("{b}").hget("glide:{b}:job:f~a", "opts")
    assert "removeOn" not in stored


def test_nodes_that_come_later_are_refused_before_anything_changes(slots: Slots) -> None:
    slots.submit()
    before = {key: slots.client(key).type(key) for key in slots.stored()}
    with pytest.raises(ConfigurationError, match="cannot be extended"):
        slots.run(backend.backend_of(slots.ref()).extend(slots.ref(), [slot_node("late", "end")], slots))
    assert {key: slots.client(key).type(key) for key in slots.stored()} == before
    slots.run_jobs()
    assert slots.status() == ("completed", 5, 0)


DAY = timedelta(days=1)
KEPT = FlowSpec("n", FLOW.nodes, retention=DAY, labels={"dag": "d"})


def test_jobs_are_removed_after_the_retention_and_a_tombstone_stays(slots: Slots) -> None:
    slots.submit(KEPT)
    slots.run_jobs()
    slots.now += 24 * 3_600_000 - 1
    slots.run(upkeep.sweep(HOME, slots))
    assert set(slots.run(outcome.results(slots.ref()))[0]) == set(ALL)
    assert set(slots.run(leaf_names(slots.ref()))[0]) < set(ALL)
    slots.now += 2
    slots.run(upkeep.sweep(HOME, slots))
    left = {key for key in slots.stored() if not key.endswith((":id", ":metrics:completed", ":stream"))}
    assert left == {
        "glide:gmo:home:{f}",
        "glide:{b}:gmo:flow:f",
    }
    assert slots.status() == ("completed", 5, 0)
    for read in (outcome.results, reading.nodes, leaf_names):
        with pytest.raises(FlowExpired):
            slots.run(read(slots.ref()))
    for again in (restart_flow(slots.ref(), "", slots), changes.retry_failed(slots.ref(), slots)):
        assert_unchanged(slots, again)
    for key in ("glide:gmo:home:{f}", "glide:{b}:gmo:flow:f"):
        assert 29 * 86400 < slots.client(key).ttl(key) <= 30 * 86400


def assert_unchanged(slots: Slots, again: Any) -> None:
    before = slots.stored()
    with pytest.raises(FlowExpired):
        slots.run(again)
    assert slots.stored() == before


def test_a_cancel_at_any_place_of_a_submission_ends_the_flow(slots: Slots) -> None:
    for place in places(19, 4):  # from the first call after which there is a record
        clear(slots)
        slow, is_over = slots.begun(slots.submission(TWO), place)
        slots.run(changes.cancel(slots.ref(), "enough", slots))
        assert slots.status()[0] == "cancelled", place
        for _ in slow:
            pass
        assert slots.run_jobs() == [], place
        assert slots.status() == ("cancelled", 0, 2), place
        slots.run(changes.retry_failed(slots.ref(), slots))
        assert Counter(slots.run_jobs()) == {"a": 1, "m": 1}, place
        if is_over:
            break


def test_a_removal_after_the_retention_is_continued_wherever_it_was_cut(slots: Slots) -> None:
    for cut in places(step=4):
        clear(slots)
        slots.submit(KEPT)
        slots.run_jobs()
        slots.now += 25 * 3_600_000
        _, sent = slots.run(upkeep.sweep(HOME, slots), cut)
        slots.run(upkeep.sweep(HOME, slots))
        assert not [key for key in slots.stored() if ":job:" in key or ":gmo:portable" in key], cut
        assert slots.status() == ("completed", 5, 0)
        if sent < cut:
            break


def test_a_flow_that_runs_again_is_kept(slots: Slots) -> None:
    slots.submit(KEPT)
    slots.run_jobs("~m")
    slots.run(changes.retry_failed(slots.ref(), slots))
    slots.now += 25 * 3_600_000
    slots.run(upkeep.sweep(HOME, slots))
    slots.run_jobs()
    assert slots.status() == ("completed", 5, 0)


def test_a_claim_without_a_flow_is_taken_over_by_the_next_submitter(slots: Slots) -> None:
    slots.submit(calls=1)
    with pytest.raises(FlowNotFound):
        slots.run(find_ref("glide", "f"))
    slots.submit(
        FlowSpec("n", [slot_node("a", queue="c"), slot_node("m", "a", queue="q"), slot_node("x", queue="c")])
    )
    assert slots.ref().home.queue == "c"
    with pytest.raises(FlowConflict):
        slots.submit()


def test_a_blocked_node_whose_dependencies_have_all_notified_it_is_woken(slots: Slots) -> None:
    slots.submit(TWO)
    PlainNode(slots.client("{b}"), "b", slots.now).run_all()
    slots.advance()
    worker = PlainNode(slots.client("{c}"), "c", slots.now)
    slots.client("{c}").delete("glide:{c}:stream")
    slots.client("{c}").hset("glide:{c}:job:f~m", "state", "waiting-children")
    slots.client("{c}").xgroup_create("glide:{c}:stream", "workers", "0", mkstream=True)
    slots.advance()
    assert worker.run_all() == ["f~m"]
    slots.advance()
    assert slots.status() == ("completed", 2, 0)


@pytest.mark.long
def test_no_call_notifies_or_carries_thousands(slots: Slots, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    answer = slots.answer

    def measured(call: Any) -> Any:
        sizes.append(len(call.words))
        return answer(call)

    monkeypatch.setattr(slots, "answer", measured)
    many = [slot_node(f"n{n}", "first", queue=QUEUES[n % 3]) for n in range(1_500)]
    slots.submit(FlowSpec("n", [slot_node("first"), *many, slot_node("last", *(one.name for one in many))]))
    assert max(sizes) < 1_100
    for client in slots.clients:
        sizes_of_notices = [client.scard(key) for key in client.scan_iter("*:parents:*")]
        assert max(sizes_of_notices, default=0) <= 50
    assert PlainNode(slots.client("{b}"), "b", slots.now).run_all() == ["f~first"]
    slots.advance()
    released = [slots.client(f"{{{name}}}").xlen(f"glide:{{{name}}}:stream") for name in QUEUES]
    assert sum(released) == 1_500


def test_rounds_of_a_record(slots: Slots) -> None:
    for number in (0, 1, 2):
        assert slots.run(ask(records.begin(HOME, "r", number, number + 5)))[0]
        assert not slots.run(ask(records.begin(HOME, "r", number, 99)))[0]
        slots.run(ask(records.end(HOME, "r", number, {"state": "failed"})))
    record, _ = slots.run(ask(records.record(HOME, "r")))
    assert (record.number, record.started_ms, record.state) == (2, 7, "failed")
    assert key_slot(HOME.base.encode()) == key_slot(b"b")
