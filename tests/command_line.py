"""Typer builds all commands anew for each call of its runner: most of the time of such a test."""

from __future__ import annotations

from functools import cache
from typing import Any

import typer.testing

__all__ = ["build_commands_once"]


def build_commands_once() -> None:
    """Let ``CliRunner`` keep what it has built; repeatable."""
    module: Any = typer.testing
    if not hasattr(module._get_command, "cache_info"):
        module._get_command = cache(module._get_command)
