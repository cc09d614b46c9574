"""What ``airflow providers`` shows of ours, by the real command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from airflow_provider_glidemq import __version__

ROOT = Path(__file__).parents[3]
PACKAGE = "airflow-provider-glidemq"
OURS = "airflow_provider_glidemq"
# All in one process: each start of the command takes seconds.
COMMANDS = """
import contextlib, io, json, sys
from airflow.cli.cli_parser import get_parser

found = {}
for line in sys.argv[1:]:
    command = line.split()
    arguments = get_parser().parse_args(["providers", *command, "-o", "json"])
    with contextlib.redirect_stdout(io.StringIO()) as out:
        arguments.func(arguments)
    found[line] = json.loads(out.getvalue())
print("FOUND " + json.dumps(found))
"""
LISTS = (
    "list",
    f"get {PACKAGE} --full",
    "hooks",
    "triggers",
    "notifications",
    "queues",
    "links",
    "behaviours",
)

ROWS: list[tuple[str, list[str]]] = [
    ("triggers", [f"triggers.{name}" for name in ("glidemq", "messages", "node", "queue")]),
    ("notifications", ["notifications.glidemq.GlideMQNotifier"]),
    ("queues", ["queues.glidemq.GlideMQMessageQueueProvider"]),
    ("links", ["links.glidemq.GlideMQLink"]),
]


@cache
def shown() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMMANDS, *LISTS],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'providers/airflow'}"},
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    found: dict[str, Any] = json.loads(line.removeprefix("FOUND "))
    return found


def ours(command: str) -> list[dict[str, Any]]:
    """The rows of a list that name something of ours."""
    return [row for row in shown()[command] if OURS in json.dumps(row) or PACKAGE in json.dumps(row)]


@pytest.mark.long
def test_list_shows_the_distribution() -> None:
    (row,) = ours("list")
    assert (row["package_name"], row["version"]) == (PACKAGE, __version__)


@pytest.mark.long
def test_get_shows_the_whole_description() -> None:
    (row,) = ours(LISTS[1])
    assert row["package-name"] == PACKAGE
    for part in ("sensors", "notifications", "extra-links", "queues", "asset-uris", "connection-types"):
        assert part in json.dumps(row), part


def test_hooks_shows_the_connection_type() -> None:
    (row,) = ours("hooks")
    assert (row["connection_type"], row["hook_name"], row["class"]) == (
        "glidemq",
        "glide-mq (Valkey)",
        f"{OURS}.hooks.glidemq.GlideMQHook",
    )


def test_the_other_lists_show_each_of_ours(subtests: pytest.Subtests) -> None:
    for command, names in ROWS:
        with subtests.test(command=command):
            text = json.dumps(ours(command))
            for name in names:
                assert f"{OURS}.{name}" in text, text
