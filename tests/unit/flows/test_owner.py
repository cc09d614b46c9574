"""Owner: what is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from glidemq_orchestrate import Owner
from glidemq_orchestrate.errors import ConfigurationError

BAD_OWNERS: list[tuple[Any, str]] = [
    ({"name": ""}, "owner '' is not valid: use 1 to 256 characters"),
    ({"name": "x" * 257}, "owner"),
    ({"name": 7}, "owner"),
    ({"name": "a\nb"}, "owner"),
    ({"name": "a", "lease": timedelta(seconds=14)}, "lease must be at least 0:00:15"),
    ({"name": "a", "lease": timedelta(days=8)}, "lease must be at most 7 days"),
    ({"name": "a", "lease": "60"}, "lease must be a timedelta or a number of seconds, got str"),
    ({"name": "a", "on_expiry": "drop"}, "on_expiry must be cancel or keep"),
]


def test_a_bad_owner_is_refused(subtests: pytest.Subtests) -> None:
    for arguments, message in BAD_OWNERS:
        with subtests.test(arguments=arguments), pytest.raises(ConfigurationError, match=message):
            Owner(**arguments)
