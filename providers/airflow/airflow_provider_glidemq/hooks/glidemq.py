"""The hook: clients from Airflow connections, the connection form, and the Test button. No task logic.

A secrets backend that does not respond, a password rotation, or a right that is missing for a while is no
failure of the flow. So a process that waits logs a warning, looks the connection up again, and continues
(``patience_for``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseHook

import glidemq_orchestrate
from airflow_provider_glidemq.connection import dashboard_urls, settings_from
from airflow_provider_glidemq.get_provider_info import get_provider_info
from airflow_provider_glidemq.version_compat import AirflowNotFoundException, amask_secret, mask_secret
from glidemq_orchestrate import ConnectionSettings, runs
from glidemq_orchestrate.dashboard import link_to
from glidemq_orchestrate.errors import ConfigurationError, GlideMQError

if TYPE_CHECKING:
    from glidemq_orchestrate import AsyncFlowProducer, AsyncQueue, FlowProducer, Queue
    from glidemq_orchestrate.clients.servers import Finding
    from glidemq_orchestrate.runs import Patience

DEFAULT_CONN_ID: Final = "glidemq_default"


class GlideMQHook(BaseHook):
    """Clients for the server of a connection of type ``glidemq``.

    The connection: ``host`` is a name or an address, with or without a port, or several separated by commas;
    the path of a unix socket; or a whole URL such as ``valkeys+cluster://a:6379,b:6379?ca=/etc/ca.pem``.
    ``port`` (default 6379; 26379 for sentinels) applies to hosts without one; ``login`` and ``password`` are
    those of the ACL user. In ``extra``: ``prefix`` (first part of every key, by default ``glide``), ``kind``
    (``single``, ``cluster`` or ``sentinel``), ``service`` (the name that the sentinels watch), ``db``, and
    the other options of ``ConnectionSettings``: ``tls``, ``ca``, ``cert``, ``key``, ``verify``,
    ``sentinel_user``, ``sentinel_password``, ``connect_timeout``, ``socket_timeout``, ``confirm``,
    ``confirm_timeout``; and ``dashboard_url``, for the links of tasks. An unknown extra is refused, as are
    two fields that contradict each other.

    Example:
        >>> with GlideMQHook("glidemq_default").get_producer() as producer:  # doctest: +SKIP
        ...     print(producer.get("nightly-2026-01-01").status())

    Args:
        glidemq_conn_id: The id of the connection.
    """

    conn_name_attr = "glidemq_conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = "glidemq"
    hook_name = "glide-mq (Valkey)"

    def __init__(self, glidemq_conn_id: str = DEFAULT_CONN_ID, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.glidemq_conn_id = glidemq_conn_id

    def get_settings(self) -> ConnectionSettings:
        """Look up the connection. Blocks: for workers, not for an event loop.

        Raises:
            ConfigurationError: The connection is invalid; the message names the field, never a secret.
        """
        settings = settings_from(self.get_connection(self.glidemq_conn_id))
        for secret in _secrets(settings):
            mask_secret(secret)
        return settings

    async def aget_settings(self) -> ConnectionSettings:
        """``get_settings`` for triggers; completes even if the trigger is stopped."""
        return await asyncio.shield(self._aget_settings())

    async def _aget_settings(self) -> ConnectionSettings:
        settings = settings_from(await self.aget_connection(self.glidemq_conn_id))
        for secret in _secrets(settings):
            await amask_secret(secret)
        return settings

    def get_producer(self) -> FlowProducer:
        """A client for flows; opens its connections on first use. Use it in ``with``, or call ``close``.

        Raises:
            ConfigurationError: The connection is not valid.
        """
        settings = self.get_settings()
        return glidemq_orchestrate.FlowProducer(settings)

    async def aget_producer(self) -> AsyncFlowProducer:
        """``get_producer`` for triggers; the client belongs to one event loop."""
        settings = await self.aget_settings()
        return glidemq_orchestrate.AsyncFlowProducer(settings)

    def get_queue(self, name: str) -> Queue:
        """A client for the jobs of a queue; opens its connections on first use, like ``get_producer``.

        Args:
            name: The queue: 1 to 256 characters, none of ``{ } :``.

        Raises:
            ConfigurationError: The connection or the name is invalid.
        """
        settings = self.get_settings()
        return glidemq_orchestrate.Queue(name, settings)

    async def aget_queue(self, name: str) -> AsyncQueue:
        """``get_queue`` for triggers; the client belongs to one event loop."""
        settings = await self.aget_settings()
        return glidemq_orchestrate.AsyncQueue(name, settings)

    def get_dashboard_link(self, known: Mapping[str, str]) -> str:
        """The dashboard page of a flow, job or queue, from the extra ``dashboard_url``; empty without one.

        Args:
            known: The known values of ``flow_id``, ``queue`` and ``job_id``.

        Raises:
            ConfigurationError: The connection is not valid.
        """
        return link_to(dashboard_urls(self.get_connection(self.glidemq_conn_id)), known)

    def get_conn(self) -> FlowProducer:
        """``get_producer`` under the common name of Airflow's hooks."""
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
        """Check whether the server is usable, for the Test button. Read-only: loads no library.

        Returns:
            Whether it is usable, and a text: server and topology, function libraries, rights of the user, and
            advice; or the fault. The text contains no secret.
        """
        try:
            return inspect_server(self.get_settings())
        except GlideMQError as exc:
            return False, str(exc)


