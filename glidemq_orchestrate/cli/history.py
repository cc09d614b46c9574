"""The history of a job as text, for ``glidemq job show`` and ``glidemq flow node``."""

from __future__ import annotations

from typing import Final

from glidemq_orchestrate.clients.queue import JobHistory

PARTIAL: Final = "(entries may be missing; jobs with the option history record all)"


def history_lines(history: JobHistory) -> str:
    """One line for each entry, in local time."""
    lines = [
        f"{entry.at.astimezone():%Y-%m-%d %H:%M:%S.%f}"[:-3] + f"  {entry.kind} {entry.detail}".rstrip()
        for entry in history
    ]
    return "\n".join([*lines, PARTIAL] if history.is_partial else lines)
