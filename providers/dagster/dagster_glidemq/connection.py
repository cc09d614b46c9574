"""The connection in the config of the resource, the executor and the run launcher. Opens nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import dagster as dg
from pydantic import Field, JsonValue, field_validator

from dagster_glidemq.durations import ConfigDuration, PositiveConfigDuration, in_seconds
from glidemq_orchestrate import ConnectionSettings
from glidemq_orchestrate.dashboard import check_templates, link_to
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX

_TIMES: Final = ("connect_timeout", "socket_timeout")
_SECRET: Final[dict[str, JsonValue]] = {"dagster__is_secret": True}
# Those that the settings have beside their URL.
_BESIDE_URL: Final = (
    "prefix", "connect_timeout", "socket_timeout", "user", "password", "ca", "cert", "key", "verify",
    "sentinel_user", "sentinel_password",
)  # fmt: skip


class GlideMQConnection(dg.Config):
    """A server, a cluster, or a server that sentinels watch; and how to log in.

    The fields of ``GlideMQResource``, and of the config of the executor and the run launcher. A value may
    come from the environment: ``dg.EnvVar("GLIDEMQ_URL")``, or ``{env: GLIDEMQ_URL}`` in YAML. A duration is
    seconds or a text such as ``5m``; in Python also a ``timedelta``.
    """

    url: str = Field(
        repr=False,
        description=(
            "The server: valkey://HOST:PORT/DB, a cluster: valkey+cluster://HOST:PORT,HOST:PORT (some of its "
            "nodes suffice), or sentinels: valkey+sentinel://HOST:PORT,HOST:PORT/SERVICE. valkeys instead of "
            "valkey is TLS, redis and rediss mean the same; unix:///PATH is a socket. Take it from the "
            "environment if it holds a password."
        ),
    )
    prefix: str = Field(
        default=DEFAULT_PREFIX, description="First part of every key; workers must use the same one."
    )
    user: str | None = Field(default=None, description="ACL user; by default the one of the URL.")
    password: str | None = Field(
        default=None,
        repr=False,
        json_schema_extra=_SECRET,
        description="Password of that user. Take it from the environment: the UI shows literal values.",
    )
    ca: str | None = Field(
        default=None, description="File with the certificates to trust; by default those of the system."
    )
    cert: str | None = Field(default=None, description="File with the certificate of this client.")
    key: str | None = Field(default=None, description="File with its private key; it may be in cert.")
    verify: bool = Field(
        default=True, description="False accepts any certificate of the server: for tests only."
    )
    sentinel_user: str | None = Field(default=None, description="ACL user at the sentinels.")
    sentinel_password: str | None = Field(
        default=None, repr=False, json_schema_extra=_SECRET, description="Password of that user."
    )
    connect_timeout: PositiveConfigDuration = Field(
        default=5.0, description="How long to wait for a connection. Seconds, or a text such as 500ms."
    )
    socket_timeout: PositiveConfigDuration = Field(
        default=30.0, description="How long to wait for the reply of a call. Seconds, or a text such as 1m."
    )
    patience: ConfigDuration = Field(
        default=120.0,
        description=(
            "How long the server may be unreachable before a step fails; shorter outages are waited out. At "
            "the begin of a step, 5 seconds at most. Seconds, or a text such as 5m."
        ),
    )
    dashboard_url: str | None = Field(
        default=None,
        description=(
            "Where a dashboard shows a flow, job or queue, for links in the event log: a URL with {flow_id}, "
            "{queue} or {job_id} in it, or several with spaces between them; the first that fits is taken."
        ),
    )

    @field_validator("dashboard_url")
    @classmethod
    def _check_dashboard(cls, value: str | None) -> str | None:
        return value if value is None or isinstance(value, dg.EnvVar) else check_templates(value)

    def settings(self) -> ConnectionSettings:
        """The settings for clients of the core.

        Raises:
            ConfigurationError: A field is not valid; the message names it and shows no secret.
        """
        given: dict[str, Any] = {name: getattr(self, name) for name in _BESIDE_URL}
        given |= {name: in_seconds(name, given[name]) for name in _TIMES}
        return ConnectionSettings(self.url, **given)

    def link(self, **known: str) -> str:
        """Where the dashboard shows what is known of flow_id, queue and job_id; empty without one."""
        return link_to(self.dashboard_url or "", known)


LEASE_SECONDS: Final = 30.0


def connection_fields(*, is_required: bool = False) -> dict[str, dg.Field]:
    """The fields of a connection; ``url`` is required only if there is no other source."""
    fields = dict(GlideMQConnection.to_fields_dict())
    url = fields["url"]
    fields["url"] = dg.Field(url.config_type, is_required=is_required, description=url.description)
    return fields


def connection_of(config: Mapping[str, Any]) -> GlideMQConnection:
    """The connection in a config that may hold more.

    Raises:
        ValidationError: A value is not usable.
    """
    names = GlideMQConnection.model_fields
    return GlideMQConnection(**{name: value for name, value in config.items() if name in names})
