"""Nothing from outside reaches a terminal as it is; what programs read stays exact."""

from __future__ import annotations

import io
import json
import logging
import threading
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from glidemq_orchestrate import JobState
from glidemq_orchestrate.cli import shell
from glidemq_orchestrate.cli.events import _json
from glidemq_orchestrate.cli.flow.view import flow_view
from glidemq_orchestrate.cli.shell import (
    SafeConsole,
    SafeFormatter,
    print_json,
    print_text,
    printable,
    summary_table,
)
from glidemq_orchestrate.clients.events import Event
from glidemq_orchestrate.flows.status import FlowId, FlowState, FlowStatus, NodeStatus

HOSTILE = "a\x1b[31mred\x1b]0;title\x07\x9b2J\x7f\u202egnp.exe\u2066\u2028\r\x00\udcff"
HARMLESS = "größe 日本語 🎉 a\tb"


def is_harmless(text: str) -> bool:
    return text == printable(text, lines=True)


@given(st.text())
def test_what_is_printable_holds_nothing_a_terminal_obeys(text: str) -> None:
    shown = printable(text)
    assert len(shown) == len(text)
    assert not any((ord(sign) < 32 and sign != "\t") or 0x7F <= ord(sign) < 0xA0 for sign in shown)
    assert "\u202e" not in shown
    shown.encode()
    assert printable(shown) == shown


def test_what_people_write_stays_as_it_is() -> None:
    assert printable(HARMLESS) == HARMLESS
    assert printable("a\nb", lines=True) == "a\nb"
    assert printable("a\nb") == "a␊b"
    assert printable("\x1b[0m") == "␛[0m"


def test_a_console_prints_nothing_from_outside_as_it_is(subtests: pytest.Subtests) -> None:
    for where in ("text", "markup", "table", "tree", "title", "summary"):
        with subtests.test(where=where):
            console = SafeConsole(file=io.StringIO(), width=200, force_terminal=True, color_system="standard")
            now = datetime(2026, 1, 1, tzinfo=UTC)
            status = FlowStatus(FlowId("f"), HOSTILE, FlowState.FAILED, "q", 1, 0, 1, HOSTILE, {}, now, now)
            node = NodeStatus(HOSTILE, "q", "1", "j", (), JobState.FAILED, 1, HOSTILE, None, now, now)
            table = Table("a")
            table.add_row(HOSTILE)
            shown = {
                "text": Text(HOSTILE, style="red"),
                "markup": f"[red]{HOSTILE}[/]",
                "table": table,
                "tree": flow_view(status, [node]),
                "title": Panel("x", title=Text(HOSTILE)),
                "summary": summary_table("x", [{"a": HOSTILE}]),
            }[where]
            console.print(shown)
            output = console.file.getvalue()  # type: ignore[attr-defined]  # it was made of one
            assert "\x1b[31mred" not in output
            assert "red␛" in output
            assert not {"\x9b", "\u202e", "\x07", "\udcff"} & set(output)
            if where in ("text", "markup"):
                assert "\x1b[31m" in output, "its own colours work"


def test_log_records_are_one_line_and_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(SafeFormatter("%(levelname)s %(message)s"))
    logger = logging.getLogger("tests.terminal")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        int(f"{HOSTILE}\nsecond")
    except ValueError:
        logger.exception("job %s", f"{HOSTILE}\nERROR forged")
    printed = capsys.readouterr().err
    logger.removeHandler(handler)
    assert printed.splitlines()[0].endswith("␊ERROR forged")
    assert "Traceback" in printed
    assert is_harmless(printed)


def test_lines_are_harmless_and_json_is_exact(capsys: pytest.CaptureFixture[str]) -> None:
    print_text(f"{HOSTILE}\n{HARMLESS}")
    assert is_harmless(printed := capsys.readouterr().out)
    assert printed.count("\n") == 1
    text = HOSTILE + HARMLESS
    print_json({"reason": text})
    assert is_harmless(printed := capsys.readouterr().out)
    assert json.loads(printed) == {"reason": text}
    line = _json(Event("1-1", "failed", text, "", {"failedReason": text}))
    assert is_harmless(line)
    assert json.loads(line)["fields"] == {"failedReason": text}


def test_a_long_command_shows_how_much_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    written, counted = io.StringIO(), threading.Event()

    def left() -> int:
        counted.set()
        return 41_000

    monkeypatch.setattr(shell, "errors", shell.SafeConsole(file=written, force_terminal=True))
    monkeypatch.setattr(shell, "PROGRESS_SECONDS", 0.01)
    with shell.progress("Deleting", left):
        assert counted.wait(20)
        time.sleep(0.3)  # the status is drawn some times a second
    assert "Deleting: 41,000 left" in written.getvalue()
