"""A flow is watched in a terminal."""

from __future__ import annotations

import os
import pty
import re
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

from glidemq_orchestrate import FlowProducer
from tests.processes import end, spawn
from tests.server.cli.flow.conftest import Glidemq, fan, work

if TYPE_CHECKING:
    from tests.conftest import RunWorker


def test_the_tree_in_a_terminal_is_live(url: str, file: str, run_worker: RunWorker, tmp_path: Path) -> None:
    go = threading.Event()
    run_worker(["etl"], {"work": lambda ctx: ctx.node != "report" or go.wait(30)})
    with terminal(url, "flow", "submit", file, "--id", "n1") as shown:
        for wanted in ("▶ report ◆", "13/14 completed", "clean[0..11]"):
            shown.until(wanted)
        go.set()
        shown.until("14/14 completed")
        assert shown.ended() == 0


@pytest.mark.parametrize(
    "words",
    [pytest.param(["--json"], marks=pytest.mark.long), pytest.param(["--lines"], marks=pytest.mark.long), []],
)
def test_a_broken_connection_is_opened_again(
    url: str, words: list[str], flows: FlowProducer, run_worker: RunWorker, redis_client: Any
) -> None:
    flows.submit(fan(), flow_id="n1")
    with terminal(url, "flow", "watch", "n1", *words) as shown:
        shown.until("extract")
        redis_client.client_kill_filter(_type="normal", skipme=True)
        run_worker(["etl"], {"work": work})
        assert shown.ended() == 0
    assert "report" in shown.text
    assert "Traceback" not in shown.text
    lines = [line for line in shown.text.splitlines() if '"extract"' in line and '"completed"' in line]
    assert len(lines) == (words == ["--json"])


def test_an_interrupt_leaves_the_flow_alone(
    url: str, file: str, glidemq: Glidemq, flows: FlowProducer
) -> None:
    glidemq("flow", "submit", file, "--id", "n1", "--no-wait", "--no-require-workers")
    with terminal(url, "flow", "watch", "n1") as shown:
        shown.until("extract")
        shown.process.send_signal(signal.SIGINT)
        assert shown.ended() == 130
        assert "The flow continues. To watch it: glidemq flow watch n1" in shown.text
    assert flows.get("n1").status().state == "running"


class terminal:  # noqa: N801  reads as a with-block does
    """A command in a terminal of its own, and what it has written there."""

    def __init__(self, url: str, *words: str) -> None:
        self.master, slave = pty.openpty()
        environment = {**os.environ, "GLIDEMQ_URL": url, "COLUMNS": "120", "LINES": "40", "TERM": "xterm"}
        command = [sys.executable, "-m", "glidemq_orchestrate", *words]
        self.process = spawn(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
        os.close(slave)
        self.written = bytearray()

    @property
    def text(self) -> str:
        return self.written.decode(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end(self.process)
        os.close(self.master)

    def parts(self) -> Iterator[bytes]:
        while True:
            try:
                part = os.read(self.master, 4096)
            except OSError:  # the other end is closed
                return
            if not part:
                return
            yield part

    def until(self, wanted: str) -> None:
        parts = self.parts()
        while wanted not in self.plain():
            part = next(parts, None)
            if part is None:
                break
            self.written += part
        else:
            return
        raise AssertionError(f"{wanted!r} was never written:\n{self.text}")

    def plain(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.text)

    def ended(self) -> int:
        for part in self.parts():
            self.written += part
        return self.process.wait(timeout=20)
