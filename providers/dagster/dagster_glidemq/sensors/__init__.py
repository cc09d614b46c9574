"""Sensors: runs and asset events for what happens on queues and to flows.

The daemon calls a sensor again and again; a tick reads what is new since the cursor of the last one, never
waits, and ends after 15 seconds or ``max_requests`` requests; the rest comes with the next tick. Dagster
stores the cursor after it has launched what a tick requested. If it is killed between the two, the tick is
repeated: runs are not, as their run keys are the same each time; asset events are recorded once more. A tick
writes nothing to the server, so one that is killed leaves nothing behind there. Only the sensor for canceled
runs writes: it cancels flows, which may be repeated.
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
