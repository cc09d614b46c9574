"""Generations of portable flows: whoever is killed or slow at any call, one is current and runs once."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from glidemq_orchestrate import FlowNode, FlowSpec
from glidemq_orchestrate.errors import FlowConflict, FlowNotFound, GenerationTaken, Superseded
from glidemq_orchestrate.flows import outcome
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.index import find_flow, flow_history
from glidemq_orchestrate.flows.portable import advance, changes, reading, upkeep
from glidemq_orchestrate.flows.status import OnExisting
from glidemq_orchestrate.flows.submission import MAX_TRIES, begin_next, restart_flow, submit_flow
from glidemq_orchestrate.wire.call import Batch, Call, Op, Request
from glidemq_orchestrate.wire.keys import QueueKeys, node_job_id
from tests.builders import slot_node
from tests.node import PlainNode
from tests.profile import sampled
from tests.server.lua.portable_slots import QUEUES, Slots, places

HOME = QueueKeys("glide", "b")
# a(b) -> m(c) -> n(b)
OLD = FlowSpec("n", [slot_node("a"), slot_node("m", "a", queue="c"), slot_node("n", "m")])
MENDED = FlowSpec("n", [OLD.nodes[0], replace(OLD.nodes[1], data="mended"), OLD.nodes[2]])
CLUSTER = pytest.mark.parametrize("slot_servers", ["cluster"], indirect=True)


def clear(slots: Slots) -> None:
    for client in slots.clients:
        client.flushall()


def begin(
    slots: Slots, spec: FlowSpec = MENDED, how: OnExisting = "restart", request: str = "r"
) -> Op[FlowRef]:
    checked = replace(check_flow(spec), request=request)
    return submit_flow("glide", checked, "f", how, slots, reach=slots.reach)


def failed(slots: Slots) -> None:
    """The flow has run, and m has failed."""
    slots.submit(OLD)
    slots.run_jobs("~m")
    assert slots.status() == ("failed", 1, 2)


def swept(slots: Slots) -> None:
    """Supervisors do what is due, as often as it takes."""
    for _ in range(3):
        slots.now += 1
        slots.run(upkeep.sweep(HOME, slots))


def supervised(slots: Slots) -> list[str]:
    """Workers and supervisors, and no client, do what is due; the nodes that ran."""
    ran: list[str] = []
    for _ in range(5):
        swept(slots)
        for name in QUEUES:
            ended = PlainNode(slots.client(f"{{{name}}}"), name, slots.now).run_all()
            ran += [job_id.partition("~")[2] for job_id in ended]
    swept(slots)
    return ran


def history(slots: Slots) -> list[tuple[int, str]]:
    found = slots.run(flow_history(slots.ref()))[0]
    return [(one.generation, str(one.state)) for one in found]


def of_others(slots: Slots) -> list[str]:
    """What is left of generations that are not current, apart from the records of those that were."""
    stored = slots.ref().flow_id
    number = slots.ref().generation
    job = f"f@{stored.partition('{')[2].rstrip('}')}~" if number else "f~"
    jobs = [key for key in slots.stored() if ":job:" in key or ":deps:" in key or ":parents:" in key]
    records = [key for key in slots.stored() if ":gmo:flow:f" in key or ":gmo:portable:" in key]
    kept = {HOME.flow(one.stored_as) for one in slots.run(flow_history(slots.ref()))[0]}
    own = (f":{stored}", f":{stored}:nodes")
    left = [key for key in jobs if f":{job}" not in key]
    left += [key for key in records if not key.endswith(own) and key not in kept]
    lists = (f"{HOME.flows()}", HOME.key("gmo:portable"), HOME.key("gmo:portable:expiring"))
    client = slots.client(HOME.base)
    return left + [f"{key} {one}" for key in lists for one in client.zrange(key, 0, -1) if one != stored]


@pytest.mark.parametrize("how", ["restart", "retry_failed"])
def test_a_beginning_cut_anywhere_is_completed_by_a_repeat(slots: Slots, how: OnExisting) -> None:
    for cut in places(1):
        clear(slots)
        failed(slots)
        _, sent = slots.run(begin(slots, how=how), cut)
        ref, _ = slots.run(begin(slots, how=how))
        assert (ref.generation, ref) == (1, slots.ref()), cut
        ran = slots.run_jobs()
        assert Counter(ran) == Counter("amn" if how == "restart" else "mn"), cut
        assert slots.status() == ("completed", 3, 0), cut
        swept(slots)
        assert history(slots) == [(0, "failed"), (1, "completed")], cut
        assert of_others(slots) == [], cut
        if sent < cut:
            break
    assert cut > 40


@pytest.mark.parametrize("how", ["restart", "retry_failed"])
def test_a_beginning_cut_anywhere_is_completed_or_removed_by_supervisors(
    slots: Slots, how: OnExisting
) -> None:
    began: list[int] = []
    for cut in places(1):
        clear(slots)
        failed(slots)
        _, sent = slots.run(begin(slots, how=how), cut)
        slots.now += upkeep.ABANDONED_MS + 1
        ran = supervised(slots)
        number = slots.ref().generation
        if number:
            assert Counter(ran) == Counter("amn" if how == "restart" else "mn"), cut
            assert slots.status() == ("completed", 3, 0), cut
        else:
            assert (ran, slots.status()) == ([], ("failed", 1, 2)), cut
        assert of_others(slots) == [], cut
        began.append(number)
        if sent < cut:
            break
    assert began == sorted(began)  # from some call on it takes place
    assert {0, 1} == set(began)


@pytest.mark.long
@CLUSTER
def test_the_one_before_is_cancelled_wherever_the_beginning_is_cut(slots: Slots) -> None:
    for cut in itertools.count(1, 3):
        clear(slots)
        slots.submit(OLD)
        PlainNode(slots.client("{b}"), "b", slots.now).run_all()  # a has run
        _, sent = slots.run(begin(slots), cut)
        slots.run(begin(slots))
        ran = supervised(slots)
        assert slots.status() == ("completed", 3, 0), cut
        assert Counter(ran)["a"] == 1, cut
        assert history(slots) == [(0, "cancelled"), (1, "completed")], cut
        assert of_others(slots) == [], cut
        if sent < cut:
            break


@pytest.mark.long
@CLUSTER
@pytest.mark.parametrize("slow_how", ["restart", "retry_failed"])
@pytest.mark.parametrize("how", ["restart", "retry_failed"])
def test_two_who_begin_at_once_begin_one_after_the_other(
    slots: Slots, slow_how: OnExisting, how: OnExisting
) -> None:
    other = FlowSpec("n", [*MENDED.nodes[:2], replace(OLD.nodes[2], data="other")])
    for place in places():
        clear(slots)
        failed(slots)
        slow, is_over = slots.begun(begin(slots, MENDED, slow_how, "one"), place)
        if is_over:
            break
        second, _ = slots.run(begin(slots, other, how, "two"))
        first = finish(slow)
        assert sorted([first.generation, second.generation]) == [1, 2], place
        supervised(slots)
        assert slots.status() == ("completed", 3, 0), place
        assert [number for number, _ in history(slots)] == [0, 1, 2], place
        assert of_others(slots) == [], place
        requests = [one.idempotency_key for one in slots.run(flow_history(slots.ref()))[0]]
        assert set(requests) == {"", "one", "two"}, place
    assert place > 40


@pytest.mark.long
@CLUSTER
def test_the_same_request_of_two_at_once_begins_one(slots: Slots) -> None:
    for place in places():
        clear(slots)
        failed(slots)
        slow, is_over = slots.begun(begin(slots), place)
        if is_over:
            break
        second, _ = slots.run(begin(slots))
        assert finish(slow) == second, place
        supervised(slots)
        assert slots.status() == ("completed", 3, 0), place
        assert history(slots) == [(0, "failed"), (1, "completed")], place
        assert of_others(slots) == [], place


@pytest.mark.long
@CLUSTER
def test_two_who_take_turns(slots: Slots) -> None:
    for sizes in itertools.product(sampled((1, 2, 3, 5, 8), 2), repeat=2):
        clear(slots)
        failed(slots)
        both = [slots.steps(begin(slots, request=request)) for request in ("one", "two")]
        live = list(zip(both, sizes, strict=True))
        while live:
            live = [
                (steps, size)
                for steps, size in live
                if all(next(steps, "over") != "over" for _ in range(size))
            ]
        supervised(slots)
        assert slots.status() == ("completed", 3, 0), sizes
        assert [number for number, _ in history(slots)] == [0, 1, 2], sizes
        assert of_others(slots) == [], sizes


def finish(slow: Generator[None, None, Any]) -> FlowRef:
    """What the rest of an operation returns."""
    found: list[FlowRef] = []

    def rest() -> Generator[None, None, None]:
        found.append((yield from slow))

    for _ in rest():
        pass
    return found[0]


@CLUSTER
@pytest.mark.parametrize("late", [0, upkeep.ABANDONED_MS + 1], ids=["now", "as if abandoned"])
def test_a_sweep_at_any_place_of_a_beginning(slots: Slots, late: int) -> None:
    for place in places():
        clear(slots)
        failed(slots)
        slow, is_over = slots.begun(begin(slots), place)
        if is_over:
            break
        slots.now += late
        swept(slots)
        assert finish(slow).generation == 1, place
        assert Counter(slots.run_jobs()) == Counter("amn"), place
        supervised(slots)
        assert slots.status() == ("completed", 3, 0), place
        assert history(slots) == [(0, "failed"), (1, "completed")], place
        assert of_others(slots) == [], place


@CLUSTER
def test_a_retry_at_any_place_of_a_beginning(slots: Slots) -> None:
    """The one before runs again, and is cancelled; or the retry comes too late."""
    for place in places():
        clear(slots)
        failed(slots)
        old = slots.ref()
        slow, is_over = slots.begun(begin(slots), place)
        if is_over:
            break
        with suppress(Superseded):
            slots.run(changes.retry_failed(old, slots))
        assert finish(slow).generation == 1, place
        assert Counter(supervised(slots))["a"] == 1, place
        assert slots.status() == ("completed", 3, 0), place
        assert history(slots)[0][1] in ("failed", "cancelled"), place
        assert of_others(slots) == [], place


@CLUSTER
def test_a_beginning_at_any_place_of_a_retry(slots: Slots) -> None:
    for place in places():
        clear(slots)
        failed(slots)
        old = slots.ref()
        slow, is_over = slots.begun(changes.retry_failed(old, slots), place)
        slots.run(begin(slots))
        with suppress(Superseded):
            for _ in slow:
                pass
        assert Counter(supervised(slots)) == Counter("amn"), place
        assert slots.status() == ("completed", 3, 0), place
        assert of_others(slots) == [], place
        if is_over:
            break


@pytest.mark.long
@CLUSTER
def test_the_removal_of_the_one_before_stays_due_whatever_a_slow_client_does(slots: Slots) -> None:
    failed(slots)
    _, calls = slots.run(begin(slots))
    for place in range(calls - 30, calls):
        clear(slots)
        failed(slots)
        slow, _ = slots.begun(begin(slots), place)
        slots.run(begin(slots))
        for _ in slow:  # it may be killed at each call
            assert slots.client(HOME.base).zscore(HOME.key("gmo:portable:expiring"), "f"), place


@CLUSTER
def test_a_submission_that_is_overtaken_runs_nothing(slots: Slots) -> None:
    """Another specification takes the place of a flow that is still being submitted."""
    for place in places(15):
        clear(slots)
        slow, is_over = slots.begun(slots.submission(OLD), place)
        ref, _ = slots.run(begin(slots))
        with suppress(FlowConflict):
            for _ in slow:
                pass
        assert Counter(supervised(slots)) == Counter("amn"), place
        assert (ref.generation, slots.ref()) == (1, ref), place
        assert slots.status() == ("completed", 3, 0), place
        assert history(slots) == [(0, "cancelled"), (1, "completed")], place
        assert of_others(slots) == [], place
        if is_over:
            break
    assert place > 20


KEPT = FlowSpec("n", OLD.nodes, retention=timedelta(0))


def assert_kept(slots: Slots) -> None:
    """Nothing that is kept of the flow expires."""
    records = [HOME.flow(one.stored_as) for one in slots.run(flow_history(slots.ref()))[0]]
    for key in ("glide:gmo:home:{f}", HOME.generations("f"), *records):
        assert slots.client(key).ttl(key) == -1, key


@CLUSTER
def test_the_removal_of_a_flow_at_any_place_of_a_beginning(slots: Slots) -> None:
    """A tombstone ends with its claim, except where the flow runs again."""
    mended = FlowSpec("n", MENDED.nodes)
    for place in places():
        clear(slots)
        slots.submit(KEPT)
        slots.run_jobs()
        slots.now += 1
        slow, is_over = slots.begun(begin(slots, mended, "retry_failed"), place)
        if is_over:
            break
        swept(slots)
        assert finish(slow).generation == 1, place
        supervised(slots)
        assert slots.status() == ("completed", 3, 0), place
        assert_kept(slots)


@CLUSTER
def test_a_beginning_at_any_place_of_the_removal(slots: Slots) -> None:
    mended = FlowSpec("n", MENDED.nodes)
    for place in places():
        clear(slots)
        slots.submit(KEPT)
        slots.run_jobs()
        slots.now += 1
        slow, is_over = slots.begun(upkeep.sweep(HOME, slots), place)
        slots.run(begin(slots, mended, "retry_failed"))
        for _ in slow:
            pass
        supervised(slots)
        assert slots.status() == ("completed", 3, 0), place
        assert_kept(slots)
        assert of_others(slots) == [], place
        if is_over:
            break


def test_a_node_worker_that_reports_too_late_changes_nothing(slots: Slots) -> None:
    slots.submit(OLD)
    worker = PlainNode(slots.client("{b}"), "b", slots.now)
    taken = worker.begin_next()
    assert taken is not None
    slots.run(begin(slots))
    before = slots.run(reading.nodes(slots.ref()))[0]
    worker.end(*taken)
    slots.run(advance.advance(replace(slots.ref(), flow_id="f"), slots))
    assert slots.run(reading.nodes(slots.ref()))[0] == before
    assert Counter(slots.run_jobs()) == Counter("amn")
    assert history(slots) == [(0, "cancelled"), (1, "completed")]


def test_what_is_kept_is_there_when_the_one_before_is_gone(slots: Slots) -> None:
    failed(slots)
    slots.run(begin(slots, how="retry_failed"))
    swept(slots)
    assert not [key for key in slots.stored() if ":job:f~" in key]
    assert slots.run(outcome.results(slots.ref()))[0] == {"a": "f~a"}
    assert slots.run_jobs() == ["m", "n"]
    results = slots.run(outcome.results(slots.ref()))[0]
    assert results["a"] == "f~a"
    assert set(results) == set("amn")


@pytest.mark.long
def test_a_job_that_is_removed_while_it_is_carried_over_runs_again(slots: Slots) -> None:
    for place in range(0, 60, 2):
        clear(slots)
        failed(slots)
        slow, _ = slots.begun(begin(slots, how="retry_failed"), place)
        slots.client("{b}").delete("glide:{b}:job:f~a")
        assert finish(slow).generation == 1, place
        slots.run_jobs()
        assert slots.status() == ("completed", 3, 0), place


def test_a_job_outside_the_flow_refuses_a_generation_and_nothing_is_left(slots: Slots) -> None:
    failed(slots)
    stored = next(
        str(call.words[1]).partition(":gmo:flow:")[2]
        for request in requests(slots, begin(slots))
        for call in calls_of(request)
        if call.words[0] == "HSETNX"
    )
    swept(slots)
    key = QueueKeys("glide", "c").job(node_job_id(stored, "m"))
    slots.client("{c}").hset(key, mapping={"name": "odd", "state": "waiting"})
    with pytest.raises(FlowConflict):
        slots.run(begin(slots))
    slots.client("{c}").delete(key)
    assert of_others(slots) == []
    assert slots.status() == ("failed", 1, 2)


def requests(slots: Slots, op: Op[Any]) -> Iterator[Request]:
    """The requests of an operation, before each is sent."""
    request = next(op)
    while True:
        yield request
        answers = [slots.answer(call) for call in calls_of(request)]
        request = op.send(answers if isinstance(request, Batch) else answers[0])


def test_a_flow_that_is_gone_cannot_be_begun_anew_by_its_handle(slots: Slots) -> None:
    failed(slots)
    ref = slots.ref()
    clear(slots)
    with pytest.raises(FlowNotFound):
        slots.run(restart_flow(ref, "", slots))


@pytest.mark.long
@CLUSTER
def test_a_hundred_generations_are_kept(slots: Slots) -> None:
    slots.submit(FlowSpec("n", [slot_node("a"), FlowNode("m", queue="c", job="work")]))
    for number in range(103):
        slots.run(restart_flow(slots.ref(), str(number), slots))
        slots.now += 1
        slots.run(upkeep.sweep(HOME, slots))
    found = [number for number, _ in history(slots)]
    assert found[-100:] == list(range(4, 104))
    assert len(found) <= 102
    slots.run_jobs()
    assert slots.status() == ("completed", 2, 0)


def test_who_keeps_losing_is_told(slots: Slots) -> None:
    failed(slots)
    place = slots.run(find_flow("glide", "f"))[0]
    making = begin_next(place, replace(check_flow(MENDED), request="slow"), "restart", slots)
    faster = itertools.count()

    def overtaken() -> Op[FlowRef]:
        """The operation; each time before it notes its generation, another one is begun."""
        request = next(making)
        while True:
            if any(call.words[0] == "XADD" for call in calls_of(request)):
                slots.run(begin(slots, request=f"fast {next(faster)}"))
            try:
                request = making.send((yield request))
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]

    with pytest.raises(GenerationTaken):
        slots.run(overtaken())
    assert next(faster) == MAX_TRIES
    supervised(slots)
    assert slots.status() == ("completed", 3, 0)
    assert of_others(slots) == []


def calls_of(request: Request) -> Sequence[Call[Any]]:
    return request.calls if isinstance(request, Batch) else (request,)
