"""Typer builds all commands anew for each call of its runner: most of the time of such a test."""

from __future__ import annotations

from functools import cache

import typer.testing

__all__ = ["build_commands_once"]


def build_commands_once() -> None:
    """Let ``CliRunner`` keep what it has built; repeatable."""
    known = typer.testing._get_command
    if not hasattr(known, "cache_info"):
        typer.testing._get_command = cache(known)
