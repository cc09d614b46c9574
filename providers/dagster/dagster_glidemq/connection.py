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
# The fields of the settings that are not part of their URL.
_BESIDE_URL: Final = (
    "prefix", "connect_timeout", "socket_timeout", "user", "password", "ca", "cert", "key", "verify",
    "sentinel_user", "sentinel_password",
)  # fmt: skip


class GlideMQConnection(dg.Config):
    """A server, a cluster, or a server behind sentinels, with the credentials.

    These are fields of ``GlideMQResource``, and of the config of the executor and the run launcher. A value
    may come from the environment: ``dg.EnvVar("GLIDEMQ_URL")``, or ``{env: GLIDEMQ_URL}`` in YAML. A duration
    is a number of seconds or a text such as ``5m``; in Python also a ``timedelta``.
    """

    url: str = Field(
        repr=False,
        description=(
            "A server: valkey://HOST:PORT/DB, a cluster: valkey+cluster://HOST:PORT,HOST:PORT (some of its "
            "nodes suffice), or sentinels: valkey+sentinel://HOST:PORT,HOST:PORT/SERVICE. valkeys instead of "
            "valkey enables TLS; redis and rediss mean the same; unix:///PATH is a socket. Take it from the "
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
        default=None, description="File with the CA certificates to trust; by default those of the system."
    )
    cert: str | None = Field(default=None, description="File with the certificate of this client.")
    key: str | None = Field(default=None, description="File with its private key; it may be in cert.")
    verify: bool = Field(
        default=True, description="Verify the server's certificate. False accepts any: for tests only."
    )
    sentinel_user: str | None = Field(default=None, description="ACL user of the sentinels.")
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
            "How long the server may be unreachable before a step fails; shorter outages delay it. At "
            "the start of a step, at most 5 seconds. Seconds, or a text such as 5m."
        ),
    )
    dashboard_url: str | None = Field(
        default=None,
        description=(
            "The dashboard page of a flow, job or queue, for links in the event log: a URL with {flow_id}, "
            "{queue} or {job_id} in it, or several URLs separated by spaces; the first that fits is used."
        ),
    )

    @field_validator("dashboard_url")
    @classmethod
    def _check_dashboard(cls, value: str | None) -> str | None:
        return value if value is None or isinstance(value, dg.EnvVar) else check_templates(value)

    def settings(self) -> ConnectionSettings:
        """The settings for clients of the core.

        Raises:
            ConfigurationError: A field is invalid; the message names it and shows no secret.
        """
        given: dict[str, Any] = {name: getattr(self, name) for name in _BESIDE_URL}
        given |= {name: in_seconds(name, given[name]) for name in _TIMES}
        return ConnectionSettings(self.url, **given)

    def link(self, **known: str) -> str:
        """The dashboard page for the known values of flow_id, queue and job_id; empty without a dashboard."""
        return link_to(self.dashboard_url or "", known)


LEASE_SECONDS: Final = 30.0


def connection_fields(*, is_required: bool = False) -> dict[str, dg.Field]:
    """The fields of a connection; ``url`` is required only if there is no other source."""
    fields = dict(GlideMQConnection.to_fields_dict())
    url = fields["url"]
    fields["url"] = dg.Field(url.config_type, is_required=is_required, description=url.description)
    return fields


def connection_of(config: Mapping[str, Any]) -> GlideMQConnection:
    """The connection in a config that may have other fields too.

    Raises:
        ValidationError: A value is invalid.
    """
    names = GlideMQConnection.model_fields
    return GlideMQConnection(**{name: value for name, value in config.items() if name in names})
