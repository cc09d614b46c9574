"""Clients of portable flows that meet at the worst moment: found by the simulation, call by call here."""

from __future__ import annotations

import itertools
from contextlib import suppress
from datetime import timedelta

import pytest

from glidemq_orchestrate import FlowNode, FlowSpec
from glidemq_orchestrate.attempts.exchange import Answer, Kind, Outcome, Request, finish_and_fetch
from glidemq_orchestrate.errors import FlowExpired
from glidemq_orchestrate.flows.changes import change_nodes
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.node_table import RequestedChange
from glidemq_orchestrate.flows.nodes import Selection
from glidemq_orchestrate.flows.portable import advance, changes, reading, records, upkeep
from glidemq_orchestrate.flows.portable.staging import relist
from glidemq_orchestrate.flows.submission import restart_flow
from glidemq_orchestrate.wire.call import ask
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.builders import slot_node
from tests.node import PlainNode
from tests.profile import sampled
from tests.server.lua.portable_slots import Slots, places

HOME = QueueKeys("glide", "b")
TWO = FlowSpec("n", [slot_node("a"), slot_node("m", "a", queue="c")])


def clear(slots: Slots) -> None:
    for client in slots.clients:
        client.flushall()


@pytest.mark.parametrize("slot_servers", ["cluster"], indirect=True)
def test_a_node_that_ends_at_any_place_of_a_cancel_is_counted_as_it_ended(slots: Slots) -> None:
    def exchange(*outcomes: Outcome) -> Answer:
        request = Request(outcomes, wanted=1, token="t")
        answer: Answer = slots.run(ask(finish_and_fetch(HOME, "gmo-worker-1", request, slots.now)))[0]
        return answer

    for place in places(step=4):
        clear(slots)
        slots.submit(TWO)
        (attempt,) = exchange().fetched
        slow, is_over = slots.begun(changes.cancel(slots.ref(), "enough", slots), place)
        exchange(Outcome(attempt, Kind.DONE, "1"))
        for _ in slow:
            pass
        nodes = slots.run(reading.nodes(slots.ref()))[0]
        completed = sum(one.state == "completed" for one in nodes)
        assert slots.status() == ("cancelled", completed, 2 - completed), place
        if is_over:
            break
    assert place > 5


def test_an_abandoned_submission_leaves_nothing_wherever_it_was_cut(slots: Slots) -> None:
    home = QueueKeys("glide", check_flow(TWO).home)
    for cut in places(1, 4):
        clear(slots)
        _, sent = slots.submit(TWO, calls=cut)
        if sent < cut:
            break
        slots.now += upkeep.ABANDONED_MS + 1
        slots.run(upkeep.sweep(home, slots))
        if f"{home.flows()}:state:running" in slots.stored():  # all of it was submitted
            break
        left = [
            key for key in slots.stored() if ":gmo:flow" in key or ":job:" in key or ":gmo:portable" in key
        ]
        assert left == [], cut
    assert cut > 15


@pytest.mark.long
def test_a_flow_is_listed_under_its_end_whatever_a_slow_client_does(slots: Slots) -> None:
    home = QueueKeys("glide", check_flow(TWO).home)
    index = f"{home.flows()}:state:"
    for before, after in itertools.product(range(1, 6), repeat=2):
        clear(slots)
        slots.submit(TWO)
        slots.client(home.base).hdel(home.flow("f"), "listed")
        slow = slots.trips(relist(slots.ref()))
        for _ in range(before):
            next(slow, None)
        slots.run(changes.cancel(slots.ref(), "enough", slots))
        for _ in range(after):
            next(slow, None)
        slow.close()
        slots.run(upkeep.sweep(home, slots))
        listed = [key for key in slots.stored() if key.startswith(index)]
        assert listed == [f"{index}cancelled"], (before, after)
        assert not slots.client(home.base).exists(home.key("gmo:portable"))


