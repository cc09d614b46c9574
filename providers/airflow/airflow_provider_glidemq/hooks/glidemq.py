"""Makes clients of glidemq_orchestrate from Airflow connections. No task logic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from airflow.sdk import BaseHook

import glidemq_orchestrate
from airflow_provider_glidemq.connection_form import form_behaviour, form_widgets
from glidemq_orchestrate.errors import ConfigurationError, FlowNotFound, GlideMQError
from glidemq_orchestrate.keys import DEFAULT_PREFIX
from glidemq_orchestrate.settings import ConnectionSettings

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from glidemq_orchestrate import AsyncFlowProducer, FlowProducer

DEFAULT_CONN_ID: Final = "glidemq_default"
DEFAULT_PORT: Final = 6379
_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("", "0", "false", "no", "off", "none")


class GlideMQHook(BaseHook):
    """Clients for the server of a connection of type ``glidemq``.

    The connection: ``host`` (a name, an address, the path of a unix socket, or a whole URL such as
    ``valkeys+cluster://a:6379,b:6379?ca=/etc/ca.pem``, without user and password), ``port`` (6379), ``login``
    and ``password`` of the ACL user, and in ``extra``: ``prefix`` (first part of every key, ``glide``),
    ``tls``, ``tls_ca_file`` (path of a CA certificate), ``db``. With a URL only ``prefix`` is used of these.

    Example:
        >>> with GlideMQHook("glidemq_default").get_producer() as producer:  # doctest: +SKIP
        ...     print(producer.get("nightly-2026-01-01").status())

    Args:
        glidemq_conn_id: The connection.
    """

    conn_name_attr = "glidemq_conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = "glidemq"
    hook_name = "glide-mq (Valkey)"

    def __init__(self, glidemq_conn_id: str = DEFAULT_CONN_ID, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.glidemq_conn_id = glidemq_conn_id

    def get_settings(self) -> ConnectionSettings:
        """Look up the connection; for workers, not for an event loop.

        Raises:
            ConfigurationError: The connection is not valid; the message names the field, never a secret.
        """
        return settings_from(self.get_connection(self.glidemq_conn_id))

    async def aget_settings(self) -> ConnectionSettings:
        """``get_settings`` for triggers."""
        return settings_from(await self.aget_connection(self.glidemq_conn_id))

    def get_producer(self) -> FlowProducer:
        """A client; opens its connections on first use. Use it in a ``with`` statement, or call ``close``."""
        settings = self.get_settings()
        return glidemq_orchestrate.FlowProducer(settings)

    async def aget_producer(self) -> AsyncFlowProducer:
        """``get_producer`` for triggers; for one event loop."""
        settings = await self.aget_settings()
        return glidemq_orchestrate.AsyncFlowProducer(settings)

    def get_conn(self) -> FlowProducer:
        """``get_producer`` under the name that Airflow's hooks share."""
        return self.get_producer()

    @classmethod
    def get_connection_form_widgets(cls) -> dict[str, Any]:
        """For Airflow 3.1; later releases read the provider info."""
        return form_widgets()

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """For Airflow 3.1; later releases read the provider info."""
        return form_behaviour()

    def test_connection(self) -> tuple[bool, str]:
        """Check that the server replies, for the Test button. Loads the function libraries if needed."""
        try:
            with self.get_producer() as producer:
                producer.get("connection-test")
        except FlowNotFound:
            return True, "The server replies and has the function libraries"
        except GlideMQError as exc:
            return False, str(exc)
        return True, "The server replies and has the function libraries"


def settings_from(connection: Connection) -> ConnectionSettings:
    """Settings from a connection, whether it was defined by form, JSON or URI.

    Raises:
        ConfigurationError: A field is not valid.
    """
    extra = connection.extra_dejson
    prefix = str(extra.get("prefix") or DEFAULT_PREFIX)
    if "://" in (connection.host or ""):
        user, password = connection.login or None, connection.password or None
        return ConnectionSettings(connection.host or "", prefix=prefix, user=user, password=password)
    return ConnectionSettings.resolve(_url(connection, extra), prefix=prefix)


def _url(connection: Connection, extra: dict[str, Any]) -> str:
    host = connection.host
    if not host:
        raise ConfigurationError(f"connection {connection.conn_id}: host is missing")
    user = quote(connection.login or "", safe="")
    secret = f":{quote(connection.password, safe='')}" if connection.password else ""
    user_info = f"{user}{secret}@" if user or secret else ""
    db = _whole_number(connection, "db", extra.get("db", connection.schema))
    if host.startswith("/"):
        return f"unix://{user_info}{quote(host)}?{urlencode({'db': db})}"
    place = f"[{host}]" if ":" in host else host
    tls = _truth(connection, "tls", extra.get("tls"))
    query = {"ssl_ca_certs": str(extra["tls_ca_file"])} if tls and extra.get("tls_ca_file") else {}
    url = f"{'valkeys' if tls else 'valkey'}://{user_info}{place}:{connection.port or DEFAULT_PORT}/{db}"
    return f"{url}?{urlencode(query)}" if query else url


def _truth(connection: Connection, name: str, value: Any) -> bool:
    text = str(value if value is not None else "").strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ConfigurationError(f"connection {connection.conn_id}: extra {name} must be true or false")


def _whole_number(connection: Connection, name: str, value: Any) -> int:
    text = str(value if value is not None else "").strip() or "0"
    if not text.isascii() or not text.isdigit():
        raise ConfigurationError(f"connection {connection.conn_id}: extra {name} must be a whole number")
    return int(text)
