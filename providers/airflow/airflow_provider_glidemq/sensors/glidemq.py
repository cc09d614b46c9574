"""The sensors."""

from airflow_provider_glidemq.sensors.flow import GlideMQFlowSensor
from airflow_provider_glidemq.sensors.job import GlideMQJobSensor
from airflow_provider_glidemq.sensors.queue import GlideMQQueueSensor

__all__ = ["GlideMQFlowSensor", "GlideMQJobSensor", "GlideMQQueueSensor"]