@pytest.mark.parametrize("slot_servers", ["cluster"], indirect=True)
def test_clients_that_list_a_flow_together_leave_it_under_its_end(slots: Slots) -> None:
    home = QueueKeys("glide", check_flow(TWO).home)
    index = f"{home.flows()}:state:"
    for place, more in itertools.product((9, 11), range(30, 60, 3)):
        clear(slots)
        slots.submit(TWO)
        slots.client(home.base).hdel(home.flow("f"), "listed")
        slow = slots.steps(relist(slots.ref()))
        other = slots.steps(changes.cancel(slots.ref(), "enough", slots))
        for _ in range(place):
            next(slow, None)
        for _ in range(more):
            next(other, None)
        for late in (slow, other):
            for _ in late:
                pass
        slots.run(upkeep.sweep(home, slots))
        assert [key for key in slots.stored() if key.startswith(index)] == [f"{index}cancelled"], (
            place,
            more,
        )


KEPT = FlowSpec("n", TWO.nodes, retention=timedelta(0))


@pytest.mark.parametrize("slot_servers", ["cluster"], indirect=True)
def test_a_flow_is_removed_or_runs_again_wherever_the_two_meet(slots: Slots) -> None:
    home = QueueKeys("glide", check_flow(KEPT).home)
    for place, more in itertools.product(sampled(range(1, 60), 4), range(0, 3, 2)):
        clear(slots)
        slots.submit(KEPT)
        slots.run_jobs()
        slots.now += 1
        slow, is_over = slots.begun(upkeep.sweep(home, slots), place)
        with suppress(FlowExpired):
            slots.run(restart_flow(slots.ref(), "", slots))
        for _ in range(more):
            next(slow, None)
        slow.close()
        slots.run_jobs()
        slots.now += 1
        for _ in range(2):
            slots.run(upkeep.sweep(home, slots))
        assert slots.status() == ("completed", 2, 0), (place, more)
        assert not [key for key in slots.stored() if ":job:" in key], (place, more)
        if is_over:
            break
    assert is_over


@pytest.mark.parametrize("slot_servers", ["cluster"], indirect=True)
def test_a_removed_flow_is_not_listed_whatever_a_slow_client_lists(slots: Slots) -> None:
    home = QueueKeys("glide", check_flow(KEPT).home)
    for place in places(1, 4):
        clear(slots)
        slots.submit(KEPT)
        slots.run_jobs()
        slots.now += 1
        slots.client(home.base).hdel(home.flow("f"), "listed")
        slow, is_over = slots.begun(advance.close(slots.ref(), slots), place)
        slots.run(upkeep.sweep(home, slots))
        for _ in slow:
            pass
        for _ in range(2):
            slots.run(upkeep.sweep(home, slots))
        assert not [key for key in slots.stored() if ":gmo:flows" in key or ":gmo:portable" in key], place
        if is_over:
            break
    assert place > 5


@pytest.mark.long
@pytest.mark.parametrize("slot_servers", ["cluster"], indirect=True)
def test_a_flow_is_removed_wherever_a_rerun_of_it_is_killed(slots: Slots) -> None:
    home = QueueKeys("glide", check_flow(KEPT).home)
    for cut in itertools.count(1):
        clear(slots)
        slots.submit(KEPT)
        slots.run_jobs()
        change = RequestedChange("follow", "r", "")
        _, sent = slots.run(change_nodes(slots.ref(), Selection(["a"]), change, slots), cut)
        for _ in range(5):
            slots.now += 1
            slots.run(upkeep.sweep(home, slots))
            slots.run_jobs()
        assert not [key for key in slots.stored() if ":job:" in key or ":gmo:portable" in key], cut
        if sent < cut:
            break
    assert cut > 20


@pytest.mark.parametrize("slot_servers", ["cluster"], indirect=True)
def test_a_flow_that_ends_while_a_slow_sweep_keeps_it_is_removed(slots: Slots) -> None:
    home = QueueKeys("glide", check_flow(KEPT).home)
    for place in range(1, 12):
        clear(slots)
        slots.submit(KEPT)
        # The client that ended the round before scheduled the removal late.
        slots.run(ask(records.expire_at(home, "f", slots.now)))
        (_, mark), _ = slots.run(records.delist(home, "f", slots.now))
        slots.run(ask(records.delisted(home, mark)))
        slow, _ = slots.begun(upkeep.sweep(home, slots), place)
        slots.run_jobs()
        for _ in slow:
            pass
        for _ in range(3):
            slots.now += 1
            slots.run(upkeep.sweep(home, slots))
        assert not [key for key in slots.stored() if ":job:" in key or ":gmo:portable" in key], place


