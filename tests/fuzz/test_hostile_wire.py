"""Hostile texts in every field of everything stored: none is unpickled, compiled, imported or called."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.hostile_wire import CANARY

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_nothing_from_the_server_is_run(url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.hostile_wire", url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["tried"] > 150
    # A handler in a process raised it: the worker restores the exception of its own child.
    # And a worker starts the process that renews its leases.
    seen = [event for event in found["seen"] if "glidemq_orchestrate/worker/renewing_process.py" not in event]
    assert seen == ["pickle.find_class ('builtins', 'ValueError')"]
    assert [event.split()[0] for event in found["control"]] == ["compile", "exec", "pickle.find_class"]
    assert not (ROOT / CANARY).exists()
