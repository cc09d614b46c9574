from __future__ import annotations

from collections import Counter

from glidemq_orchestrate.testing.chaos.strikes import ACTS, Act, Calm, Moment, Strike, plan

PLAIN, MARKED, CALLS = Calm(2.0), Calm(2.0, effects=3), Calm(2.0, effects=2, calls=2)


def _kinds(calm: Calm) -> int:
    has_no = [Moment.AFTER_EFFECT] * (not calm.effects) + [Moment.BEFORE_EFFECT] * (not calm.calls)
    return sum(len(acts) for moment, acts in ACTS.items() if moment not in has_no)


def test_the_same_seed_gives_the_same_strikes_and_another_one_others() -> None:
    calm = {"a": MARKED, "b": PLAIN}
    assert plan(7, calm, 40) == plan(7, calm, 40)
    assert plan(7, calm, 40) != plan(8, calm, 40)


def _ways(planned: list[list[Strike]]) -> Counter[tuple[str, Moment, Act]]:
    return Counter((strike.node, strike.moment, strike.act) for run in planned for strike in run)


def test_every_node_is_struck_in_every_way_before_any_is_struck_so_again() -> None:
    calm = {"plain": PLAIN, "marked": MARKED, "calls": CALLS}
    total = sum(map(_kinds, calm.values()))
    found = _ways(plan(3, calm, 2 * total)[:total])
    assert len(found) == total
    assert set(found.values()) == {1}


def test_every_node_is_struck_in_every_way_also_when_there_are_few_runs() -> None:
    calm = {f"n{at}": MARKED for at in range(20)}
    assert set(_ways(plan(1, calm, _kinds(MARKED))).values()) == {1}
    assert len(_ways(plan(1, calm, _kinds(MARKED)))) == 20 * _kinds(MARKED)


def test_few_runs_have_as_many_strikes_as_it_takes_and_one_of_a_node() -> None:
    calm = {f"n{at}": PLAIN for at in range(50)}
    planned = plan(1, calm, 10)
    assert all(len({strike.node for strike in run}) == len(run) for run in planned)
    assert {len(run) for run in planned} == {40}


def test_strikes_fit_what_the_node_does() -> None:
    strikes = [strike for run in plan(1, {"plain": PLAIN, "marked": MARKED}, 200) for strike in run]
    assert {strike.node for strike in strikes if strike.moment is Moment.AFTER_EFFECT} == {"marked"}
    assert not [strike for strike in strikes if strike.moment is Moment.BEFORE_EFFECT]
    assert {strike.effect for strike in strikes if strike.effect} == {1, 2, 3}
    midway = [strike.after for strike in strikes if strike.moment is Moment.MIDWAY]
    assert midway
    assert 0.2 <= min(midway) <= max(midway) <= 1.8


def test_only_the_wanted_acts_are_planned() -> None:
    strikes = [strike for run in plan(1, {"a": CALLS}, 50, [Act.PAUSE]) for strike in run]
    assert {strike.act for strike in strikes} == {Act.PAUSE}
    assert plan(1, {}, 3) == [[], [], []]
