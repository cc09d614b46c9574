"""Patterns of subjects."""

from __future__ import annotations

import pytest

from glidemq_orchestrate.broadcasts.subjects import check_pattern, matches
from glidemq_orchestrate.errors import ConfigurationError


@pytest.mark.parametrize(
    ("subject", "pattern", "fits"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.*", True),
        ("a", "a.*", False),
        ("a.b.c", "a.*", False),
        ("a.b.c", "a.>", True),
        ("a", "a.>", False),
        ("a", ">", True),
        ("a.b.c", "*.b.>", True),
        ("a.c.c", "*.b.>", False),
    ],
)
def test_a_star_is_one_segment_and_an_arrow_the_rest(subject: str, pattern: str, *, fits: bool) -> None:
    assert matches(subject, [check_pattern(pattern)]) is fits


def test_several_patterns_are_alternatives_and_none_fit_all() -> None:
    assert matches("a", ["b", "a"])
    assert matches("a", [])


@pytest.mark.parametrize("pattern", ["", "a.>.b"])
def test_an_invalid_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigurationError, match="pattern"):
        check_pattern(pattern)
