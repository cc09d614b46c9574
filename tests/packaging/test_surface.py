"""The public surface is pinned: no name, parameter, command, option or exit code disappears unnoticed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from typer.testing import CliRunner

from glidemq_orchestrate import EmbeddedServer, FlowProducer, FlowSpec
from glidemq_orchestrate.cli import app
from tests.builders import node

PINNED: Final = Path(__file__).parent / "surface.txt"


def test_the_surface_is_the_pinned_one() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.surface"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    now, pinned = set(printed.splitlines()), set(PINNED.read_text("utf-8").splitlines())
    gone, new = sorted(pinned - now), sorted(now - pinned)
    assert (gone, new) == ([], []), "after a decision to change the surface: make generated"


FORMS: dict[str, set[str]] = {
    "flow show f": {"flow", "home", "supervised", "nodes", "results"},
    "flow show f/flow": {
        "id", "name", "state", "generation", "total", "completed", "failed", "skipped", "labels",
        "reason", "created_at", "finished_at",
        "idempotency_key",
    },
    "flow show f/nodes": {
        "name", "job_id", "queue", "state", "attempts", "reason", "seconds", "wait", "after", "progress",
        "started_at", "finished_at",
    },
    "flow list/": {"id", "name", "state", "generation", "total", "completed", "failed", "labels"},
    "flow node f a": {
        "name", "state", "attempts", "seconds", "data", "inputs", "result", "logs", "wait", "code", "handler",
    },
    "queue list/": {"queue", "paused", "counts", "workers", "lost_workers"},
    "queue show etl": {"queue", "paused", "counts", "workers", "lost_workers"},
    "queue jobs etl/": {"id", "name", "state", "attempts_made", "max_attempts", "failed_reason", "flow_id"},
    "job show etl f~a": {"id", "name", "state", "data", "result", "logs", "wait", "code", "handler"},
    "doctor/": {"check", "verdict", "found", "advice", "server"},
    "library status/": {"server", "name", "loaded", "ours", "version", "sha256"},
}  # fmt: skip
"""Fields that ``--json`` has at least, by command; after the slash the part, or the first of a list."""


def test_json_output_has_its_documented_fields() -> None:
    with EmbeddedServer() as server, FlowProducer(server.url) as flows:
        flows.submit(FlowSpec("nightly", [node("a")]), flow_id="f")
        missing = {}
        for form, fields in FORMS.items():
            command, is_part, part = form.partition("/")
            found: Any = json.loads(_printed(server.url, *command.split(), "--json"))
            found = found[part] if part else found
            found = found[0] if isinstance(found, list) else found
            if is_part and not found:
                raise AssertionError(f"{form} is empty")
            if fields - set(found):
                missing[form] = fields - set(found)
    assert missing == {}


def _printed(url: str, *words: str) -> str:
    return CliRunner().invoke(app, words, env={"GLIDEMQ_URL": url}).stdout
