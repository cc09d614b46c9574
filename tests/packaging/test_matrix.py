"""The page of tested versions keeps the rows that did not run; hosted CI runs verbs of the Makefile.

What does not run on a cluster is a test that exists.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from glidemq_orchestrate.wire.keys import slot_of
from tests.builders import NEAR
from tests.matrix import PAGE, ROWS, counted, written
from tests.profile import NOT_ON_A_CLUSTER, NOT_WITH_SHARDS

ROOT = Path(__file__).parents[2]
BEFORE = """# Tested versions

| row | versions |
|---|---|
| a | 1 |
| b | 2 |
"""


def test_a_row_that_ran_replaces_its_line() -> None:
    assert written(BEFORE, "a", ["3"]) == BEFORE.replace("| a | 1 |", "| a | 3 |")


def test_a_row_that_runs_for_the_first_time_is_added() -> None:
    assert written(BEFORE, "c", ["3"]) == BEFORE + "| c | 3 |\n"


def test_tests_are_counted_though_lines_follow_the_summary() -> None:
    log = "....\n3 passed in 1.00s\nFAILED tests/a.py::b - 7 failed in vain\n"
    log += "1 failed, 651 passed, 2 skipped in 303.16s (0:05:03)\nException ignored in: <socket>\n"
    assert counted(log) == {"failed": 1, "passed": 651, "skipped": 2}
    assert counted("Killed\n") == {}


def test_the_page_names_only_rows_of_the_matrix() -> None:
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")][1:]
    assert {line.split("|")[1].strip() for line in lines} <= {row.name for row in ROWS}


def test_hosted_ci_runs_every_row_and_only_verbs_of_the_makefile() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))["jobs"]
    assert jobs["matrix"]["strategy"]["matrix"]["row"] == [row.name for row in ROWS]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"][0]["hooks"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    commands += [hook["entry"] for hook in hooks]
    makefile = (ROOT / "Makefile").read_text("utf-8")
    verbs = [command.split()[1] for command in commands if command != "bash .ci/run"]
    assert [verb for verb in verbs if f"\n{verb}:" not in makefile] == []


def test_what_does_not_run_on_a_cluster_is_named_as_it_is() -> None:
    every = [*NOT_ON_A_CLUSTER.values(), *NOT_WITH_SHARDS.values()]
    for path, *names in (name.split("::") for tests in every for name in tests):
        text = (ROOT / path).read_text("utf-8")
        assert all(re.search(rf"^ *(async )?(def|class) {name}\b", text, re.MULTILINE) for name in names), (
            path
        )


def test_two_queues_of_the_tests_are_in_one_slot() -> None:
    assert slot_of(NEAR) == slot_of("etl")
