"""Whether a series of samples grows: a line through it, and how certain its slope is."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Verdict = Literal["flat", "grows", "undecided"]

BLOCKS: Final = 12
CERTAIN: Final = 2.23
"""Standard errors to each side that hold the true slope in 19 of 20 cases, for a line through 12 points."""


@dataclass(frozen=True)
class Trend:
    """The growth of one series.

    Attributes:
        level: Its median.
        per_hour: How much it grows in an hour.
        uncertainty: To each side of ``per_hour``: the growth is between the two in 19 of 20 cases.
        limit: What growth counts as none.
    """

    level: float
    per_hour: float
    uncertainty: float
    limit: float

    @property
    def verdict(self) -> Verdict:
        """``flat`` if even the upper end is within the limit, ``grows`` if even the lower end is beyond."""
        if self.per_hour + self.uncertainty <= self.limit:
            return "flat"
        return "grows" if self.per_hour - self.uncertainty > self.limit else "undecided"


def trend(hours: Sequence[float], values: Sequence[float], limit: float) -> Trend:
    """The line through the medians of 12 equal parts of a series.

    Neighbouring samples are alike, so that the samples themselves would make the line look more certain than
    it is. Medians, since a single outlier, as while the server rewrites its file, is no growth.

    Args:
        hours: When each value was measured; ascending.
        values: At least 24 of them.
        limit: See ``Trend``.
    """
    if len(values) < 2 * BLOCKS:
        raise ValueError(f"a trend needs {2 * BLOCKS} samples, got {len(values)}")
    edges = [round(len(values) * part / BLOCKS) for part in range(BLOCKS + 1)]
    parts = [slice(edges[part], edges[part + 1]) for part in range(BLOCKS)]
    x = [statistics.fmean(hours[part]) for part in parts]
    y = [float(statistics.median(values[part])) for part in parts]
    slope, intercept = statistics.linear_regression(x, y)
    mean = statistics.fmean(x)
    residuals = sum((at - slope * when - intercept) ** 2 for when, at in zip(x, y, strict=True))
    spread = sum((when - mean) ** 2 for when in x)
    error = (residuals / (BLOCKS - 2) / spread) ** 0.5
    return Trend(float(statistics.median(values)), slope, CERTAIN * error, limit)
