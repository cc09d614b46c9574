"""Turns an Airflow connection into settings. Opens no connection; no error contains a secret."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from airflow_provider_glidemq.extras import read_extras
from glidemq_orchestrate import ConnectionSettings
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.settings import DEFAULT_PORT, SENTINEL_PORT, Endpoint, ServerKind, options_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow.sdk import Connection

MAX_PORT: Final = 65_535
TYPE: Final = "glidemq"
_LIKE: Final = ("valkey", "redis", "generic")
URL: Final = "the URL in host"
_PLAIN: Final = re.compile(r"[^@/?#\\\s,]+(\s*,\s*[^@/?#\\\s,]+)*")
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
_SENTINEL: Final = "+sentinel"
# The fields of the settings that are not part of their URL.
_BESIDE_URL: Final = (
    "prefix", "connect_timeout", "socket_timeout", "user", "password", "ca", "cert", "key", "verify",
    "sentinel_user", "sentinel_password", "confirm", "confirm_timeout",
)  # fmt: skip


class Stated:
    """The settings that a connection states, and in which field. Two fields for one setting must agree."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[Any, str]] = {}

    def add(self, name: str, value: Any, where: str) -> None:
        """Add a value; None is ignored.

        Raises:
            ConfigurationError: Another field states another value.
        """
        if value is None:
            return
        known, first = self._values.setdefault(name, (value, where))
        if known != value:
            raise ConfigurationError(f"{name} differs between {first} and {where}: give it in one of them")

    def get(self, name: str, default: Any = None) -> Any:
        """The value, or the default if none is stated."""
        return self._values[name][0] if name in self._values else default

    def where(self, name: str) -> str:
        """The first field that stated the setting, for errors."""
        field = self._values[name][1]
        return f"{name} in {field}" if field == URL else field

    def __contains__(self, name: str) -> bool:
        """Whether a field states it."""
        return name in self._values


def settings_from(connection: Connection) -> ConnectionSettings:
    """Settings from a connection, whether it is defined by form, JSON or URI.

    Raises:
        ConfigurationError: A field is invalid or unknown, or two fields contradict each other. The message
            names the connection and the field, and contains no secret.
    """
    with _named(connection):
        return _settings(connection)


@contextmanager
def _named(connection: Connection) -> Iterator[None]:
    """Add the name of the connection to the errors of a block."""
    try:
        yield
    except ConfigurationError as exc:
        raise ConfigurationError(f"connection {connection.conn_id}: {exc}") from None


def dashboard_urls(connection: Connection) -> str:
    """The extra ``dashboard_url``; empty without it.

    Raises:
        ConfigurationError: An extra is invalid or unknown.
    """
    with _named(connection):
        _check_texts(connection)
        extras = {extra.name: extra.value for extra in read_extras(connection.extra)}
    return extras.get("dashboard_url") or ""


def _settings(connection: Connection) -> ConnectionSettings:
    _check_type(connection)
    _check_texts(connection)
    host = (connection.host or "").strip()
    if not host:
        raise ConfigurationError("host is missing")
    stated, port = Stated(), _port_of(connection)
    for extra in read_extras(connection.extra):
        stated.add(extra.name, extra.value, f"extra {extra.given}")
    stated.add("user", connection.login or None, "login")
    stated.add("password", connection.password or None, "password")
    if connection.schema:
        _state_schema(connection.schema, stated, is_sentinel=_is_sentinel(host, stated))
    if "://" in host:
        _state_url(host, port, stated)
    elif host.startswith("/"):
        _check_socket(port)
        stated.add("places", (Endpoint(host, 0),), "host")
    else:
        _state_hosts(host, port, stated)
    _check_topology(stated)
    _check_tls(stated)
    options = {name: stated.get(name) for name in _BESIDE_URL if name in stated}
    return ConnectionSettings(_url(stated), **options)


def _check_type(connection: Connection) -> None:
    """Refuse types whose fields mean something else; a ``valkeys://`` URI would lose its TLS."""
    if (given := connection.conn_type or TYPE) not in (TYPE, *_LIKE):
        raise ConfigurationError(f"its type is {given!r}: set it to {TYPE} ({', '.join(_LIKE)} fit, too)")


def _check_texts(connection: Connection) -> None:
    """Refuse values that are not text, or cannot be encoded: JSON allows both."""
    for name in ("host", "login", "password", "schema", "extra"):
        value = getattr(connection, name) or ""
        if not isinstance(value, str) or _SURROGATE.search(value):
            raise ConfigurationError(f"{name} must be a text without lone surrogates")


def _port_of(connection: Connection) -> int | None:
    """The field ``port``, which code may set to a string."""
    if connection.port is None:
        return None
    text = str(connection.port).strip()
    if text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= MAX_PORT:
        return int(text)
    raise ConfigurationError(f"port must be a whole number from 1 to {MAX_PORT}, or be left out")


def _is_sentinel(host: str, stated: Stated) -> bool:
    scheme, mark, _ = host.partition("://")
    return scheme.endswith(_SENTINEL) if mark else stated.get("kind") == "sentinel"


