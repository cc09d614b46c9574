"""The command line in tests: its commands are built once, and tried with or without being run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import typer
import typer.core
import typer.testing
from typer.main import get_command

__all__ = ["build_commands_once", "glidemq_problems", "shown_node"]


def build_commands_once() -> None:
    """Let ``CliRunner`` keep what it has built, which is most of the time of a call; repeatable."""
    module: Any = typer.testing
    if not hasattr(module._get_command, "cache_info"):
        module._get_command = cache(module._get_command)


def glidemq_problems(lines: Sequence[Sequence[str]]) -> list[str]:
    """Why the real command line does not accept some of these lines; nothing is run."""
    from glidemq_orchestrate.cli import app  # noqa: PLC0415  most tests do without it

    problems = []
    whole = get_command(app)
    for line in lines:
        if line[:1] != ["glidemq"]:
            continue
        command: Any = whole
        words = list(line[1:])
        while isinstance(command, typer.core.TyperGroup) and words and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        if isinstance(command, typer.core.TyperGroup):
            problems.append(f"{' '.join(line)}: no such command")
            continue
        try:
            command.make_context(command.name or "", words)
        except typer.Exit:
            continue  # --help
        except Exception as exc:
            if not hasattr(exc, "format_message"):
                raise
            problems.append(f"{' '.join(line)}: {exc.format_message()}")
    return problems


def shown_node(url: str, flow_id: str, node: str) -> str:
    """What ``glidemq flow node`` prints, in one line."""
    from glidemq_orchestrate.cli import app  # noqa: PLC0415  most tests do without it

    env = {"GLIDEMQ_URL": url, "COLUMNS": "200"}
    ran = typer.testing.CliRunner().invoke(app, ["flow", "node", flow_id, node], env=env)
    return " ".join(ran.output.split())