def _secrets(settings: ConnectionSettings) -> list[str]:
    """The secrets of the settings, including those in a URL, which Airflow does not recognise."""
    return [secret for secret in (settings.password, settings.sentinel_password) if secret]


PATIENCE_SECONDS: Final = 600.0


class LookupFailed(ConfigurationError):
    """The connection was not found: Airflow has none with this id, or its secrets backend is unavailable."""

    retryable = True


@contextmanager
def looking_up(conn_id: str) -> Iterator[None]:
    """Raise a specific error when a connection cannot be looked up.

    Raises:
        LookupFailed: Instead of the error of Airflow or a secrets backend, whose text may hold a secret.
    """
    try:
        yield
    except GlideMQError:
        raise
    except AirflowNotFoundException as exc:
        raise LookupFailed(
            f"connection {conn_id} is not defined. "
            f"Fix: add it in Airflow, or set AIRFLOW_CONN_{conn_id.upper()}"
        ) from exc
    except Exception as exc:
        raise LookupFailed(
            f"connection {conn_id} cannot be looked up in Airflow: {type(exc).__name__}"
        ) from exc


def patience_for(log: Any, what: str, conn_id: str) -> Patience:
    """Patience for a process that waits: no limit for an unreachable server, ten minutes for all else.

    Args:
        log: The log of the task.
        what: The subject of the wait, for the log.
        conn_id: The connection, for the log.
    """
    failure = f"{what} cannot be watched over connection {conn_id}"
    return runs.Patience(None, other=PATIENCE_SECONDS, what=failure, log=log)


_KINDS = {"integer": "IntegerField", "boolean": "BooleanField"}


def form_widgets() -> dict[str, Any]:
    """The form fields of ``extra``, built from wtforms or from Airflow's replacement for it."""
    wtforms = import_module("wtforms")
    return {
        name: getattr(wtforms, _field(field["schema"]))(
            field["label"],
            description=field.get("description", ""),
            default=field["schema"].get("default"),
        )
        for name, field in _connection_type()["conn-fields"].items()
    }


def _field(schema: Mapping[str, Any]) -> str:
    """The class name of a field."""
    if schema.get("format") == "password":
        return "PasswordField"
    return _KINDS.get(schema["type"][0], "StringField")


def form_behaviour() -> dict[str, Any]:
    """The hidden standard fields, the labels of the others, and examples."""
    behaviour = _connection_type()["ui-field-behaviour"]
    return {name.replace("-", "_"): value for name, value in behaviour.items()}


def _connection_type() -> dict[str, Any]:
    found: dict[str, Any] = get_provider_info()["connection-types"][0]
    return found


# If any of these checks fails, tasks fail.
_DECISIVE: Final = ("connection", "version", "role", "slots", "rights", "loading", "confirm")
_LIBRARY: Final = "library "


def inspect_server(settings: ConnectionSettings) -> tuple[bool, str]:
    """Inspect the server, or every primary of a cluster. Read-only.

    Returns:
        Whether tasks can use it, and a readable text: one line about the deployment, one for each server
        and each piece of advice.
    """
    from glidemq_orchestrate.clients.servers import Verdict, examine  # noqa: PLC0415  DAG files never need it

    found = examine(settings, read_only=True)
    wrong = [one for one in found if one.verdict is Verdict.FAILED and _is_decisive(one)]
    if wrong:
        return False, "\n".join(dict.fromkeys(_fault(one, settings) for one in wrong))
    servers = list(dict.fromkeys(finding.server for finding in found))
    lines = [_topology(settings, servers)]
    lines += [_server(server, [one for one in found if one.server == server]) for server in servers]
    notes = [one for one in found if one.verdict is not Verdict.OK and not one.check.startswith(_LIBRARY)]
    lines += dict.fromkeys(f"Note: {one.check}: {one.found}{_advice(one)}" for one in notes)
    return True, "\n".join(lines)


def _is_decisive(finding: Finding) -> bool:
    return finding.check in _DECISIVE or finding.check.startswith(_LIBRARY)


def _fault(finding: Finding, settings: ConnectionSettings) -> str:
    return f"{finding.server or settings.where}: {finding.check}: {finding.found}{_advice(finding)}"


def _advice(finding: Finding) -> str:
    return f" ({finding.advice})" if finding.advice else ""


def _topology(settings: ConnectionSettings, servers: Sequence[str]) -> str:
    rest = f"prefix {settings.prefix}, {'TLS' if settings.tls else 'no TLS'}"
    if settings.kind == "cluster":
        return f"A cluster of {len(servers)} primaries; {rest}."
    if settings.kind == "sentinel":
        return f"The primary of {settings.service}, by its sentinels; {rest}."
    return f"A single server; {rest}."


def _server(server: str, found: Sequence[Finding]) -> str:
    by_check = {finding.check: finding for finding in found}
    parts = [f"{by_check['connection'].found} to {by_check['version'].found}", by_check["role"].found]
    return (
        f"{server}: {', '.join(parts)}; {'; '.join(_libraries(found))}; rights: {by_check['rights'].found}."
    )


def _libraries(found: Sequence[Finding]) -> Iterator[str]:
    from glidemq_orchestrate.clients.servers import Verdict  # noqa: PLC0415  as above

    for finding in found:
        if not finding.check.startswith(_LIBRARY):
            continue
        if finding.verdict is Verdict.OK:
            yield f"{finding.check}: {finding.found}"
        else:  # the user may load it
            yield f"{finding.check}: {finding.found}, the first use loads it"
