"""How much happens in a round."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """How much happens in a round.

    Attributes:
        flows: How many flows.
        kills: After so many kills the faults stop, if not before.
        seconds: After so long the faults stop.
        least: But not before so many processes were killed, if that takes less than a minute more.
        pause: Mean seconds between two faults of processes.
        around: Mean seconds between two faults around them.
        workers: Processes that run jobs.
        parents: Processes that have two others run jobs, as ``glidemq worker --processes 2`` does.
        node_workers: Processes that run jobs as glide-mq's workers in Node do.
        widest: Nodes of the largest fan-out.
        giant: Nodes of one fan-out that is much wider; 0: there is none.
        spark: Flows with steps of Spark; 0: there is no Spark.
        spark_workers: Processes that run those.
        spark_pause: Mean seconds between two faults of these, their sessions and drivers.
        bridged: The share of nodes of random flows that run behind the bridge to ChasquiMQ; 0: there is none.
        bridges: Processes that are such a bridge.
        chasqui_workers: Processes that run what these hand over.
        bridge_pause: Mean seconds between two faults of either.
        arrays: Flows with arrays.
        longs: The share of jobs without a flow that run for longer than a lease.
        settle: After so many seconds without faults everything must have ended.
    """

    flows: int = 60
    kills: int = 100
    seconds: float = 30.0
    least: int = 0
    pause: float = 0.15
    around: float = 3.0
    workers: int = 2
    parents: int = 1
    node_workers: int = 2
    widest: int = 150
    giant: int = 0
    spark: int = 0
    spark_workers: int = 1
    spark_pause: float = 5.0
    bridged: float = 0.0
    bridges: int = 2
    chasqui_workers: int = 2
    bridge_pause: float = 1.5
    arrays: int = 4
    longs: float = 0.02
    settle: float = 300.0
