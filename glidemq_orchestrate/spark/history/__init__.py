"""The history pipeline: what ended flows tell of queues and nodes, kept as tables and drawn as a chart.

``flow.build`` makes the flow. The server forgets flows after their retention; these tables stay.
"""

from glidemq_orchestrate.spark.history.flow import build

__all__ = ["build"]
