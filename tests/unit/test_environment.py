"""Variables that are set while a process starts."""

from __future__ import annotations

import os
from contextlib import ExitStack

import pytest

from glidemq_orchestrate.lifeline.lifeline import patched

NAME = "GLIDEMQ_TEST_VARIABLE"


@pytest.mark.parametrize("before", [None, "before"])
def test_overlapping_blocks_leave_what_was_there_before_the_first(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    if before is None:
        monkeypatch.delenv(NAME, raising=False)
    else:
        monkeypatch.setenv(NAME, before)
    first, second = ExitStack(), ExitStack()  # as in two threads
    first.enter_context(patched({NAME: "first"}))
    second.enter_context(patched({NAME: "second"}))
    assert os.environ[NAME] == "second"
    first.close()
    assert os.environ[NAME] == "second"
    second.close()
    assert os.environ.get(NAME) == before


def test_an_inner_block_restores_the_value_of_the_outer_one() -> None:
    with patched({NAME: "outer"}):
        with patched({NAME: "inner"}):
            assert os.environ[NAME] == "inner"
        assert os.environ[NAME] == "outer"
        with patched({NAME: "outer"}):
            pass
        assert os.environ[NAME] == "outer"
    assert NAME not in os.environ
