"""Suggests the known word nearest to an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

CUTOFF: Final = 0.65
# Words of other tools for options of ours.
SYNONYMS: Final = {
    "args": "data",
    "arguments": "data",
    "concurrency_key": "ordering",
    "countdown": "delay",
    "custom_id": "job_id",
    "depends_on": "after",
    "dependencies": "after",
    "deps": "after",
    "eta": "delay",
    "execution_timeout": "timeout",
    "handler": "job",
    "id": "name",
    "input": "data",
    "jobs": "nodes",
    "kwargs": "data",
    "max_attempts": "attempts",
    "max_retries": "attempts",
    "needs": "after",
    "params": "data",
    "payload": "data",
    "retries": "attempts",
    "retry_delay": "backoff",
    "steps": "nodes",
    "task": "job",
    "task_id": "job_id",
    "tasks": "nodes",
    "time_limit": "timeout",
    "trigger_rule": "rule",
    "upstream": "after",
    "wait_for": "after",
}


def nearest(word: object, known: Iterable[str]) -> str | None:
    """The known word nearest in spelling, or in meaning in other tools; None if none is near."""
    names = [str(name) for name in known]
    if not isinstance(word, str):
        return None
    if (meant := SYNONYMS.get(word.lower())) in names:
        return meant
    return next(iter(difflib.get_close_matches(word, names, 1, CUTOFF)), None)


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """``; did you mean 'this'?``, or '' if no known word is near."""
    near = nearest(word, known)
    return "" if near is None else f"; did you mean {near!r}?"
