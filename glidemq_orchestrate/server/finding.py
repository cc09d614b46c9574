"""The result of one check of the doctor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

Facts = Mapping[str, str]
"""The fields of INFO."""


class Verdict(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        check: What was checked.
        verdict: ``ok``, ``warning`` (something may go wrong) or ``failed`` (something does).
        found: What was found.
        advice: How to fix it; empty if nothing needs to be done.
        server: The server that was checked.
    """

    check: str
    verdict: Verdict
    found: str
    advice: str = ""
    server: str = ""
