"""Histories of whole systems in simulated time; see ``simulation``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Final

import pytest

from tests.profile import IS_ALL, sampled
from tests.properties.simulation.history import run_history
from tests.properties.simulation.mutations import MUTATIONS, Mutation
from tests.properties.simulation.search import search
from tests.properties.simulation.store import opened

if TYPE_CHECKING:
    from tests.properties.simulation.plan import Path
    from tests.properties.simulation.store import Store

COMMAND: Final = [sys.executable, "-m", "tests.properties.simulation"]
ROOT: Final = FilePath(__file__).parents[2]


@pytest.mark.parametrize(
    ("path", "few", "many"),
    [("staged", 30 if IS_ALL else 5, 20_000), ("portable", 10 if IS_ALL else 3, 10_000)],
)
@pytest.mark.timeout(7_200)
def test_no_history_breaks_a_promise(store: Store, path: Path, few: int, many: int, *, is_long: bool) -> None:
    report = search(store, 0, [path], most=many if is_long else few)
    assert not report.failures, [(one.seed, one.problems) for one in report.failures]
    assert report.histories == (many if is_long else few)


@pytest.mark.parametrize("path", ["staged", "portable"])
def test_the_same_seed_makes_the_same_decisions(store: Store, path: Path) -> None:
    first, other, again = (run_history(store, seed, path) for seed in ("7", "8", "7"))
    assert first.trace == again.trace
    assert first.digest == again.digest != other.digest


@pytest.mark.long
def test_another_process_replays_a_history(store: Store) -> None:
    here = run_history(store, "7", "portable")
    command = [*COMMAND, "--seed", "7", "--path", "portable", "--steps"]
    other_hashes = os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT)}
    there = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env=other_hashes)
    assert f"seed 7, path portable, decisions {here.digest}" in there.stdout
    assert "submitter-0/main" in there.stdout


@pytest.mark.long
@pytest.mark.parametrize("mutation", sampled(MUTATIONS), ids=lambda mutation: mutation.name)
def test_the_simulation_notices_a_defect(mutation: Mutation) -> None:
    with opened(mutation.change) as broken, mutation.applied():
        found = search(broken, mutation.seed, [mutation.path], most=40)
    assert found.failures, f"begin at another seed: none of 40 histories from {mutation.seed} shows it"
