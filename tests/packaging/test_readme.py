"""What the README says is tried."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import yaml
from typer.main import get_command

from glidemq_orchestrate.cli import app
from glidemq_orchestrate.flow import FlowSpec

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_quick_start_runs_as_printed() -> None:
    code = next(block for block in blocks("python") if "EmbeddedServer()" in block)
    assert len([line for line in code.splitlines() if line.strip()]) <= 22

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )

    assert (done.returncode, done.stdout.strip()) == (0, "7800"), done.stderr


def test_the_flow_file_is_a_valid_flow() -> None:
    flow = FlowSpec.from_dict(yaml.safe_load(blocks("yaml")[0])).check()

    assert [node.name for node in flow.nodes] == ["clean", "report"]


def test_every_command_line_exists() -> None:
    commands = [line[2:].split("#")[0].split() for block in blocks("console") for line in block.splitlines()]
    root = get_command(app)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for words in commands:
        if words[0] == "make":
            assert f"\n{words[1]}:" in makefile
        elif words[0] == "glidemq":
            command = root
            rest = words[1:]
            while rest and hasattr(command, "commands"):
                command = command.commands[rest.pop(0)]
            known = {name for parameter in command.params for name in parameter.opts}
            assert {word for word in rest if word.startswith("--")} <= known


def test_every_link_to_a_file_leads_somewhere() -> None:
    targets = re.findall(r"\]\((?!http)([^)#]+)\)", README)

    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []
