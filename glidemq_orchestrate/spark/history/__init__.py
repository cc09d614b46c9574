"""The history pipeline: the queues and nodes of ended flows, kept as tables and drawn as a chart.

``flow.build`` makes the flow. The server forgets flows after their retention; these tables stay.
"""

from glidemq_orchestrate.spark.history.flow import build

__all__ = ["build"]
