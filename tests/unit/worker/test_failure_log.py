"""Which failures a service logs that it survives."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from glidemq_orchestrate.errors import ConnectionFailed
from glidemq_orchestrate.worker.handlers.log import FailureLog

if TYPE_CHECKING:
    import pytest

WHAT = [f"{chore} of queue etl~{shard}~x" for shard in range(20) for chore in ("upkeep", "leases")]


def test_an_outage_is_logged_once_for_everything_that_it_stops(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="glidemq_orchestrate.worker")
    failures = FailureLog("w")
    for host in ("a", "b"):
        for what in WHAT * 2:
            failures.report(what, ConnectionFailed(f"cannot connect to {host}"))
    first = "w: upkeep of queue etl~0~x failed and is retried: ConnectionFailed: cannot connect to"
    assert caplog.messages == [f"{first} a", f"{first} b"]
    caplog.clear()
    for what in WHAT:
        failures.clear(what)
        failures.clear(what)
    assert caplog.messages == ["w: upkeep of queue etl~0~x works again"]
    failures.report(WHAT[1], ConnectionFailed("cannot connect to b"))
    assert caplog.messages[1:] == [f"{first} b".replace("upkeep", "leases")]


def test_other_failures_are_logged_for_each_that_has_them(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog("w")
    for what in WHAT * 2:
        failures.report(what, ValueError("bad reply"))
    assert len(caplog.messages) == len(WHAT)
