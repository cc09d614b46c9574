"""The position of a watched flow: what was seen, in a text."""

from __future__ import annotations

import base64
import json
import random
import tracemalloc
import zlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from glidemq_orchestrate import FlowState, JobState
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.flows import NodeStatus
from glidemq_orchestrate.flows.watched import Reported, time_of, turn_of

WAITING_CHILDREN = JobState.WAITING_CHILDREN


def node(name: str, state: JobState, **kw: Any) -> NodeStatus:
    times = (kw.get("began"), kw.get("ended"))
    attempts = kw.get("failed", 0) + (state in ("active", "completed"))
    run = kw.get("run", 0)
    return NodeStatus(name, "etl", name, "work", (), state, attempts, "", None, *times, reruns=run)


def test_nothing_was_reported_at_the_start() -> None:
    assert Reported("f").state(5, "a") == WAITING_CHILDREN
    assert Reported("f").state(0.5, "a") == WAITING_CHILDREN


def test_every_position_holds_what_was_reported_up_to_there_and_no_more() -> None:
    dice, seen = random.Random(3), Reported("f")
    ranks = [*range(100), *(rank + 0.000_001 for rank in range(5))]
    expected: dict[float, tuple[str, int]] = {}
    for _ in range(400):
        rank, state, run = dice.choice(ranks), dice.choice(list(JobState)), dice.choice([0, 0, 1, 27, 2**53])
        position = seen.record(rank, told := node(f"n{rank}", state, run=run, failed=dice.randrange(3)))
        expected[rank] = (state, turn_of(told))
        found = Reported.at("f", position)
        assert {rank: (found.state(rank, f"n{rank}"), found.turn(rank, f"n{rank}")) for rank in ranks} == {
            rank: expected.get(rank, (WAITING_CHILDREN, 0)) for rank in ranks
        }
        assert found.has(rank, told)
        assert found.end == ""


def test_a_position_made_after_going_on_holds_what_came_before() -> None:
    seen = Reported.at("f", Reported("f").record(0, node("a", JobState.ACTIVE)))
    again = Reported.at("f", seen.record(1, node("b", JobState.COMPLETED)))
    assert (again.state(0, "a"), again.state(1, "b")) == ("active", "completed")


def test_a_node_that_ends_or_tries_again_is_reported_again() -> None:
    seen = Reported("f")
    for rank in (0, 0.5):
        for state in (JobState.COMPLETED, JobState.FAILED, JobState.ACTIVE, JobState.WAITING):
            told = node("a", state, run=2, failed=1)
            for found in (seen, Reported.at("f", seen.record(rank, told))):
                assert found.has(rank, told)
                assert found.run(rank, "a") == 2
                assert not found.has(rank, replace(told, reruns=3, attempts=0))
                assert not found.has(rank, replace(told, attempts=told.attempts + 1))
                assert found.has(rank, node("a", state))  # its job was removed since
        seen.record(rank, node("a", WAITING_CHILDREN, run=3))
        assert seen.has(rank, node("a", WAITING_CHILDREN, run=4))
        assert seen.run(rank, "a") == 0


def test_the_same_end_at_another_time_is_another_end() -> None:
    first, second = (datetime(2026, 1, 1, 1, 2, 3, number * 1000, tzinfo=UTC) for number in (1, 2))
    seen = Reported.at("f", Reported("f").record_end(FlowState.FAILED, first))
    assert seen.has_end(FlowState.FAILED, first)
    assert not seen.has_end(FlowState.FAILED, second)
    assert not seen.has_end(FlowState.COMPLETED, first)
    assert Reported.at("f", Reported("f").record_end(FlowState.FAILED)).has_end(FlowState.FAILED, second)
    seen.record(0, node("a", JobState.WAITING))
    assert not seen.has_end(FlowState.FAILED, first)


def test_the_end_is_part_of_it_until_a_node_moves_again() -> None:
    seen = Reported("f")
    position = seen.record_end(FlowState.FAILED)
    assert Reported.at("f", position).end == "failed"
    assert Reported.at("f", seen.record(0, node("a", JobState.WAITING))).end == ""


