"""Patterns of subjects."""

from __future__ import annotations

import pytest

from glidemq_orchestrate.broadcasts.messages import check_pattern, matches
from glidemq_orchestrate.errors import ConfigurationError

PATTERNS: list[tuple[str, str, bool]] = [
    ("a.b", "a.b", True),
    ("a.b", "a.*", True),
    ("a", "a.*", False),
    ("a.b.c", "a.*", False),
    ("a.b.c", "a.>", True),
    ("a", "a.>", False),
    ("a", ">", True),
    ("a.b.c", "*.b.>", True),
    ("a.c.c", "*.b.>", False),
]


def test_a_star_is_one_segment_and_an_arrow_the_rest(subtests: pytest.Subtests) -> None:
    for subject, pattern, fits in PATTERNS:
        with subtests.test(subject=subject):
            assert matches(subject, [check_pattern(pattern)]) is fits


def test_several_patterns_are_alternatives_and_none_fit_all() -> None:
    assert matches("a", ["b", "a"])
    assert matches("a", [])


def test_an_invalid_pattern_is_refused(subtests: pytest.Subtests) -> None:
    for pattern in ("", "a.>.b"):
        with subtests.test(pattern=pattern), pytest.raises(ConfigurationError, match="pattern"):
            check_pattern(pattern)
