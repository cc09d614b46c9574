"""Cron expressions as ChasquiMQ reads them; its own results were captured from version 1.3."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from glidemq_orchestrate.chasquimq.repeats import CronTimes, Every
from glidemq_orchestrate.chasquimq.times import following
from glidemq_orchestrate.errors import ConfigurationError

NOW = datetime(2026, 11, 29, 3, 5, 30, tzinfo=UTC)  # a Sunday
CAPTURED = {
    "0 0 13 * 5": "2026-12-04 00:00",
    "0 0 */2 * 1": "2026-11-30 00:00",
    "0 0 */30 * 3": "2026-12-01 00:00",
    "0 0 13 * */3": "2026-12-02 00:00",
    "0 0 * * 7": "2026-12-06 00:00",
    "0 0 * * SUN": "2026-12-06 00:00",
    "0 0 * JAN *": "2027-01-01 00:00",
    "0 0 1-31 * 2": "2026-11-30 00:00",
    "0 0 13 * 0-6": "2026-11-30 00:00",
    "5/15 * * * *": "2026-11-29 03:20",
    "0 0 ? * 5": "2026-12-04 00:00",
}


@pytest.mark.parametrize("expression", CAPTURED)
def test_the_next_time_is_that_of_chasquimq(expression: str) -> None:
    found = following(CronTimes(expression), round(NOW.timestamp() * 1000))
    assert found is not None
    assert f"{datetime.fromtimestamp(found / 1000, UTC):%Y-%m-%d %H:%M}" == CAPTURED[expression]


@pytest.mark.parametrize("zone", [None, "", "UTC", "Z"])
def test_these_zones_are_utc(zone: str | None) -> None:
    assert following(CronTimes("0 3 * * *", zone), 0) == 3 * 3_600_000


def test_offsets_and_intervals_need_no_time_zone_data() -> None:
    assert following(CronTimes("0 3 * * *", "+02:30"), 0) == 1_800_000
    assert following(CronTimes("0 3 * * *", "-0200"), 0) == 5 * 3_600_000
    assert following(Every(250), 1_000) == 1_250


@pytest.mark.parametrize("expression", ["", "* * * *", "* * * * * * *", "60 * * * *", "0 0 * * 8", "x"])
def test_other_expressions_are_refused(expression: str) -> None:
    with pytest.raises(ConfigurationError):
        following(CronTimes(expression), 0)
