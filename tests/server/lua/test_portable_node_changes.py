"""Nodes of portable flows run again or end by hand: whoever is killed or slow at any call, each once."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest

from glidemq_orchestrate import FlowSpec, FlowState
from glidemq_orchestrate.errors import FlowEnded, FlowExpired, NodeNotEnded
from glidemq_orchestrate.flows import outcome
from glidemq_orchestrate.flows.changes import change_nodes
from glidemq_orchestrate.flows.node_table import RequestedChange, What
from glidemq_orchestrate.flows.nodes import Selection
from glidemq_orchestrate.flows.portable import advance, changes, reading, upkeep
from glidemq_orchestrate.flows.portable.records import Record
from glidemq_orchestrate.flows.submission import restart_flow
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.builders import slot_node
from tests.node import PlainNode
from tests.profile import sampled
from tests.server.lua.portable_slots import FLOW, QUEUES, Slots, places

HOME = QueueKeys("glide", "b")
CLUSTER = pytest.mark.parametrize("slot_servers", ["cluster"], indirect=True)
GIVEN = '"by hand"'


def clear(slots: Slots) -> None:
    for client in slots.clients:
        client.flushall()


def change(slots: Slots, what: What, *names: str, request: str = "r") -> Op[list[str]]:
    return change_nodes(slots.ref(), Selection(names), RequestedChange(what, request, GIVEN), slots)


def supervised(slots: Slots) -> list[str]:
    """Workers and supervisors, and no client, do what is due; the nodes that ran."""
    ran: list[str] = []
    for _ in range(8):
        slots.now += 1
        slots.run(upkeep.sweep(slots.ref().home, slots))
        ran += [name for queue in QUEUES for name in run_queue(slots, queue)]
    return ran


def run_queue(slots: Slots, queue: str) -> list[str]:
    worker = PlainNode(slots.client(f"{{{queue}}}"), queue, slots.now)
    return [job_id.partition("~")[2] for job_id in worker.run_all()]


def states(slots: Slots) -> dict[str, str]:
    return {one.name: str(one.state) for one in slots.run(reading.nodes(slots.ref()))[0]}


def is_noted(slots: Slots) -> bool:
    return bool(slots.client(HOME.base).hexists(HOME.flow("f"), "note:1"))


def notes_left(slots: Slots) -> bool:
    return HOME.portable_notes("f") in slots.stored()


@pytest.mark.parametrize(
    ("what", "name", "again"),
    [
        ("follow", "a", ["a", "end", "m", "n"]),
        ("alone", "m", ["m"]),
        ("completed", "m", ["end"]),
        ("skipped", "n", []),
    ],
)
def test_what_a_caller_that_is_killed_has_noted_is_done(
    slots: Slots, what: What, name: str, again: list[str]
) -> None:
    for cut in places(1):
        clear(slots)
        slots.submit()
        slots.run_jobs()
        _, sent = slots.run(change(slots, what, name), cut)
        was_noted = is_noted(slots)
        assert sorted(supervised(slots)) == (again if was_noted else []), cut
        if not was_noted:
            assert slots.status() == ("completed", 5, 0), cut
        assert slots.run(change(slots, what, name))[0] == [name], cut
        ran = supervised(slots)
        assert sorted(ran) == ([] if was_noted else again), cut
        assert states(slots)[name] == ("skipped" if what == "skipped" else "completed"), cut
        assert slots.run(reading.status(slots.ref()))[0].state.is_terminal, cut
        if what == "completed":
            assert slots.run(outcome.results(slots.ref()))[0][name] == "by hand", cut
        assert HOME.key("gmo:portable") not in slots.stored(), cut
        if sent < cut:
            break
    assert cut > 25
    assert not notes_left(slots)


def test_what_waits_for_a_worker_waits_for_what_runs_again_alone(slots: Slots) -> None:
    for cut in places(1):
        clear(slots)
        slots.submit()
        assert run_queue(slots, "b") == ["a"]
        slots.advance()
        _, sent = slots.run(change(slots, "alone", "a"), cut)
        was_noted = is_noted(slots)
        slots.run(change(slots, "alone", "a") if sent < cut else advance.advance(slots.ref(), slots))
        if was_noted:
            assert {states(slots)[name] for name in "mn"} == {"waiting-children"}, cut
            assert run_queue(slots, "c") == [], cut
        assert sorted(supervised(slots)) == [*(["a"] if was_noted else []), "end", "m", "n", "side"], cut
        assert slots.status() == ("completed", 5, 0), cut
        if sent < cut:
            break
    assert cut > 25


@CLUSTER
@pytest.mark.parametrize("second", ["follow", "completed"])
def test_a_change_at_any_place_of_another(slots: Slots, second: What) -> None:
    for place in places():
        clear(slots)
        slots.submit()
        slots.run_jobs()
        slow, is_over = slots.begun(change(slots, "follow", "a", request="slow"), place)
        slots.run(change(slots, second, "side", request="quick"))
        for _ in slow:
            pass
        ran = Counter(supervised(slots))
        assert ran == Counter(["a", "m", "n", "end", *(["side"] if second == "follow" else [])]), place
        assert slots.status() == ("completed", 5, 0), place
        if is_over:
            break
    assert place > 25


@CLUSTER
def test_the_same_request_twice_at_any_place_is_one(slots: Slots) -> None:
    for place in places():
        clear(slots)
        slots.submit()
        slots.run_jobs()
        slow, is_over = slots.begun(change(slots, "follow", "m"), place)
        assert slots.run(change(slots, "follow", "m"))[0] == ["m"], place
        ran = supervised(slots)
        for _ in slow:
            pass
        assert sorted(ran + supervised(slots)) == ["end", "m"], place
        assert slots.status() == ("completed", 5, 0), place
        if is_over:
            break


@CLUSTER
def test_a_slow_advance_releases_nothing_that_waits_for_what_runs_again(slots: Slots) -> None:
    for place in places():
        clear(slots)
        slots.submit()
        run_queue(slots, "b")  # a; m, n and side are in their streams
        run_queue(slots, "c")
        slow, is_over = slots.begun(advance.advance(slots.ref(), slots), place)
        slots.run(change(slots, "follow", "a"))
        for _ in slow:
            pass
        assert run_queue(slots, "c") == [], place
        assert run_queue(slots, "q") == ["side"], place
        assert sorted(supervised(slots)) == ["a", "end", "m", "n"], place
        assert slots.status() == ("completed", 5, 0), place
        if is_over:
            break
    assert place > 8


@CLUSTER
def test_what_waits_for_a_node_that_runs_again_alone_waits_for_it_anew(slots: Slots) -> None:
    slots.submit(
        FlowSpec(
            "n", [slot_node("x"), slot_node("y"), slot_node("end", "x", "y"), slot_node("far", queue="c")]
        )
    )
    worker = PlainNode(slots.client("{b}"), "b", slots.now)
    first, second = worker.begin_next(), worker.begin_next()
    assert first is not None
    assert second is not None
    worker.end(*first)
    slots.run(change(slots, "alone", first[0].partition("~")[2]))
    again = worker.begin_next()
    assert again is not None
    assert again[0] == first[0]
    worker.end(*second)
    assert (worker.begin_next(), states(slots)["end"]) == (None, "waiting-children")
    worker.end(*again)
    assert sorted(supervised(slots)) == ["end", "far"]
    assert slots.status() == ("completed", 4, 0)


@CLUSTER
def test_a_cancel_and_a_change_may_meet_at_any_place(slots: Slots) -> None:
    for place, is_slow_cancel in itertools.product(sampled(range(60), 9), (False, True)):
        clear(slots)
        slots.submit()
        run_queue(slots, "b")
        slots.advance()
        both = [change(slots, "follow", "a"), changes.cancel(slots.ref(), "enough", slots)]
        slow, _ = slots.begun(both[is_slow_cancel], place)
        cancelled_at = is_noted(slots)
        with suppress(FlowEnded, NodeNotEnded):
            slots.run(both[not is_slow_cancel])
        with suppress(FlowEnded, NodeNotEnded):
            for _ in slow:
                pass
        ran = supervised(slots)
        state = slots.run(reading.status(slots.ref()))[0].state
        if is_slow_cancel or cancelled_at:
            assert state is FlowState.CANCELLED or sorted(ran) == ["a", "end", "m", "n"], place
        assert state.is_terminal, (place, is_slow_cancel)
        assert "active" not in states(slots).values()
        assert supervised(slots) == []


@CLUSTER
def test_a_cancel_that_was_meant_for_the_round_before_holds_for_the_next(slots: Slots) -> None:
    slots.submit()
    run_queue(slots, "b")
    slots.advance()
    slow, _ = slots.begun(changes.cancel(slots.ref(), "enough", slots), 1)  # it has read the record
    slots.run(change(slots, "follow", "a"))
    for _ in slow:
        pass
    assert slots.run(reading.status(slots.ref()))[0].reason == "enough"
    assert (supervised(slots), slots.status()[0]) == ([], "cancelled")


@CLUSTER
def test_a_flow_removed_at_any_place_of_a_change_runs_or_is_gone(slots: Slots) -> None:
    kept = replace(FLOW, retention=timedelta(0))
    outcomes = set()
    for place in places():
        clear(slots)
        slots.submit(kept)
        slots.run_jobs()
        slow, is_over = slots.begun(change(slots, "follow", "m"), place)
        slots.run(upkeep.sweep(HOME, slots))
        try:
            for _ in slow:
                pass
            outcomes.add("runs")
            assert sorted(supervised(slots)) == ["end", "m"], place
        except FlowExpired:
            outcomes.add("gone")
            assert supervised(slots) == [], place
        slots.run(upkeep.sweep(HOME, slots))
        assert [key for key in slots.stored() if ":job:" in key] == [], place
        if is_over:
            break
    assert outcomes == {"runs", "gone"}


@CLUSTER
def test_a_generation_that_begins_at_any_place_of_a_change_is_the_one(slots: Slots) -> None:
    for place in places():
        clear(slots)
        slots.submit()
        slots.run_jobs()
        slow, is_over = slots.begun(change(slots, "follow", "a"), place)
        ref, _ = slots.run(restart_flow(slots.ref(), "", slots))
        with suppress(Exception):
            for _ in slow:
                pass
        assert Counter(supervised(slots)) == Counter(["a", "m", "n", "end", "side"]), place
        assert (slots.ref(), slots.status()) == (ref, ("completed", 5, 0)), place
        if is_over:
            break


@CLUSTER
def test_the_late_end_of_a_node_that_was_taken_away_does_not_count(slots: Slots) -> None:
    slots.submit()
    run_queue(slots, "b")
    slots.advance()
    worker = PlainNode(slots.client("{c}"), "c", slots.now)
    taken = worker.begin_next()
    assert taken is not None
    slots.run(change(slots, "follow", "a"))
    worker.end(*taken, '"stale"')
    assert supervised(slots) == ["a", "side", "m", "n", "end"]
    assert slots.run(outcome.results(slots.ref()))[0]["m"] == "f~m"


@CLUSTER
def test_a_submission_that_another_generation_overtakes_joins_it(slots: Slots) -> None:
    for place in places(9):
        clear(slots)
        slow, is_over = slots.begun(slots.submission(), place)
        slots.submit()
        restarted, _ = slots.run(restart_flow(slots.ref(), "", slots))
        try:
            while True:
                next(slow)
        except StopIteration as stop:
            joined = stop.value
        if not is_over:
            assert joined.generation in (0, 1), place
        assert slots.ref() == restarted, place
        assert Counter(supervised(slots)) == Counter(["a", "m", "n", "end", "side"]), place
        if is_over:
            break
    assert place > 20


def test_what_was_asked_of_a_round_holds_for_one_that_goes_on_with_it() -> None:
    going_on = json.dumps({"what": "follow", "nodes": "x", "request": "", "goes_on": True})
    fields = {
        "begin:0": "5 0",
        "cancel:0": json.dumps({"how": "cancelled", "reason": "enough"}),
        "note:1": going_on,
    }

    before, after = Record.read(fields), Record.read(fields | {"begin:1": "9 0"})
    assert (before.number, before.note["what"]) == (0, "follow")
    assert (after.number, after.lasting, after.note) == (1, [1, 0], {})
    assert (after.cancel["reason"], after.started_ms, after.begun_ms(1)) == ("enough", 5, 9)
    anew = fields | {"begin:1": "9 0", "note:1": going_on.replace("true", "false"), "end:0": "{}"}
    assert (Record.read(anew).cancel, Record.read(anew).started_ms) == ({}, 9)
    assert Record.read(fields | {"begin:1": "9 -1"}).note == {}
