"""A warm process that does not answer, or is no longer needed, harms no other job."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest
from dagster_glidemq.warm import process as module
from dagster_glidemq.warm.process import Stale, WarmProcess

from glidemq_orchestrate import Unrecoverable
from tests.providers.dagster.stepping import wait_for


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[WarmProcess]:
    """One whose import does not end."""
    monkeypatch.setattr(module, "END_SECONDS", 0.2)
    process = WarmProcess()
    os.kill(process._process.pid, signal.SIGSTOP)
    yield process
    process.close()


def test_what_waits_for_an_import_that_does_not_end_goes_elsewhere_when_that_is_given_up(
    hung: WarmProcess,
) -> None:
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            hung.run("step", {}, lambda: 0, 1.0)
        except BaseException as exc:  # noqa: BLE001  looked at below
            raised.append(exc)

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_for(lambda: not hung.is_idle, 10)
    assert not hung.retire()
    with pytest.raises(Unrecoverable, match="before its process began"):
        hung.run("step", {}, lambda: signal.SIGINT, 0.1)
    waiting.join(20)
    assert [type(one) for one in raised] == [Stale]
    assert not hung.is_usable


def test_one_that_is_retired_takes_no_job(hung: WarmProcess) -> None:
    assert hung.retire()
    with pytest.raises(Stale):
        hung.run("step", {}, lambda: 0, 1.0)
