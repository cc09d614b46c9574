"""Decides whether the result of a check passes. Pure."""

from __future__ import annotations

from typing import Any, Final

NOT_PASSED: Final = "the check did not pass"
"""The failure reason of a job with ``must_pass``; its result is then stored as its progress."""


def has_passed(result: Any) -> bool:
    """Whether the result of a check passes, which is the default.

    ``False`` does not pass, nor does ``{"passed": false}``, nor ``{"checks": [...]}`` with a failed part,
    unless that part is a warning: ``{"passed": false, "severity": "WARN"}``.
    """
    if not isinstance(result, dict):
        return result is not False
    checks = result.get("checks")
    parts = checks if isinstance(checks, list) else []
    return result.get("passed") is not False and all(map(_is_fine, parts))


def _is_fine(part: Any) -> bool:
    if not isinstance(part, dict) or part.get("passed") is not False:
        return True
    return str(part.get("severity", "")).upper() in ("WARN", "WARNING")
