"""How many worker processes there are."""

from __future__ import annotations

import pytest

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.worker import run_processes
from glidemq_orchestrate.worker.handlers.handler import Handlers
from glidemq_orchestrate.worker.services import worker_processes
from glidemq_orchestrate.worker.services.worker_process import Limits
from glidemq_orchestrate.worker.services.worker_processes import process_count

MIB = 2**20


@pytest.fixture
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four cores, and memory for six processes."""
    monkeypatch.setattr(worker_processes, "cores", lambda: 4)
    monkeypatch.setattr(worker_processes, "resident_memory", lambda: 50 * MIB)
    monkeypatch.setattr(worker_processes, "available_memory", lambda: 340 * MIB)


@pytest.mark.usefixtures("_machine")
def test_by_default_there_is_one_for_each_core_if_jobs_and_memory_suffice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert process_count(None) == 4
    assert process_count(None, 10) == 4
    assert process_count(None, 3) == 3, "no more than jobs that run at the same time"
    monkeypatch.setattr(worker_processes, "available_memory", lambda: 110 * MIB)
    assert process_count(None, 10) == 2
    monkeypatch.setattr(worker_processes, "available_memory", lambda: 10 * MIB)
    assert process_count(None, 10) == 1
    monkeypatch.setattr(worker_processes, "available_memory", lambda: None)
    assert (process_count(None, 10), process_count(70, 100)) == (4, 70)


@pytest.mark.usefixtures("_machine")
def test_more_than_fit_into_the_memory_are_refused() -> None:
    assert process_count(6, 10) == 6
    with pytest.raises(ConfigurationError) as refused:
        process_count(7, 10)
    assert str(refused.value) == (
        "7 processes need 350 MiB (50 MiB each, without jobs), and 340 MiB are available. Fix: at most 6"
    )


@pytest.mark.parametrize("value", [0, -1, True, "2", 1.5])
def test_other_numbers_are_refused(value: object) -> None:
    for wrong in (
        lambda: run_processes(lambda: None, value),  # type: ignore[arg-type, return-value]
        lambda: Limits(jobs=value),  # type: ignore[arg-type]
        lambda: Limits(memory=value),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigurationError, match="must be"):
            wrong()


def test_one_of_several_apps_that_wants_a_single_process_decides() -> None:
    all_of_them = Handlers()
    all_of_them.include(Handlers())
    assert not all_of_them.single_process
    all_of_them.include(Handlers(single_process=True))
    all_of_them.include(Handlers())
    assert all_of_them.single_process
