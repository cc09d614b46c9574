"""GlideMQMessageQueueProvider: implements ``MessageQueueTrigger`` for the scheme ``glidemq``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_glidemq.assets.glidemq import SCHEME, queue_address
from airflow_provider_glidemq.version_compat import AirflowOptionalProviderFeatureException

try:
    from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider
except ImportError as exc:
    raise AirflowOptionalProviderFeatureException(
        "MessageQueueTrigger needs another package: pip install 'airflow-provider-glidemq[messaging]'"
    ) from exc

if TYPE_CHECKING:
    from airflow.triggers.base import BaseEventTrigger


class GlideMQMessageQueueProvider(BaseMessageQueueProvider):
    """Turns ``MessageQueueTrigger`` into ``GlideMQMessageTrigger``.

    Two forms are supported: ``MessageQueueTrigger(scheme="glidemq", queue_name="orders", jobs="order")``,
    which takes the arguments of ``GlideMQMessageTrigger``, and the older
    ``queue="glidemq://CONNECTION/orders?jobs=order"``.
    """

    scheme = SCHEME

    def queue_matches(self, queue: str) -> bool:
        """Whether the URI has the scheme ``glidemq``."""
        return queue.startswith(f"{SCHEME}://")

    def trigger_class(self) -> type[BaseEventTrigger]:
        """The trigger, imported here: every DAG file with a ``MessageQueueTrigger`` imports this module."""
        from airflow_provider_glidemq.triggers.messages import GlideMQMessageTrigger  # noqa: PLC0415

        return GlideMQMessageTrigger

    def trigger_kwargs(self, queue: str, **kwargs: Any) -> dict[str, Any]:
        """The arguments in a URI.

        Raises:
            ValueError: The URI is not of the form ``glidemq://CONNECTION/QUEUE?jobs=NAME``, or a value is
                given both there and as an argument.
        """
        address = queue_address(queue)
        found: dict[str, Any] = {"glidemq_conn_id": address.conn_id, "queue_name": address.queue}
        if address.jobs:
            found["jobs"] = list(address.jobs)
        if both := sorted(set(found) & set(kwargs)):
            raise ValueError(f"{', '.join(both)}: given in {queue} already, so not as an argument too")
        return found