def test_a_large_flow_has_a_position_that_can_be_kept() -> None:
    seen = Reported("f")
    positions = [seen.record(rank, node(f"n{rank}", JobState.COMPLETED)) for rank in range(20_000)]
    assert len(positions[-1]) < 3_000
    assert Reported.at("f", positions[-1]).state(19_999, "x") == "completed"


@pytest.mark.long
def test_a_large_flow_that_ran_again_has_one_too() -> None:
    seen, dice = Reported("f"), random.Random(4)
    for run in range(3):
        for rank in range(0, 100_000, run * run + 1):
            failed = dice.random() < 0.01  # and was retried
            position = seen.record(rank, node(f"n{rank}", JobState.COMPLETED, run=run, failed=failed))
    assert len(position) < 20_000
    assert Reported.at("f", position).run(99_999 // 5 * 5, "x") == 2


def test_an_invalid_position_is_refused(subtests: pytest.Subtests) -> None:
    for wrong in ("", "1..", "1.AAAA.", "2.x.", "0-0", "1.eJw.0q", "x" * 10_000):
        with (
            subtests.test(wrong=wrong),
            pytest.raises(ConfigurationError, match="not a position of a watched flow"),
        ):
            Reported.at("f", wrong)


def packed(wire: object, deltas: str = "", *, version: int = 1) -> str:
    text = wire if isinstance(wire, str) else json.dumps(wire)
    return f"{version}.{base64.urlsafe_b64encode(zlib.compress(text.encode())).decode().rstrip('=')}.{deltas}"


def made_up_positions() -> list[str]:
    return [
        packed(None), packed(5), packed([]), packed({}), packed("[" * 100_000),
        packed(["f", "", "cc", {}, ""], "0z"), packed(["f", "", "cc", {}, ""], "9999999999a"),
        packed(["f", "", "cc", {}, ""], "9" * 5000 + "a"), packed(["f", "", "cc", {}, ""], version=2),
        packed(["f", "", "cc", {}, ""], "0c" + "9" * 5000 + "."),
        *map(
            packed,
            (
                ["f", "", "cc", {}], ["f", "", 5, {}, ""], ["f", "", "cc", [], ""],
                ["f", "", "cc", {"a": 1}, ""], ["f", 0, "cc", {}, ""], [["f"], "", "", {}, ""],
                ["f", "", "c?", {}, ""], ["f", "", "\u00e4", {}, ""], ["f", "over", "", {}, ""],
                ["f", "", "c" * 50_000_000, {}, ""], ["f", "", "cc", {}, 5], ["f", "", "cc", {}, "1,x"],
                ["f", "", "cc", {}, "-1"], ["f", "", "cc", {}, "9" * 5000], ["f", "", "", {}, "," * 5**10],
                ["f", "", "cc", {}, "\u0663"], ["f", "failed x", "cc", {}, ""], ["f", " 5 5", "", {}, ""],
                ["f", "", "cc", {"a": "failed x"}, ""], ["f", "failed 5 ", "", {}, ""],
            ),
        ),
    ]  # fmt: skip


def test_a_position_that_was_made_up_is_refused_before_it_costs_much(subtests: pytest.Subtests) -> None:
    for wrong in made_up_positions():
        with subtests.test(wrong=wrong):
            tracemalloc.start()
            try:
                with pytest.raises(ConfigurationError, match="not a position of a watched flow"):
                    Reported.at("f", wrong)
                assert tracemalloc.get_traced_memory()[1] < 50 * 2**20
            finally:
                tracemalloc.stop()


def test_that_of_another_flow_is_refused() -> None:
    position = Reported("f").record(0, node("a", JobState.ACTIVE))
    with pytest.raises(ConfigurationError, match="belongs to flow f, not to g"):
        Reported.at("g", position)


def test_a_state_has_the_time_at_which_it_began() -> None:
    began, ended, now = (datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (1, 2, 3))
    times = {"began": began, "ended": ended}
    assert time_of(node("a", JobState.COMPLETED, **times), now) == ended
    assert time_of(node("a", JobState.ACTIVE, **times), now) == began
    assert time_of(node("a", JobState.WAITING, **times), now) == now
    assert time_of(node("a", JobState.FAILED), now) == now
