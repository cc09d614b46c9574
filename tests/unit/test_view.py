"""How flows look in a terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console

from glidemq_orchestrate import FlowState, FlowStatus, JobState, NodeStatus
from glidemq_orchestrate._view import FOLD_FROM, flow_view, node_table, summary_table
from glidemq_orchestrate.flow import FlowId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

START = datetime(2026, 1, 1, tzinfo=UTC)


def node(name: str, state: JobState = JobState.WAITING, **kw: Any) -> NodeStatus:
    seconds = kw.pop("seconds", None)
    ended = None if seconds is None else START.replace(second=seconds)
    base = NodeStatus(name, "etl", f"id-{name}", "work", (), state, 0, "", None, START, ended)
    return replace(base, **kw)


def shown(what: RenderableType) -> list[str]:
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(what)
    return [line.rstrip() for line in console.export_text().splitlines()]


def rows(nodes: Sequence[NodeStatus]) -> list[str]:
    return shown(node_table(nodes))[1:]


def months(count: int, state: JobState = JobState.COMPLETED, **kw: Any) -> list[NodeStatus]:
    return [node(f"month-{n:02}", state, seconds=n, **kw) for n in range(1, count + 1)]


def test_neighbours_that_differ_by_a_number_share_a_row_from_five_on() -> None:
    assert FOLD_FROM == 5
    assert len(rows(months(4))) == 4
    (row,) = rows(months(5))
    assert "month-01 … month-05 (5)" in row
    assert "5 completed" in row
    assert "≤ 5.0" in row
    assert row.startswith("✔")


def test_a_fold_counts_the_states_in_it() -> None:
    nodes = [*months(3), *(node(f"month-{n}", JobState.ACTIVE) for n in (4, 5)), node("month-6")]
    (row,) = rows(nodes)
    assert "3 completed, 2 active, 1 waiting" in row
    assert row.startswith("▶")


def test_a_failed_or_repeated_node_stands_alone() -> None:
    nodes = months(11)
    nodes[5] = node("month-06", JobState.FAILED, reason="ValueError: x", attempts=2)
    found = rows(nodes)
    assert len(found) == 3
    assert "month-01 … month-05 (5)" in found[0]
    assert "ValueError: x" in found[1]
    assert "month-07 … month-11 (5)" in found[2]
    nodes[5] = node("month-06", JobState.COMPLETED, attempts=2)
    assert len(rows(nodes)) == 3


def test_nodes_of_another_queue_or_with_other_dependencies_are_not_folded_in() -> None:
    assert len(rows([*months(5), node("month-06", queue="spark")])) == 2
    assert len(rows([*months(5), node("month-06", after=("x",))])) == 2
    assert len(rows([*months(5), node("report")])) == 2


def test_every_node_is_in_exactly_one_row() -> None:
    nodes = [node("a"), *months(7), node("b"), *months(2)]
    assert len(rows(nodes)) == 1 + 1 + 1 + 2
    assert rows([]) == []


def test_many_dependencies_are_shortened() -> None:
    assert "a, b, c" in rows([node("x", after=("a", "b", "c"))])[0]
    assert "a … d (4)" in rows([node("x", after=("a", "b", "c", "d"))])[0]


def test_progress_is_shown_while_a_node_runs() -> None:
    assert "stage 2, of 5" in rows([node("x", JobState.ACTIVE, progress={"stage": 2, "of": 5})])[0]
    assert "50" in rows([node("x", JobState.ACTIVE, progress=50)])[0]
    assert "50" not in rows([node("x", JobState.COMPLETED, progress=50)])[0]


def status(**kw: Any) -> FlowStatus:
    base = FlowStatus(FlowId("f-1"), "nightly", FlowState.RUNNING, "etl", 10, 3, 0, "", {}, START, None)
    return replace(base, **kw)


def test_a_flow_shows_name_id_state_counts_and_reason() -> None:
    text = "\n".join(
        shown(flow_view(status(failed=2, state=FlowState.FAILED, reason="a: boom"), [node("a")]))
    )
    for part in ("nightly", "f-1", "failed", "3/10 completed, 2 failed", "a: boom"):
        assert part in text
    assert "failed" not in "\n".join(shown(flow_view(status(), [])))


def test_text_of_users_is_not_taken_for_markup() -> None:
    found = "\n".join(
        shown(
            flow_view(status(name="[red]x", reason="[/]"), [node("[bold]n", JobState.FAILED, reason="[/y]")])
        )
    )
    for part in ("[red]x", "[/]", "[bold]n", "[/y]"):
        assert part in found


def test_a_summary_has_the_keys_of_its_rows_as_columns() -> None:
    found = shown(summary_table("Result", [{"origin": "JFK", "mean_delay": 12.345, "flights": 111279}]))
    assert "Result" in found[0]
    assert "mean delay" in found[1]
    assert "12.3" in found[2]
    assert "111,279" in found[2]
