"""Sensors: runs and asset events for events of queues and flows.

The daemon evaluates a sensor repeatedly. A tick reads what is new since the last cursor, never waits, and
ends after 15 seconds or ``max_requests`` requests; the rest follows in the next tick. Dagster stores the
cursor after it has launched the requested runs. If it is killed in between, the tick is repeated: no run is
launched twice, as its run key is the same; asset events are recorded once more. A tick writes nothing to the
server, so a killed tick leaves nothing behind there. Only the sensor for canceled runs writes: it cancels
flows, which is repeatable.
"""

from dagster_glidemq.sensors.cancellation import build_glidemq_cancellation_sensor
from dagster_glidemq.sensors.flows import build_glidemq_flow_sensor
from dagster_glidemq.sensors.queues import build_glidemq_event_sensor, build_glidemq_queue_depth_sensor

__all__ = [
    "build_glidemq_cancellation_sensor",
    "build_glidemq_event_sensor",
    "build_glidemq_flow_sensor",
    "build_glidemq_queue_depth_sensor",
]
