"""GlideMQLink: links a task to its flow, job or queue in a dashboard."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow.sdk import BaseOperator, BaseOperatorLink

from airflow_provider_glidemq.hooks.glidemq import GlideMQHook, looking_up
from airflow_provider_glidemq.version_compat import AirflowException
from glidemq_orchestrate.errors import GlideMQError

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey

    from glidemq_orchestrate import FlowProducer, Queue


class GlideMQLink(BaseOperatorLink):
    """A link to the page in the extra ``dashboard_url`` of the connection; without that extra, no link.

    Airflow reads it in the worker, after the task has deferred or ended.
    """

    name = "glide-mq"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002  Airflow's signature
        """The URL; empty if there is none, or before the task has found its flow."""
        if not isinstance(operator, Linked) or not operator.link_places:
            return ""
        try:
            return GlideMQHook(operator.glidemq_conn_id).get_dashboard_link(operator.link_places)
        except (AirflowException, GlideMQError):  # the task reports it
            return ""


class Linked(BaseOperator):
    """A task with a connection, clients for it, and a link.

    Attributes:
        link_places: The known values of ``flow_id``, ``queue``, ``job_id`` for the link; empty at first.
    """

    operator_extra_links = (GlideMQLink(),)
    glidemq_conn_id: str
    link_places: Mapping[str, str] = MappingProxyType({})

    def _producer(self) -> FlowProducer:
        with looking_up(self.glidemq_conn_id):
            return GlideMQHook(self.glidemq_conn_id).get_producer()

    def _queue(self, name: str) -> Queue:
        with looking_up(self.glidemq_conn_id):
            return GlideMQHook(self.glidemq_conn_id).get_queue(name)
