"""The defects of ``make mutate`` can be put in, and stay in a process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from glidemq_orchestrate._lua import ORCHESTRATE, library
from glidemq_orchestrate.server import libraries as of_the_package
from tests.chaos.mutations import DEFECTS
from tests.processes import run

STAYS = """
import gc
from glidemq_orchestrate._lua import ORCHESTRATE, library
from glidemq_orchestrate.server import libraries as of_the_package
from tests.chaos.mutations import DEFECTS
DEFECTS[0].begin()
gc.collect()
print(vars(of_the_package)["library"](ORCHESTRATE).source != library(ORCHESTRATE).source)
"""


def used() -> Any:
    """The library that clients of this process load."""
    return vars(of_the_package)["library"](ORCHESTRATE)


def test_a_defect_is_put_in_and_taken_out() -> None:
    for defect in DEFECTS:
        before = [getattr(module, name) for module, name, _ in defect.patched]
        with defect.applied():
            assert used().sha256 in used().source
            assert used().sha256 != library(ORCHESTRATE).sha256
            for old, new in defect.replaced:
                assert new in used().source, defect.name
                assert old in new or old not in used().source, defect.name
            assert all(getattr(module, name) is function for module, name, function in defect.patched)
            assert before != [function for _, _, function in defect.patched] or not before, defect.name
        assert used() is library(ORCHESTRATE), defect.name
        assert [getattr(module, name) for module, name, _ in defect.patched] == before


def test_a_defect_stays_in_a_process() -> None:
    done = run([sys.executable, "-c", STAYS], timeout=60, cwd=Path(__file__).parents[2])
    assert done.stdout.strip() == "True", done.stderr
