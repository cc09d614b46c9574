"""The limit by tokens, as it is written."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.flows.checked import traced
from glidemq_orchestrate.worker import TokenLimit

FINE: dict[str, Any] = {"max_tokens": 5, "per": timedelta(seconds=1)}

WRONG_LIMITS: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "token_limit.max_tokens must be a whole number of at least 1, got 0"),
    ({"max_tokens": 1.5}, "token_limit.max_tokens"),
    ({"per": timedelta(0)}, "token_limit.per must be at least a millisecond"),
    ({"per": "60"}, "token_limit.per"),
    ({"scope": "all"}, "token_limit.scope must be 'queue', 'worker' or 'both', got 'all'"),
]

TRACES: list[tuple[str, str, str]] = [
    ("{}", "", "{}"),
    ("{}", "00-ab-cd-01", '{"traceparent":"00-ab-cd-01"}'),
    ('{"attempts":2}', "00-ab-cd-01", '{"traceparent":"00-ab-cd-01","attempts":2}'),
    ('{"traceparent":"mine"}', "00-ab-cd-01", '{"traceparent":"mine"}'),
    (
        '{"ordering":{"key":"traceparent"}}',
        "00-ab-cd-01",
        '{"traceparent":"00-ab-cd-01","ordering":{"key":"traceparent"}}',
    ),
]


def test_what_limits_nothing_is_refused(subtests: pytest.Subtests) -> None:
    for given, expected in WRONG_LIMITS:
        with subtests.test(given=given), pytest.raises(ConfigurationError, match=expected):
            TokenLimit(**(FINE | given))


def test_options_carry_the_trace_of_the_submission(subtests: pytest.Subtests) -> None:
    for options, trace, expected in TRACES:
        with subtests.test(options=options):
            assert traced(options, trace) == expected