def _state_schema(schema: str, stated: Stated, *, is_sentinel: bool) -> None:
    """Read ``schema``, the path of a URI: DATABASE; with sentinels SERVICE or SERVICE/DATABASE."""
    if "@" in schema:
        raise ConfigurationError("schema (the path of a URI) has an @: write / in a password as %2F")
    parts = [part for part in schema.split("/") if part.strip()]
    if is_sentinel and parts and not parts[0].isdigit():
        stated.add("service", parts.pop(0), "schema")
    if len(parts) > 1 or not all(part.isascii() and part.isdigit() and len(part) <= 6 for part in parts):
        form = "SERVICE or SERVICE/DATABASE" if is_sentinel else "a database number"
        raise ConfigurationError(f"schema (the path of a URI) must be {form}")
    stated.add("db", int(parts[0]) if parts else None, "schema")


def _state_url(url: str, port: int | None, stated: Stated) -> None:
    scheme, _, rest = url.partition("://")
    if "unix" in scheme:
        _check_socket(port)
    else:
        end = next((number for number, mark in enumerate(rest) if mark in "/?#"), len(rest))
        user_info, at, hosts = rest[:end].rpartition("@")
        tail, service = rest[end:], stated.get("service")
        if scheme.endswith(_SENTINEL) and service and not tail.partition("?")[0].strip("/"):
            tail = f"/{quote(service, safe='')}{tail.lstrip('/')}"
        url = f"{scheme}://{user_info}{at}{_with_port(hosts, port) if port else hosts}{tail}"
    try:
        options = options_in(url)
    except ConfigurationError as exc:
        raise ConfigurationError(f"host: {exc}") from None
    for name, value in options.items():
        stated.add(name, value, URL)


def _state_hosts(hosts: str, port: int | None, stated: Stated) -> None:
    if not _PLAIN.fullmatch(hosts):
        raise ConfigurationError(
            "host must be HOST or HOST:PORT, several of them with commas, the path of a unix socket, or a URL"
        )
    default = SENTINEL_PORT if stated.get("kind") == "sentinel" else DEFAULT_PORT
    text = _with_port(hosts, port) if port else hosts
    try:
        options = options_in(f"valkey+cluster://{_with_port(text, default, is_default=True)}")
    except ConfigurationError as exc:
        raise ConfigurationError(f"host: {exc}") from None
    stated.add("places", options["places"], "host")


def _with_port(hosts: str, port: int, *, is_default: bool = False) -> str:
    """The hosts, with this port added where a host has none."""
    texts = [text.strip() for text in hosts.split(",")]
    texts = [f"[{text}]" if text.count(":") > 1 and "[" not in text else text for text in texts]  # IPv6
    have = [":" in text.rpartition("]")[2] for text in texts]
    if not is_default and all(have) and any(not text.endswith(f":{port}") for text in texts):
        raise ConfigurationError("port differs between host and port: give it in one of them")
    return ",".join(text if has else f"{text}:{port}" for text, has in zip(texts, have, strict=True))


def _check_socket(port: int | None) -> None:
    if port:
        raise ConfigurationError("port is given, but host is a unix socket, which has none")


def _check_topology(stated: Stated) -> None:
    kind, places = stated.get("kind", "single"), stated.get("places")
    if not places[0].port and kind != "single":
        raise ConfigurationError(f"{stated.where('kind')} is {kind}, but host is a unix socket")
    if kind == "single" and len(places) > 1:
        raise ConfigurationError("host names several servers: set extra kind to cluster or sentinel")
    if kind == "sentinel" and "service" not in stated:
        raise ConfigurationError("extra service is missing: the name that the sentinels have for the primary")
    for name in ("service", "sentinel_user", "sentinel_password"):
        if kind != "sentinel" and name in stated:
            raise ConfigurationError(f"{stated.where(name)} needs sentinels: set extra kind to sentinel")
    if kind == "cluster" and stated.get("db"):
        raise ConfigurationError(f"{stated.where('db')} names a database, but a cluster has none but 0")


def _check_tls(stated: Stated) -> None:
    if stated.get("tls"):
        if not stated.get("places")[0].port:
            raise ConfigurationError(f"{stated.where('tls')} is true, but host is a unix socket, without TLS")
        if "key" in stated and "cert" not in stated:
            raise ConfigurationError(f"{stated.where('key')} needs extra cert: the client's certificate")
        return
    for name in ("ca", "cert", "key"):
        if name in stated:
            raise ConfigurationError(f"{stated.where(name)} needs TLS: set extra tls to true")
    if not stated.get("verify", True):
        raise ConfigurationError(
            f"{stated.where('verify')} is false, but there is no TLS: set extra tls to true"
        )


def _url(stated: Stated) -> str:
    """A URL without user, password and query, which are passed separately."""
    kind: ServerKind = stated.get("kind", "single")
    places: tuple[Endpoint, ...] = stated.get("places")
    db = stated.get("db", 0)
    if not places[0].port:
        return f"unix://{quote(places[0].host)}?db={db}"
    scheme = f"{'valkeys' if stated.get('tls') else 'valkey'}{'' if kind == 'single' else f'+{kind}'}"
    service = f"/{quote(stated.get('service'), safe='')}" if kind == "sentinel" else ""
    path = "" if kind == "cluster" else f"/{db}"
    return f"{scheme}://{','.join(map(str, places))}{service}{path}"
