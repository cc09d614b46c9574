"""Half a minute of chaos; ``make chaos`` is the long form."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.campaign import outcome_of
from tests.chaos.size import Size


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_every_promise_holds_while_processes_die_and_the_server_fails(seed: int, tmp_path: Path) -> None:
    found = outcome_of(seed, tmp_path, Size(flows=25, kills=400, seconds=10, least=8, pause=0.2))
    assert found["violations"] == []
    assert sum(found["kills"].values()) >= 5
    assert found["runs"] > found["flows"]


@pytest.mark.long
def test_every_promise_holds_while_slots_move(tmp_path: Path) -> None:
    size = Size(flows=25, kills=400, seconds=10, pause=0.5, around=0.5)
    found = outcome_of(1, tmp_path, size, ground="cluster-moving")
    assert found["violations"] == []
    assert found["faults"]["move_keys"] + found["faults"]["move_slot"] >= 1