@pytest.mark.long
@pytest.mark.parametrize("slot_servers", ["cluster"], indirect=True)
def test_a_slow_submission_of_a_removed_flow_leaves_no_jobs_and_no_tables(slots: Slots) -> None:
    home = QueueKeys("glide", check_flow(KEPT).home)
    for place in places(1, 4):
        clear(slots)
        slow, is_over = slots.begun(slots.submission(KEPT), place)
        slots.submit(KEPT)
        slots.run(changes.cancel(slots.ref(), "enough", slots))
        slots.now += 1
        slots.run(upkeep.sweep(home, slots))
        for _ in slow:
            pass
        for _ in range(3):
            slots.now += 1
            slots.run(upkeep.sweep(home, slots))
        kinds = (":job:", ":deps:", ":gmo:flow:f:", ":gmo:portable")
        assert not [key for key in slots.stored() if any(kind in key for kind in kinds)], place
        if is_over:
            break
    assert place > 10


@pytest.mark.parametrize("slot_servers", ["cluster"], indirect=True)
def test_a_submission_that_is_killed_after_its_flow_was_removed_leaves_nothing(slots: Slots) -> None:
    home = QueueKeys("glide", check_flow(KEPT).home)
    for place in itertools.count(1):
        clear(slots)
        slow = slots.trips(slots.submission(KEPT))
        is_over = [next(slow, "over") for _ in range(place)][-1] == "over"
        slots.submit(KEPT)
        slots.run(changes.cancel(slots.ref(), "enough", slots))
        slots.now += 1
        slots.run(upkeep.sweep(home, slots))
        next(slow, None)
        slow.close()
        for _ in range(3):
            slots.now += upkeep.ABANDONED_MS + 1
            slots.run(upkeep.sweep(home, slots))
        kinds = (":job:", ":deps:", ":gmo:flow:f:", ":gmo:portable")
        assert not [key for key in slots.stored() if any(kind in key for kind in kinds)], place
        if is_over:
            break
    assert place > 10


SPLIT = FlowSpec(
    "n",
    [
        FlowNode("a", queue="b", job="work", on_failure="skip"),
        FlowNode("e", queue="c", job="work"),
        slot_node("n", "a", "e", queue="q"),
        FlowNode("last", queue="b", job="work", after=["n"], rule="one_failed"),
    ],
)


@pytest.mark.parametrize("slot_servers", ["cluster"], indirect=True)
def test_clients_that_decide_differently_go_by_what_was_accepted(slots: Slots) -> None:
    """One has seen a skipped dependency, the other also a failed one; what a server takes first counts."""
    for place, more in itertools.product(range(7, 11), range(4)):
        clear(slots)
        slots.submit(SPLIT)
        assert PlainNode(slots.client("{b}"), "b", slots.now).run_all("~a") == ["f~a"]
        saw_less = slots.steps(advance.advance(slots.ref(), slots))
        for _ in range(place):
            next(saw_less, None)
        assert PlainNode(slots.client("{c}"), "c", slots.now).run_all("~e") == ["f~e"]
        saw_more = slots.steps(advance.advance(slots.ref(), slots))
        for _ in range(8):
            next(saw_more, None)
        for _ in range(more):
            next(saw_less, None)
        for late in (saw_more, saw_less):
            for _ in late:
                pass
        slots.advance()
        ran = slots.run_jobs()
        found = {one.name: str(one.state) for one in slots.run(reading.nodes(slots.ref()))[0]}
        expected = (
            ("skipped", "skipped", []) if found["n"] == "skipped" else ("failed", "completed", ["last"])
        )
        assert (found["n"], found["last"], ran) == expected, (place, more)
