"""The functions of ``orders.py``, for workers: they do not need Dagster."""

from __future__ import annotations

import random
from typing import Any


def load(day: str, region: str) -> list[int]:
    """The amounts of the orders of a region; every attempt returns the same."""
    chance = random.Random(f"{day} {region}")  # noqa: S311  made up, and the same each time
    return [chance.randint(1, 100) for _ in range(chance.randint(5, 20))]


def summed(amounts: list[int]) -> dict[str, int]:
    """The number of orders, and their total value."""
    return {"orders": len(amounts), "total": sum(amounts)}


def check(regions: dict[str, dict[str, int]]) -> dict[str, Any]:
    """Whether every region has orders."""
    checks = [{"name": region, "passed": found["orders"] > 0} for region, found in regions.items()]
    return {"passed": all(one["passed"] for one in checks), "checks": checks}


def report(regions: dict[str, dict[str, int]]) -> dict[str, int]:
    """The totals by region."""
    return {region: found["total"] for region, found in regions.items()}


def correct(day: str) -> dict[str, str]:
    """A placeholder for a service that corrects the orders of a day."""
    return {"day": day}
