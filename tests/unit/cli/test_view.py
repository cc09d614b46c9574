"""How flows look in a terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from glidemq_orchestrate import FlowState, JobState
from glidemq_orchestrate.cli.flow.view import FOLD_FROM, flow_view, node_table
from glidemq_orchestrate.cli.shell import summary_table
from glidemq_orchestrate.flows import FlowStatus, NodeStatus
from glidemq_orchestrate.flows.status import FlowId, Wait

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


def test_nodes_that_differ_by_a_number_share_a_row_from_five_on() -> None:
    assert FOLD_FROM == 5
    assert len(rows(months(4))) == 4
    (row,) = rows(months(5))
    assert "month-01..05" in row
    assert "5 nodes: 5 completed" in row
    assert "≤ 5.0 s" in row
    assert row.startswith("✔")


def test_a_fold_counts_the_states_in_it() -> None:
    nodes = [*months(3), *(node(f"month-{n}", JobState.ACTIVE) for n in (4, 5)), node("month-6")]
    (row,) = rows(nodes)
    assert "6 nodes: 3 completed, 2 active, 1 waiting" in row
    assert row.startswith("▶")


def test_a_node_that_failed_stands_alone_and_the_consequences_are_folded() -> None:
    nodes = months(11)
    nodes[5] = node("month-06", JobState.FAILED, reason="ValueError: x", attempts=2)
    found = rows(nodes)
    assert len(found) == 2
    assert "month-01..11" in found[0]
    assert "10 nodes: 10 completed" in found[0]
    assert "ValueError: x" in found[1]
    (row,) = rows([node(f"n{n}", JobState.FAILED, reason="upstream failed: a") for n in range(9)])
    assert "9 nodes: 9 failed" in row
    assert "upstream failed: a" in row


def test_of_many_failures_the_first_stand_alone() -> None:
    found = rows([node(f"n{n}", JobState.FAILED, reason=f"boom {n}") for n in range(20)])
    assert len(found) == 1 + 5
    assert "15 nodes: 15 failed" in found[-1]


def test_tries_are_shown_where_there_were_several() -> None:
    (row,) = rows([node("a", JobState.COMPLETED, attempts=3)])
    assert row.split() == ["✔", "a", "completed", "3"]
    assert "≤ 2" in rows(months(5, attempts=2))[0]


def test_nodes_with_another_queue_or_other_dependencies_stay_apart() -> None:
    assert len(rows([*months(5), node("month-06", queue="spark")])) == 2
    assert len(rows([node("x"), *months(5), node("month-06", after=("x",))])) == 3
    assert len(rows([*months(5), node("report")])) == 2


def test_every_node_is_in_exactly_one_row() -> None:
    nodes = [node("a"), *months(7), node("b"), node("c2"), node("c3")]
    assert len(rows(nodes)) == 1 + 1 + 1 + 2
    assert rows([]) == []


def test_many_dependencies_are_shortened() -> None:
    roots = [node(name) for name in "abcd"]
    assert "a, b, c" in rows([*roots, node("x", after=("a", "b", "c"))])[-1]
    assert "a … d (4)" in rows([*roots, node("x", after=("a", "b", "c", "d"))])[-1]


def left(nodes: Sequence[NodeStatus]) -> list[str]:
    """The tree alone."""
    return [row.split("blocked")[0].replace("· ", "", 1).rstrip() for row in rows(nodes)]


def blocked(name: str, *after: str) -> NodeStatus:
    return node(name, JobState.WAITING_CHILDREN, after=after)


def test_branches_are_indented_and_what_joins_them_is_not() -> None:
    nodes = [
        blocked("a"),
        blocked("b", "a"),
        blocked("c", "a"),
        blocked("d", "c"),
        blocked("join", "b", "d"),
        blocked("end", "join"),
    ]
    assert left(nodes) == ["a", "├── b", "└── c", "    d", "join", "end"]


def test_without_a_join_the_last_branch_closes() -> None:
    nodes = [blocked("a"), blocked("b", "a"), blocked("c", "b"), blocked("d", "b"), blocked("e", "a")]
    assert left(nodes) == ["a", "├── b", "│   ├── c", "│   └── d", "└── e"]


def test_several_roots_stand_side_by_side_until_something_joins_them() -> None:
    assert left([blocked("a"), blocked("b")]) == ["a", "b"]
    assert left([blocked("a"), blocked("b"), blocked("c", "a", "b")]) == ["├── a", "└── b", "c"]


@pytest.mark.long
def test_a_long_chain_and_a_deep_comb_stay_readable() -> None:
    chain = [blocked("a"), *(blocked("a" * n, "a" * (n - 1)) for n in range(2, 60))]
    assert all(line.startswith("a") for line in left(chain))
    comb = [blocked("x0")]
    for n in range(1, 1100):
        comb += [blocked(f"x{n}", f"x{n - 1}"), blocked(f"leaf{n}", f"x{n - 1}")]
    found = left(comb)
    assert len(found) == len(comb)
    assert max(map(len, found)) < 80


def test_the_critical_path_is_marked_and_written_out() -> None:
    first, slow = (
        node("a", JobState.COMPLETED, seconds=1),
        node("b", JobState.COMPLETED, seconds=9, after=("a",)),
    )
    fast = node("c", JobState.COMPLETED, seconds=2, after=("a",))
    text = shown(flow_view(status(), [first, slow, fast]))
    assert text[-1] == "◆ critical path: a → b  9.0 s"
    marked = {line.split(" ◆")[0].split()[-1] for line in text[:-1] if "◆" in line}
    assert marked == {"a", "b"}


def test_where_there_is_little_room_what_goes_on_is_shown() -> None:
    nodes = [node(name, JobState.COMPLETED) for name in "abcdefgh"] + [node("x", JobState.ACTIVE)]
    nodes.append(node("y", JobState.FAILED, reason="boom"))
    found = shown(node_table(nodes, rows=4))[1:]
    assert [line.split()[:2] for line in found] == [["✔", "a"], ["▶", "x"], ["✘", "y"], ["…", "7"]]


def test_what_runs_is_counted_until_now() -> None:
    now = START + timedelta(minutes=2, seconds=5)
    (row,) = shown(node_table([node("x", JobState.ACTIVE)], now=now))[1:]
    assert "2 min 05 s" in row
    assert "2 min 05 s" in shown(flow_view(status(), [], now=now))[0]
    later = START + timedelta(hours=3, minutes=20)
    assert "3 h 20 min" in shown(flow_view(status(finished_at=later), []))[0]


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


def test_a_node_that_waits_says_why_and_until_when_also_in_a_fold() -> None:
    until = datetime(2126, 1, 1, tzinfo=UTC)
    waits = {"month-6": Wait("for its next attempt", until), "load": Wait("queue etl is paused")}
    nodes = [*months(5), node("month-6", JobState.DELAYED), node("load")]
    folded, alone = shown(node_table(nodes, waits=waits))[1:]
    assert "month-6 waits: until 2126-01-01" in folded
    assert folded.endswith("for its next attempt")
    assert alone.endswith("queue etl is paused")


def test_a_node_that_a_worker_holds_back_is_not_active() -> None:
    now = START + timedelta(seconds=20)
    held = {f"month-{n}": Wait("its worker was lost; load runs first") for n in range(1, 7)}
    running = node("load", JobState.ACTIVE, renewed_at=now, worker="w")
    nodes = [node(name, JobState.ACTIVE, renewed_at=now, worker="w") for name in held]
    text = shown(flow_view(status(), [running, *nodes], now=now, waits=held))
    months, load = (next(line for line in text if name in line) for name in ("month-1..6", "load "))
    assert "6 waiting" in months
    assert months.endswith("6 wait: its worker was lost; load runs first")
    assert "active" in load
    assert "20.0 s" in load
    silent = node("load", JobState.ACTIVE, renewed_at=START, worker="w")
    text = shown(flow_view(status(), [silent], now=now, waits={"load": Wait("its worker has been silent")}))
    assert "active" in text[-1]


def test_each_node_of_a_chain_names_the_node_before_it() -> None:
    chain = [node("a"), node("b", after=("a",)), node("c", after=("b",))]
    assert [line.split()[-1] for line in rows(chain)[1:]] == ["a", "b"]


def test_a_node_below_the_one_that_it_follows_does_not_name_it() -> None:
    fan = [node("a"), node("b", after=("a",)), node("c", after=("a",)), node("d", after=("c",))]
    lines = {line.split("…")[1].split()[0]: line.split()[-1] for line in rows(fan)}
    assert lines == {"a": "waiting", "b": "waiting", "c": "waiting", "d": "c"}
