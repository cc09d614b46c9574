"""From connections to clients."""

from __future__ import annotations

import json

import pytest
from airflow.sdk import Connection
from airflow_provider_glidemq.hooks.glidemq import GlideMQHook, settings_from

from glidemq_orchestrate.errors import ConfigurationError
from tests.providers.airflow.conftest import Valkey


@pytest.mark.parametrize(
    ("uri", "url", "prefix"),
    [
        ("glidemq://valkey.internal", "valkey://valkey.internal:6379/0", "glide"),
        (
            "glidemq://u:p%40ss%2F@host:7000/?tls=true&prefix=etl&db=3",
            "valkeys://u:p%40ss%2F@host:7000/3",
            "etl",
        ),
        ("glidemq://:secret@host/2?tls=no", "valkey://:secret@host:6379/2", "glide"),
        ("glidemq://%2Ftmp%2Fa+b.sock", "unix:///tmp/a%2Bb.sock?db=0", "glide"),
    ],
)
def test_a_uri_gives_url_and_prefix(uri: str, url: str, prefix: str) -> None:
    settings = settings_from(Connection.from_uri(uri, conn_id="c"))
    assert (url, prefix) == (settings.url, settings.prefix)


@pytest.mark.parametrize("tls", [True, "true", "True", "1", "on"])
def test_booleans_and_numbers_come_as_texts_too(tls: object) -> None:
    connection = Connection(
        conn_id="c", conn_type="glidemq", host="h", extra=json.dumps({"tls": tls, "db": "4"})
    )
    assert settings_from(connection).url == "valkeys://h:6379/4"


def test_a_ca_file_is_used_with_tls_only() -> None:
    extra = {"tls": True, "tls_ca_file": "/etc/ca 1.pem"}
    connection = Connection(conn_id="c", conn_type="glidemq", host="h", extra=json.dumps(extra))
    assert settings_from(connection).url == "valkeys://h:6379/0?ssl_ca_certs=%2Fetc%2Fca+1.pem"


def test_a_host_may_be_the_url_of_a_cluster_or_of_sentinels() -> None:
    connection = Connection(
        conn_id="c", conn_type="glidemq", host="valkeys+cluster://a:1,b:2?ca=/etc/ca.pem",
        login="u", password="p", extra='{"prefix": "mine"}',
    )  # fmt: skip
    settings = settings_from(connection)
    assert (settings.kind, [str(place) for place in settings.places]) == ("cluster", ["a:1", "b:2"])
    assert (settings.user, settings.password, settings.ca, settings.prefix) == (
        "u",
        "p",
        "/etc/ca.pem",
        "mine",
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"host": None}, "host is missing"),
        ({"host": "h", "extra": '{"tls": "perhaps"}'}, "extra tls must be true or false"),
        ({"host": "h", "extra": '{"db": "-1"}'}, "extra db must be a whole number"),
        ({"host": "h", "extra": '{"prefix": "{x}"}'}, "prefix"),
        ({"host": "http://h"}, "does not name a server"),
    ],
)
def test_a_wrong_field_is_named_and_no_secret_is(fields: dict[str, object], expected: str) -> None:
    connection = Connection(conn_id="c", conn_type="glidemq", login="u", password="hunter2", **fields)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=expected) as caught:
        settings_from(connection)
    assert "hunter2" not in str(caught.value)


def test_settings_show_no_password() -> None:
    connection = Connection(conn_id="c", conn_type="glidemq", host="h", login="u", password="hunter2")
    assert "hunter2" not in repr(settings_from(connection))


def test_the_test_button_succeeds(valkey: Valkey) -> None:
    ok, message = GlideMQHook().test_connection()
    assert ok, message


def test_the_test_button_fails_without_showing_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_GLIDEMQ_DEFAULT", "glidemq://u:hunter2@127.0.0.1:1")
    ok, message = GlideMQHook().test_connection()
    assert not ok
    assert "cannot connect" in message
    assert "hunter2" not in message


async def test_triggers_look_the_connection_up_without_blocking(valkey: Valkey) -> None:
    settings = await GlideMQHook().aget_settings()
    assert settings.prefix == valkey.prefix
    async with await GlideMQHook().aget_producer() as producer:
        assert producer is not None
