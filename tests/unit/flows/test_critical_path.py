"""Which chain of nodes decided the end of a flow."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from glidemq_orchestrate.flows.status import critical_path

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Ran:
    name: str
    after: tuple[str, ...] = ()
    began: float | None = None
    ended: float | None = None

    @property
    def started_at(self) -> datetime | None:
        return None if self.began is None else START + timedelta(seconds=self.began)

    @property
    def finished_at(self) -> datetime | None:
        return None if self.ended is None else START + timedelta(seconds=self.ended)


def test_of_a_diamond_the_slow_side_is_the_path() -> None:
    fast, slow = Ran("fast", ("a",), 1, 2), Ran("slow", ("a",), 1, 9)
    nodes = [Ran("a", (), 0, 1), fast, slow, Ran("d", ("fast", "slow"), 9, 10)]
    assert critical_path(nodes) == ["a", "slow", "d"]


def test_a_short_node_that_waited_for_a_worker_counts_by_its_end() -> None:
    nodes = [
        Ran("long", (), 0, 5),
        Ran("late", (), 6, 7),
        Ran("end", ("long", "late"), 7, 8),
    ]
    assert critical_path(nodes) == ["late", "end"]


def test_a_node_beside_that_ended_last_is_a_path_of_its_own() -> None:
    assert critical_path([Ran("a", (), 0, 1), Ran("b", ("a",), 1, 2), Ran("alone", (), 0, 3)]) == ["alone"]


def test_while_nodes_run_the_path_leads_to_the_one_that_runs_longest() -> None:
    nodes = [
        Ran("a", (), 0, 1),
        Ran("b", ("a",), 1, 2),
        Ran("c", ("b",), 5),
        Ran("d", ("a",), 3),
        Ran("e", ("c", "d")),
    ]
    assert critical_path(nodes) == ["a", "d"]


def test_of_equals_the_first_counts() -> None:
    nodes = [Ran("a", (), 0, 1), Ran("b", (), 0, 1), Ran("c", ("a", "b"), 1, 2)]
    assert critical_path(nodes) == ["a", "c"]


def test_a_node_that_ended_in_the_millisecond_of_its_dependency_is_the_end() -> None:
    assert critical_path([Ran("a", (), 0, 1), Ran("b", ("a",), 1, 1)]) == ["a", "b"]


def test_a_flow_that_has_not_begun_has_none() -> None:
    assert critical_path([Ran("a"), Ran("b", ("a",))]) == []
    assert critical_path([]) == []


def test_nodes_that_never_ran_decide_nothing() -> None:
    nodes = [Ran("a", (), 0, 1), Ran("broken", ("a",), 1, 4), Ran("blocked", ("broken",), None, 5)]
    assert critical_path(nodes) == ["a", "broken"]


def test_a_skipped_node_is_not_on_the_path_but_what_it_waited_for_is() -> None:
    nodes = [
        Ran("a", (), 0, 1),
        Ran("slow", ("a",), 1, 8),
        Ran("quick", ("a",), 1, 2),
        Ran("skipped", ("slow",), None, 8),
        Ran("skipped too", ("skipped",), None, 8),
        Ran("report", ("quick", "skipped too"), 8, 9),
    ]
    assert critical_path(nodes) == ["a", "slow", "report"]


def test_a_retry_makes_a_node_run_after_its_old_end() -> None:
    assert critical_path([Ran("a", (), 0, 1), Ran("b", ("a", "gone"), 5, None)]) == ["a", "b"]
