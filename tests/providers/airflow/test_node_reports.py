"""Which lines and which progress of a node are shown, and how."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow_provider_glidemq.node_reports import LINES, NODES, NodeReports
from airflow_provider_glidemq.version_compat import mask_secret

from glidemq_orchestrate import JobState
from glidemq_orchestrate.flows.status import NodeStatus
from glidemq_orchestrate.jobs.job import JobLogs

ONE = NodeStatus("a", "q", "j-a", "job", (), JobState.ACTIVE, 1, "", None, None, None)

PROGRESS: list[tuple[Any, str]] = [
    ({"stages_done": 1, "ui": "http://x"}, "[a] stages_done 1, ui http://x"),
    (50, "[a] progress 50"),
    ("half\n", "[a] progress half\\n"),
    ([1, 2], "[a] progress [1, 2]"),
]


class Logged:
    """Nodes that log, and what is shown of it."""

    def __init__(self, *, logs: bool = True) -> None:
        self.reports, self.lines, self.gone = NodeReports(logs), dict[str, list[str]](), 0

    def poll(self, *nodes: NodeStatus) -> list[str]:
        due = self.reports.due(nodes)
        found = {}
        for name, after in due.items():
            lines, first = self.lines.get(name, []), max(after, self.gone)
            found[name] = JobLogs(lines[first : first + LINES], len(lines), first)
        return list(self.reports.lines(nodes, found))

    def add(self, name: str, count: int) -> None:
        lines = self.lines.setdefault(name, [])
        lines += [f"line {len(lines) + number}" for number in range(count)]


def ended(node: NodeStatus, state: JobState = JobState.COMPLETED) -> NodeStatus:
    return replace(node, state=state)


def numbers(lines: Iterable[str]) -> list[int]:
    return [int(line.rpartition(" ")[2]) for line in lines]


class TestLines:
    def test_each_is_shown_once_with_the_name_of_its_node(self) -> None:
        logged = Logged()
        logged.add("a", 2)
        assert logged.poll(ONE) == ["[a] line 0", "[a] line 1"]
        assert logged.poll(ONE) == []
        logged.add("a", 1)
        assert logged.poll(ended(ONE)) == ["[a] line 2"]
        logged.add("a", 1)
        assert logged.reports.due([ended(ONE)]) == {}, "it has ended, and all was shown"

    def test_it_says_how_many_are_gone(self) -> None:
        logged = Logged()
        logged.add("a", 2)
        logged.poll(ONE)
        logged.add("a", 5)
        logged.gone = 6
        assert logged.poll(ONE) == ["[a] (4 lines are gone: a job keeps its last 10,000)", "[a] line 6"]
        assert logged.poll(ended(ONE)) == []

    def test_nodes_that_have_not_begun_are_not_asked(self) -> None:
        waiting = replace(ONE, state=JobState.WAITING, attempts=0)
        assert Logged().reports.due([waiting, replace(ended(waiting, JobState.SKIPPED), name="b")]) == {}

    def test_those_of_a_node_that_has_skipped_itself_are_shown(self) -> None:
        logged, now = Logged(), datetime.now(UTC)
        logged.add("a", 1)
        skipped = replace(ended(ONE, JobState.SKIPPED), attempts=0, started_at=now, finished_at=now)
        assert logged.poll(skipped) == ["[a] line 0"]

    def test_what_is_masked_is_masked_before_a_line_is_cut(self) -> None:
        mask_secret("v4rs3cretXYZ")  # Airflow masks it in this process from here on
        logged = Logged()
        logged.lines["a"] = ["x" * 990 + "v4rs3cretXYZ"]
        assert logged.poll(ONE) == ["[a] " + "x" * 990 + "***"]

    def test_more_than_fit_come_with_the_next_look(self) -> None:
        logged = Logged()
        logged.add("a", 2 * LINES + 5)
        found = [numbers(logged.poll(ended(ONE))) for _ in range(4)]
        assert [len(part) for part in found] == [LINES, LINES, 5, 0]
        assert [number for part in found for number in part] == list(range(2 * LINES + 5))
        assert not logged.reports.has_more

    def test_more_nodes_than_fit_take_turns(self) -> None:
        logged = Logged()
        nodes = [replace(ONE, name=f"n{number}", job_id=f"j{number}") for number in range(NODES + 10)]
        for node in nodes:
            logged.add(node.name, 1)
        first = logged.poll(*nodes)
        assert logged.reports.has_more
        second = logged.poll(*nodes)
        assert (len(first), len(second)) == (NODES, 10)
        assert len({*first, *second}) == NODES + 10

    def test_a_node_that_runs_again_goes_on_and_another_job_begins_anew(self) -> None:
        logged = Logged()
        logged.add("a", 1)
        assert len(logged.poll(ended(ONE))) == 1
        logged.add("a", 1)
        assert logged.poll(ended(replace(ONE, reruns=1))) == ["[a] line 1"]
        assert numbers(logged.poll(ended(replace(ONE, job_id="other")))) == [0, 1]

    def test_they_cannot_forge_lines_and_are_cut(self) -> None:
        logged = Logged()
        logged.lines["a"] = ["one\ntwo \x1b[31mred\x9b\u2028", "x" * 5_000, "tab\t100 % {} %s"]
        first, second, third = logged.poll(ONE)
        assert first == "[a] one\n    two \\x1b[31mred\\x9b\\u2028"
        assert len(second) < 1_100
        assert third == "[a] tab\t100 % {} %s"

    def test_progress_is_shown_when_it_changes(self, subtests: pytest.Subtests) -> None:
        for progress, shown in PROGRESS:
            with subtests.test(progress=progress):
                logged = Logged(logs=False)
                logged.add("a", 1)
                node = replace(ONE, progress=progress)
                assert logged.poll(ONE) == []
                assert logged.poll(node) == [shown]
                assert logged.poll(node) == []
                assert logged.reports.due([node]) == {}
