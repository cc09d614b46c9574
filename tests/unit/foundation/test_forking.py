"""Whether processes may be forked."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

METHOD = """
import socket, sys, tempfile, threading
from glidemq_orchestrate.foundation.forking import left_open, start_method

before = left_open()
{}
print(start_method(before), start_method())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="they are forked on Linux only")
@pytest.mark.parametrize(
    ("code", "methods"),
    [
        ("data = open(__file__).read()", "fork fork"),
        (
            "thread = threading.Thread(target=threading.Event().wait, daemon=True); thread.start()",
            "spawn spawn",
        ),
        ("server = socket.create_server(('127.0.0.1', 0))", "spawn fork"),
        ("file = open(__file__)", "spawn fork"),
        ("folder = tempfile.TemporaryDirectory()", "spawn fork"),
    ],
)
def test_they_are_forked_unless_the_code_has_left_something_that_a_fork_would_share(
    code: str, methods: str, tmp_path: Path
) -> None:
    (tmp_path / "main.py").write_text(METHOD.format(code))
    command = [sys.executable, str(tmp_path / "main.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == methods
