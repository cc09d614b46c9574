"""The flights pipeline as a flow: names, order and payloads. Needs neither PySpark nor the data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from glidemq_orchestrate.errors import InvalidFlow
from glidemq_orchestrate.flows.spec import FlowNode, FlowSpec
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.jobs.options import JobOptions
from glidemq_orchestrate.spark.steps.run import JOB_NAME
from glidemq_orchestrate.wire.codec import Json

MODULE: Final = "glidemq_orchestrate.spark.flights.steps"
SECTIONS: Final = ("carrier", "route", "hour", "weather")
OPTIONS: Final = JobOptions(attempts=3, timeout=timedelta(minutes=10))
MONTHS: Final = range(1, 13)
MONTHS_VARIABLE: Final = "GLIDEMQ_FLIGHTS_MONTHS"


def chosen_months() -> list[int]:
    """The months that the environment variable ``GLIDEMQ_FLIGHTS_MONTHS`` names, such as ``1,2``, or all.

    Raises:
        InvalidFlow: The variable has another value.
    """
    text = os.environ.get(MONTHS_VARIABLE, "")
    return months_in(text) if text else list(MONTHS)


def months_in(text: str) -> list[int]:
    """The months in a text such as ``1,2``.

    Raises:
        InvalidFlow: The text is not a list of distinct numbers from 1 to 12, separated by commas.
    """
    return _checked([int(part) if part.isdecimal() else 0 for part in map(str.strip, text.split(","))], text)


def _checked(months: Sequence[int], given: object) -> list[int]:
    if not months or len(set(months)) != len(months) or not set(months) <= set(MONTHS):
        raise InvalidFlow(f"months must be distinct numbers from 1 to 12, got {described(given)}")
    return list(months)


def build(location: str, *, queue: str = "spark", months: Sequence[int] = MONTHS) -> FlowSpec:
    """The pipeline for some months of 2013: 20 nodes for the whole year.

    ``extract``, then ``clean-01`` to ``clean-12`` side by side, ``join``, ``quality``, the four
    ``delay-by-...`` side by side, and ``report``, whose result names the finished files.

    Args:
        location: Directory that every worker of the queue can read and write; use one per run.
        queue: Queue of all nodes.
        months: Distinct numbers from 1 to 12, at least one.

    Raises:
        InvalidFlow: ``months`` is invalid.
    """
    _checked(months, list(months))

    def node(
        name: str, function: str, after: Sequence[str], arguments: dict[str, Json] | None = None
    ) -> FlowNode:
        data: Json = {"callable": f"{MODULE}:{function}", "arguments": arguments or {}, "location": location}
        return FlowNode(name, queue=queue, job=JOB_NAME, data=data, after=after, options=OPTIONS)

    cleaned = [f"clean-{month:02}" for month in months]
    return FlowSpec(
        "flights",
        nodes=[
            node("extract", "extract", []),
            *(
                node(name, "clean", ["extract"], {"month": month})
                for name, month in zip(cleaned, months, strict=True)
            ),
            node("join", "join", ["extract", *cleaned]),
            node("quality", "quality", ["extract", "join"]),
            *(node(f"delay-by-{part}", "delay_by", ["quality"], {"section": part}) for part in SECTIONS),
            node("report", "report", ["quality", *(f"delay-by-{part}" for part in SECTIONS)]),
        ],
    )
