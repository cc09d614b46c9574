"""Our rules are Airflow's: its own scheduler's code decides as the table that the flows are tested with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from glidemq_orchestrate import Rule
from tests.rule_oracle import verdicts

OURS: set[Rule] = set()  # rules that Airflow does not have; the oracle alone decides about them
PROGRAM = Path(__file__).with_name("trigger_rules.py")


@pytest.mark.long
def test_airflow_decides_as_we_do(tmp_path: Path) -> None:
    dags = tmp_path / "dags"
    dags.mkdir()
    settings = {"CORE__DAGS_FOLDER": str(dags), "CORE__LOAD_EXAMPLES": "False"}
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path)}
    environment |= {f"AIRFLOW__{name}": value for name, value in settings.items()}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(dags)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    decided: dict[str, dict[str, str]] = json.loads(done.stdout.splitlines()[-1])
    assert set(decided) == set(Rule) - OURS
    differing = {
        (rule, ends): (verdict, verdicts(rule, ends.split("-")))
        for rule, by_ends in decided.items()
        for ends, verdict in by_ends.items()
        if verdict not in verdicts(rule, ends.split("-"))
    }
    assert differing == {}
    assert sum(map(len, decided.values())) == len(set(Rule) - OURS) * 19
