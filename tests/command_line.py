"""The command line in tests: its commands are built once, and looked up by their words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import typer.testing
from typer.main import get_command

from glidemq_orchestrate.cli import app

__all__ = ["build_commands_once", "exists"]


def build_commands_once() -> None:
    """Let ``CliRunner`` keep what it has built, which is most of the time of a call; repeatable."""
    module: Any = typer.testing
    if not hasattr(module._get_command, "cache_info"):
        module._get_command = cache(module._get_command)


def exists(words: Sequence[str]) -> bool:
    """Whether ``glidemq`` has a command of these words, with the options among them."""
    command: Any = get_command(app)
    rest = list(words[1:])
    while rest and hasattr(command, "commands"):
        command = command.commands.get(rest.pop(0))
    known = {name for parameter in getattr(command, "params", ()) for name in parameter.opts}
    return command is not None and {word for word in rest if word.startswith("--")} <= known
