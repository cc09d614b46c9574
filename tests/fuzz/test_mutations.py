"""The fuzzer sees what it should: each test breaks the package in one place and expects a report."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from glidemq_orchestrate import ConnectionSettings, Queue
from glidemq_orchestrate.flows.forms import file, reader
from glidemq_orchestrate.foundation import arguments
from glidemq_orchestrate.wire.call import Call
from tests.fuzz import calls
from tests.fuzz.campaign import Report, run
from tests.fuzz.entries import ENTRIES


def found(name: str, cases: int, **options: Any) -> str:
    """What the first run reports that sees anything, as one text.

    What a seed draws depends on the modules that other tests have loaded; one run in eight sees nothing.
    """
    for seed in range(1, 9):
        report: Report = run(ENTRIES[name], seed, cases, **options)
        if report.findings:
            return str(report)
    raise AssertionError("the fuzzer did not see it")


def test_a_repr_that_shows_the_password_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConnectionSettings, "__repr__", lambda self: f"ConnectionSettings({self.url!r})")
    assert "a secret is in a repr of settings" in found("addresses", 60)


@pytest.mark.long
def test_an_error_that_shows_data_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(exc: Any, wire: Any, *_: Any) -> str:
        return f"{exc.errors()} in {wire}"

    monkeypatch.setattr(file, "summary", shown)
    assert "a secret is in the text of InvalidFlow" in found("flow-files", 150)


@pytest.mark.long
def test_an_error_that_no_docstring_mentions_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fits(_value: object, _hint: Any) -> bool:
        return True

    monkeypatch.setattr(arguments, "fits", fits)
    assert "undocumented error" in found("constructors", 100)


@pytest.mark.long
def test_a_reply_that_is_trusted_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(self: Call[Any], reply: Any) -> Any:
        return self.decode(reply)

    monkeypatch.setattr(Call, "read", read)
    assert "undocumented error" in found("replies", 60)


def test_a_refusal_that_has_changed_something_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(self: Queue, name: str, data: Any = None, **options: Any) -> Any:
        self.add_log("done", "it began")
        return original(self, name, data, **options)

    original = Queue.add
    monkeypatch.setattr(Queue, "add", add)
    monkeypatch.setattr(calls, "good_arguments", lambda *_: {"name": "", "data": None})
    monkeypatch.setattr(calls.Clients, "methods", lambda self: [("queue", "add", self.queue.add)])
    assert "queue.add was refused" in found("calls", 20)


def test_a_hang_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(path: Path, text: str) -> Any:
        while "d" in text:
            time.sleep(0.01)
        return json.loads(text)

    monkeypatch.setattr(reader, "_parse", parse)
    assert "not done within 1 s" in found("flow-files", 5, seconds=1.0)
