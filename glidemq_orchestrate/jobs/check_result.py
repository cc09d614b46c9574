"""Whether the result of a check passes. Pure."""

from __future__ import annotations

from typing import Any, Final

NOT_PASSED: Final = "the check did not pass"
"""Why a job fails whose options have ``must_pass``; its result is its progress then."""


def has_passed(result: Any) -> bool:
    """Whether the result of a check passes: unless it says otherwise.

    ``False`` does not pass, nor ``{"passed": false}``, nor ``{"checks": [...]}`` with a part that has not
    passed, unless that part says that it is a warning: ``{"passed": false, "severity": "WARN"}``.
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
