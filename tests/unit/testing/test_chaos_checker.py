from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from glidemq_orchestrate.testing.chaos import ChaosReport, FindingKind
from glidemq_orchestrate.testing.chaos.checker import CampaignBook, calm_of, findings, notes, steps
from glidemq_orchestrate.testing.chaos.effects import digest, leaves

CALM: Final[dict[str, Any]] = {"flow": "calm", "nodes": {"a": ("completed", ())}}

DIFFERENT_RESULTS: list[tuple[Any, Any, str]] = [
    ({"a": 1, "b": [1, {"c": 2}]}, {"a": 1, "b": [1, {"c": 3}]}, "at $.b[1].c"),
    ([1], [1, 2], "at $[1]"),
    ({"at": "x"}, None, "at $"),
]


class Story:
    """A ledger, told in order."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self._clock, self._runs = count(1), count(1)

    def add(self, kind: str, **fields: Any) -> None:
        self.entries.append({"kind": kind, "at": next(self._clock) * 1_000_000, "pid": 1, **fields})

    def begin(self, flow: str = "f", pid: int = 1, **fields: Any) -> str:
        run = f"r{(number := next(self._runs))}"
        about = {"flow": flow, "node": "a", "queue": "q", "job": f"{flow}-a", "name": "step", "attempt": 1}
        self.add("begin", **{"epoch": number, **about, **fields, "run": run, "pid": pid})
        return run

    def effect(self, name: str = "charge", key: str = "7", flow: str = "f", pid: int = 1) -> None:
        began = (len(self.entries) + 1) * 1_000_000
        about = {"flow": flow, "node": "a", "queue": "q", "job": f"{flow}-a", "owner": pid}
        self.add("effect", **about, name=name, key=key, began=began)

    def end(self, run: str, value: Any = 1, error: str = "") -> None:
        self.add("end", run=run, error=error, **({} if error else {"leaves": leaves(value, "salt")}))

    def accept(self, run: str, kind: str = "completed") -> None:
        self.add(kind, run=run, flow="f", node="a", queue="q", job="f-a")

    def play(self, state: str = "completed", **fields: Any) -> None:
        about = {"flow": "f", "number": 3, "ended": True, "state": state, "seconds": 9.0}
        about["nodes"] = {"a": (state, ())}
        self.add("played", **{**about, "check": "", **fields})

    def played(self, state: str = "completed", **fields: Any) -> list[tuple[str, str, str]]:
        self.play(state, **fields)
        book = CampaignBook(self.entries)
        found = findings(book, CALM)
        assert all(finding.run == 3 and finding.count == 1 for finding in found)
        return [(finding.kind, finding.step, finding.detail) for finding in found]


def test_an_interrupted_attempt_that_had_no_effect_is_harmless() -> None:
    story = Story()
    story.begin()
    run = story.begin(pid=2)
    story.effect(pid=2)
    story.end(run)
    assert story.played() == []
    [step] = steps(CampaignBook(story.entries), [])
    assert (step.step, step.runs, step.repeats, step.effects, step.verdict) == ("step", 2, 1, 1, "safe")


def test_a_worker_that_ended_names_the_step_that_such_workers_were_running() -> None:
    story = Story()
    run = story.begin()
    story.begin(pid=2, name="crash", job="c")
    story.end(run)
    for _ in range(3):
        story.end(story.begin(pid=2))
    story.begin(pid=2, job="another")
    story.add("ended worker", worker=1, code=9)
    story.begin(pid=3, name="crash", flow="g")
    story.begin(pid=3, job="other")
    story.add("ended worker", worker=3, code=-11)
    story.add("ended worker", worker=2, code=-11)
    story.play(flow="f", number=3)
    story.play(flow="g", number=4)
    found = findings(CampaignBook(story.entries), CALM)
    assert [(one.step, one.detail, one.run, one.count) for one in found] == [
        ("crash", "with exit code -11", 3, 2),
        ("", "with exit code 9 while it ran no handler", 0, 1),
    ]


def test_an_effect_of_two_attempts_is_repeated_and_of_one_is_not() -> None:
    story = Story()
    story.begin()
    story.effect()
    story.effect()  # the same attempt: its own affair
    story.effect(key="8")
    story.begin(pid=2)
    story.effect(key="8", pid=2)
    assert story.played() == [(FindingKind.EFFECT_REPEATED, "step", "charge 8")]


def test_an_effect_that_the_older_attempt_had_last_is_stale() -> None:
    story = Story()
    story.begin(pid=1)
    story.begin(pid=2)
    story.effect(pid=2)
    story.effect(pid=1)
    kinds = [kind for kind, _, _ in story.played()]
    assert kinds == [FindingKind.EFFECT_REPEATED, FindingKind.STALE_EFFECT]


def test_results_that_differ_are_reported_by_their_path(subtests: pytest.Subtests) -> None:
    for first, second, where in DIFFERENT_RESULTS:
        with subtests.test(first=first):
            story = Story()
            story.end(story.begin(), first)
            story.end(story.begin(), second)
            assert story.played() == [(FindingKind.RESULT_DIFFERS, "step", where)]


def test_equal_results_and_failed_attempts_are_no_finding() -> None:
    story = Story()
    story.end(story.begin(), {"b": 1, "a": 2})
    story.end(story.begin(), error="ValueError")
    story.end(story.begin(), {"a": 2, "b": 1})
    assert story.played() == []


def test_no_value_of_a_result_is_in_the_ledger() -> None:
    text = str(leaves({"password": "hunter2", "n": [41_421]}, "salt"))
    assert "password" in text
    assert "hunter2" not in text
    assert "41421" not in text
    assert list(leaves(list(range(5_000)), "salt")) == ["$"]


def test_equal_values_have_equal_digests_and_others_have_not() -> None:
    equal = [
        ({"b": 1, "a": {2, 3}}, {"a": {3, 2}, "b": 1}),
        (Path("x"), Path("x")),
        ({(1, 2): 3}, {(1, 2): 3}),
    ]
    assert all(digest(one, "s") == digest(other, "s") for one, other in equal)
    assert len({digest(value, "s") for value in (1, "1", b"1", True, None, [1], (), Path("1"), 1.0)}) == 9
    assert digest(1, "s") != digest(1, "another salt")
    assert digest(object(), "s") == digest(object(), "s")


def test_another_end_than_in_the_calm_run_is_reported_with_its_error() -> None:
    story = Story()
    story.begin()
    story.end(story.begin(), error="FileExistsError")
    detail = "failed with FileExistsError, completed without strikes"
    assert story.played("failed") == [(FindingKind.ENDS_DIFFERENTLY, "step", detail)]


def test_a_node_that_only_follows_from_another_is_not_accused() -> None:
    story = Story()
    story.begin()
    story.end(story.begin(), error="KeyError")
    nodes = {"a": ("failed", ()), "b": ("failed", ("a",)), "c": ("completed", ("b",))}
    calm = {"flow": "calm", "nodes": {"a": ("completed", ()), "b": ("completed", ()), "c": ("skipped", ())}}
    story.add("played", flow="f", number=3, ended=True, state="failed", nodes=nodes, check="", seconds=1.0)
    assert [(one.kind, one.node) for one in findings(CampaignBook(story.entries), calm)] == [
        (FindingKind.ENDS_DIFFERENTLY, "a")
    ]


def test_an_effect_with_a_key_for_each_attempt_is_found(
    subtests: pytest.Subtests,
) -> None:
    for last, found in (("3", []), ("4", [(FindingKind.KEY_CHANGES, "step", "charge")])):
        with subtests.test(last=last):
            story = Story()
            story.begin("calm")
            for key in ("1", "2", "3"):
                story.effect(key=key, flow="calm")
            story.begin()
            story.effect(key="1")
            story.begin(pid=2)
            story.effect(key="2", pid=2)
            story.begin(pid=3)
            story.effect(key="3", pid=3)
            story.begin(pid=4)
            if last not in "123":
                story.effect(key=last, pid=4)
            assert story.played() == found


def test_notes_name_what_does_not_count_and_what_is_missing() -> None:
    story = Story()
    story.begin("calm")
    story.effect(flow="calm")
    story.begin()
    story.add("unknown", name="lost")
    story.played()
    about = notes(CampaignBook(story.entries), CALM, ["bank:pay", "bank:lost"], 1)
    assert [note.partition(" ")[0] for note in about] == ["1", "bank:pay", "a"]
    assert "1 of 1 runs" in about[2]


def test_runs_that_were_given_up_are_noted() -> None:
    story = Story()
    story.played()
    [about] = notes(CampaignBook(story.entries), CALM, [], 7)
    assert about.startswith("stopped after 1 of 7 runs")


def test_parts_that_may_differ_are_not_compared_and_the_others_are() -> None:
    story = Story()
    story.end(story.begin(), {"path": "/a", "paths": ["/a"], "pathology": 1, "rows": 5})
    story.end(story.begin(), {"path": "/b", "paths": ["/b", "/c"], "pathology": 2, "rows": 5})
    story.play()
    book = CampaignBook(story.entries)

    def differing(*may_differ: str) -> list[str]:
        found = findings(book, CALM, may_differ)
        return [one.detail for one in found if one.kind is FindingKind.RESULT_DIFFERS]

    assert differing() == ["at $.path"]
    assert differing("$.path") == ["at $.pathology"]
    assert differing("$.path", "$.pathology") == ["at $.paths[0]"]
    assert differing("$.path", "$.pathology", "$.paths") == []
    assert differing("$") == []


def test_a_node_that_no_attempt_has_added_is_missing() -> None:
    found = Story().played(nodes={})
    assert found == [(FindingKind.ENDS_DIFFERENTLY, "", "missing, completed without strikes")]


def test_a_function_that_no_attempt_called_is_missing() -> None:
    story = Story()
    story.begin("calm")
    story.add("call", flow="calm", node="a", name="send")
    story.begin()
    story.end(story.begin())
    assert story.played() == [(FindingKind.EFFECT_MISSING, "step", "send")]


@pytest.mark.parametrize("kinds", [("completed", "completed"), ("failed", "completed")])
def test_a_second_end_that_is_accepted_breaks_a_promise(kinds: tuple[str, str]) -> None:
    story = Story()
    story.end(run := story.begin())
    for kind in kinds:
        story.accept(run, kind)
    assert story.played() == [(FindingKind.PROMISE_BROKEN, "step", "two ends of the node were accepted")]


def test_an_attempt_that_ran_twice_breaks_a_promise() -> None:
    story = Story()
    story.accept(story.begin())
    story.entries.append({**story.entries[0], "at": 10**9})
    assert story.played() == [(FindingKind.PROMISE_BROKEN, "step", "one attempt of the node ran twice")]


def test_an_end_of_an_attempt_that_another_has_replaced_breaks_a_promise(subtests: pytest.Subtests) -> None:
    broken = "an end was accepted from an attempt that another had replaced"
    for accepted, found in ((0, [(FindingKind.PROMISE_BROKEN, "step", broken)]), (1, [])):
        with subtests.test(accepted=accepted):
            story = Story()
            runs = story.begin(), story.begin(pid=2)
            story.accept(runs[accepted])
            assert story.played() == found


def test_a_flow_that_does_not_end_and_a_check_that_fails_are_findings() -> None:
    assert Story().played(ended=False, state="running") == [
        (FindingKind.NOT_ENDED, "", "running after 9 s and 0 strikes")
    ]
    assert Story().played(check="AssertionError: 2 rows") == [
        (FindingKind.CHECK_FAILED, "", "AssertionError: 2 rows")
    ]


def test_the_calm_run_tells_the_time_and_the_effects_of_a_node() -> None:
    story = Story()
    run = story.begin("calm")
    story.add("call", flow="calm", node="a", name="send")
    story.effect(flow="calm")
    story.effect(flow="calm", key="8")
    story.end(run)
    calm = calm_of(CampaignBook(story.entries), "calm")["a"]
    assert (calm.seconds, calm.effects, calm.calls) == (0.004, 2, 1)


def test_a_report_with_findings_fails_a_test_and_says_what_to_do() -> None:
    story = Story()
    for _ in range(2):
        story.begin()
        story.effect()
    story.played()
    book = CampaignBook(story.entries)
    found = findings(book, CALM)
    report = _report(found)
    assert not report.is_safe
    with pytest.raises(AssertionError, match=r"seed 5.*\n.*node a: effect repeated: charge 7 \(run 3\)"):
        report.assert_safe()
    _report([]).assert_safe()


def _report(found: Sequence[Any]) -> ChaosReport:
    return ChaosReport("nightly", 5, 1, 1, {}, 1.0, [], found)
