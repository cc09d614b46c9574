"""From connections to settings: every field, in every way to give it; what is refused, without secrets."""

from __future__ import annotations

import json
import re
import time
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from airflow.models.connection import Connection as StoredConnection
from airflow.sdk import Connection
from airflow_provider_glidemq.connection import dashboard_urls, settings_from
from airflow_provider_glidemq.extras import EXTRAS
from airflow_provider_glidemq.get_provider_info import get_provider_info

from glidemq_orchestrate import ConnectionSettings
from glidemq_orchestrate.errors import ConfigurationError

README = Path(__file__).parents[3] / "providers/airflow/README.md"
# A value of every extra that may stand beside every other, and an option of the settings for it.
TLS = {"tls": True, "ca": "/etc/ca 1.pem", "cert": "/etc/c.pem", "key": "/etc/k.pem", "verify": False}
WAITS = {"connect_timeout": 1.5, "socket_timeout": 40, "confirm": "disk,replicas:1", "confirm_timeout": 2.0}
SENTINELS = {"kind": "sentinel", "service": "Main 1", "sentinel_user": "seer", "sentinel_password": "hunter4"}
EVERY = {"prefix": "etl", "db": 3, **TLS, **WAITS, **SENTINELS}
HOSTS = "a,b:7000,[::1]:7001"

URLS: list[tuple[str, str]] = [
    ("glidemq://valkey.internal", "valkey://valkey.internal:6379/0"),
    ("glidemq://u:p@host:7000/?tls=true&db=3", "valkeys://host:7000/3"),
    ("glidemq://:secret@host/2?tls=no", "valkey://host:6379/2"),
    ("glidemq://%2Ftmp%2Fa+b.sock", "unix:///tmp/a%2Bb.sock?db=0"),
    ("glidemq://a,b:7000/?kind=cluster", "valkey+cluster://a:7000,b:7000"),
    ("glidemq://valkeys://u:p@host:7000/3", "valkeys://host:7000/3"),
    ("glidemq://valkey+sentinel://u:p@host:7000/main/3", "valkey+sentinel://host:7000/main/3"),
    ("glidemq://host/main/3?kind=sentinel", "valkey+sentinel://host:26379/main/3"),
    ("glidemq://host/3?kind=sentinel&service=main", "valkey+sentinel://host:26379/main/3"),
]

UNKNOWN_EXTRAS: list[tuple[str, str]] = [
    ("tsl", "use tls"),
    ("Prefix", "use prefix"),
    ("socket-timeout", "use socket_timeout"),
    ("extra__glidemq__sentinel_pasword", "use sentinel_password"),
    ("tls_ca_file", "use ca"),
    ("ssl_ca_certs", "use ca"),
    ("cluster", "use kind"),
    ("username", "use the field login"),
    ("password", "use the field password"),
    ("colour", "the extras are prefix, kind"),
]


def connection(host: str | None = "h", **given: Any) -> Connection:
    extra = given.pop("extra", None)
    text = extra if isinstance(extra, str) or extra is None else json.dumps(extra)
    return Connection(conn_id="c", conn_type="glidemq", host=host, extra=text, **given)


def expected() -> ConnectionSettings:
    url = "valkeys+sentinel://a:26379,b:7000,[::1]:7001/Main%201/3"
    beside = {name: value for name, value in EVERY.items() if name not in ("kind", "service", "db", "tls")}
    return ConnectionSettings(url, user="u", password="p@ss/?#", **beside)  # type: ignore[arg-type]


def by_uri() -> str:
    words = {name: str(value) for name, value in EVERY.items()}
    return f"glidemq://u:{quote('p@ss/?#', safe='')}@{quote(HOSTS, safe='')}/?{urlencode(words)}"


def whole_url() -> str:
    beside = {
        name: value for name, value in EVERY.items() if name not in ("prefix", "kind", "service", "db", "tls")
    }
    return f"valkeys+sentinel://{HOSTS}/Main%201/3?{urlencode(beside)}"


WAYS = {
    "form": connection(HOSTS, login="u", password="p@ss/?#", extra=EVERY),
    "form, as texts": connection(
        HOSTS, login="u", password="p@ss/?#", extra={name: str(value) for name, value in EVERY.items()}
    ),
    "form, long names": connection(
        HOSTS, login="u", password="p@ss/?#", extra={f"extra__glidemq__{k}": v for k, v in EVERY.items()}
    ),
    "json": Connection.from_json(
        json.dumps(
            {"conn_type": "glidemq", "host": HOSTS, "login": "u", "password": "p@ss/?#", "extra": EVERY}
        ),
        conn_id="c",
    ),
    "uri": Connection.from_uri(by_uri(), conn_id="c"),
    "uri, stored": StoredConnection(conn_id="c", uri=by_uri()),
    "uri of the json": Connection.from_uri(
        connection(HOSTS, login="u", password="p@ss/?#", extra=EVERY).get_uri(), conn_id="c"
    ),
    "url": connection(whole_url(), login="u", password="p@ss/?#", extra={"prefix": "etl"}),
    "url with user": connection(
        whole_url().replace("://", "://u:p%40ss%2F%3F%23@", 1), extra={"prefix": "etl"}
    ),
    "url and extras": connection(
        f"valkeys+sentinel://{HOSTS}/Main%201", login="u", password="p@ss/?#", extra=EVERY
    ),
    "uri with url": Connection.from_uri(
        f"glidemq://u:{quote('p@ss/?#', safe='')}@{quote(whole_url(), safe='')}/?prefix=etl", conn_id="c"
    ),
}


def test_every_field_can_be_given_in_every_way(subtests: pytest.Subtests) -> None:
    for way, given in WAYS.items():
        with subtests.test(way=way):
            assert settings_from(given) == expected()  # type: ignore[arg-type]


def test_there_is_an_extra_and_a_field_in_the_form_for_every_setting() -> None:
    (form,) = [entry["conn-fields"] for entry in get_provider_info()["connection-types"]]
    elsewhere = {"url", "places", "user", "password"}
    assert (
        {field.name for field in fields(ConnectionSettings)} - elsewhere | {"dashboard_url"}
        == set(EXTRAS)
        == set(form)
    )
    assert [name for name, field in form.items() if field["schema"].get("format") == "password"] == [
        "sentinel_password"
    ]


def test_a_uri_gives_a_url(subtests: pytest.Subtests) -> None:
    for uri, url in URLS:
        with subtests.test(uri=uri):
            assert settings_from(Connection.from_uri(uri, conn_id="c")).url == url


def test_booleans_and_numbers_come_as_texts_too(subtests: pytest.Subtests) -> None:
    for tls in (True, "true", "True", "1", "on"):
        with subtests.test(tls=tls):
            assert settings_from(connection(extra={"tls": tls, "db": "4"})).url == "valkeys://h:6379/4"


def test_what_is_empty_is_not_given(subtests: pytest.Subtests) -> None:
    for empty in ("", "  ", None):
        with subtests.test(empty=empty):
            nothing = {**dict.fromkeys(EXTRAS, empty), "gone": empty, "__extra__": empty}
            assert settings_from(connection(extra=nothing)) == settings_from(connection())
            kept = settings_from(connection(extra={"tls": True, "extra__glidemq__tls": empty}))
            assert kept.tls


def test_a_port_may_be_a_text(subtests: pytest.Subtests) -> None:
    for port in (7000, "7000", " 7000 "):
        with subtests.test(port=port):
            assert settings_from(connection(port=port)).where == "valkey://h:7000"


def test_an_empty_option_of_a_url_is_not_given() -> None:
    url = "valkeys://h?ca=&user=&db=&verify=&connect_timeout=&confirm=&ssl_cert_reqs="
    assert settings_from(connection(url, login="u", extra={"ca": "/a"})) == settings_from(
        connection(extra={"tls": True, "ca": "/a"}, login="u")
    )


def test_a_wrong_host_among_many_is_told_at_once() -> None:
    """A host list that was matched by trial and error took 15 s for 23 hosts, twice that for each more."""
    wrong = connection(",".join(f"n{number}:7000" for number in range(900)) + "/0")
    started = time.process_time()
    with pytest.raises(ConfigurationError, match="host must be HOST or HOST:PORT"):
        settings_from(wrong)
    assert time.process_time() - started < 1


def test_a_dashboard_of_a_wrong_connection_is_refused_by_its_name() -> None:
    for extra in ('{"tsl": 1}', '{"dashboard_url": "http://x/\\u0000{flow_id}"}', "5"):
        with pytest.raises(ConfigurationError, match=r"\Aconnection c: extra"):
            dashboard_urls(connection(extra=extra))


def test_the_whole_extra_may_be_one_text_as_airflow_writes_it_into_uris() -> None:
    assert settings_from(connection(extra={"__extra__": '{"db": 4}'})).db == 4
    assert (
        settings_from(Connection.from_uri("glidemq://h/?__extra__=%7B%22db%22%3A+4%7D", conn_id="c")).db == 4
    )


def test_a_url_and_the_other_fields_complete_each_other() -> None:
    extra = {"tls": "true", "ca": "/ca", "db": 2}
    settings = settings_from(connection("valkeys://u@h", password="p", port=7000, extra=extra))
    assert (settings.url, settings.user, settings.password, settings.ca) == (
        "valkeys://h:7000/2",
        "u",
        "p",
        "/ca",
    )


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"extra": '{"tls": true, "tls": false}'}, "extra 'tls' is given twice with different values"),
    (
        {"extra": '{"__extra__": {"tls": true, "tls": null}}'},
        "extra 'tls' is given twice with different values",
    ),
    ({"host": "valkeys://h?verify=true&verify=false"}, "host: the URL contains verify twice"),
    ({"host": "valkeys://h?verify=true&ssl_cert_reqs=none"}, "host: the URL contains verify twice"),
    ({"host": "valkeys://h?ca=/a&ca=/b"}, "host: the URL contains ca twice"),
    ({"host": "valkey://h/3?db=4"}, "host: the URL contains db twice"),
    ({"host": "valkey://u:hunter3@h?password=hunter4"}, "host: the URL contains password twice"),
    ({"host": "valkey://h", "extra": {"tls": True}}, "tls differs between extra tls and the URL in host"),
    ({"host": "valkeys://h", "extra": {"tls": False}}, "tls differs"),
    ({"host": "valkeys://h?ca=/a", "extra": {"ca": "/b"}}, "ca differs between extra ca and the URL in host"),
    ({"host": "valkey://h/1", "extra": {"db": 2}}, "db differs between extra db and the URL in host"),
    ({"host": "valkey://h/0", "extra": {"db": 2}}, "db differs"),
    ({"schema": "1", "extra": {"db": 2}}, "db differs between extra db and schema"),
    ({"host": "valkey://v@h"}, "user differs between login and the URL in host"),
    ({"host": "valkey://u:hunter3@h"}, "password differs between password and the URL in host"),
    ({"host": "valkey://h", "extra": {"kind": "cluster"}}, "kind differs"),
    ({"host": "valkey+sentinel://h/a", "extra": {"service": "b"}}, "service differs"),
    ({"host": "valkey://h:1", "port": 2}, "port differs between host and port"),
    ({"host": "h:1", "port": 2}, "port differs between host and port"),
    ({"host": "h:1,i:1", "port": 2, "extra": {"kind": "cluster"}}, "port differs"),
    (
        {"extra": {"tls": True, "ca": "/a", "extra__glidemq__ca": "/b"}},
        "ca differs between extra ca and extra extra__glidemq__ca",
    ),
    ({"extra": {"db": 1, "extra__glidemq__db": 2}}, "between extra db and extra extra__glidemq__db"),
    ({"extra": {"ca": "/a"}}, "extra ca needs TLS"),
    ({"extra": {"tls": False, "ca": "/a"}}, "extra ca needs TLS"),
    ({"extra": {"tls": True, "tls_ca_file": "/a"}}, "extra 'tls_ca_file' is unknown: use ca"),
    ({"extra": {"cert": "/a"}}, "extra cert needs TLS"),
    ({"host": "valkey://h?ca=/a"}, "ca in the URL in host needs TLS"),
    ({"extra": {"verify": False}}, "extra verify is false, but there is no TLS"),
    ({"extra": {"tls": True, "key": "/a"}}, "extra key needs extra cert"),
    ({"host": "/tmp/s", "extra": {"tls": True}}, "extra tls is true, but host is a unix socket"),
    ({"host": "/tmp/s", "port": 1}, "port is given, but host is a unix socket"),
    ({"host": "unix:///tmp/s", "extra": {"kind": "cluster"}}, "kind differs"),
    ({"host": "/tmp/s", "extra": {"kind": "cluster"}}, "extra kind is cluster, but host is a unix socket"),
    ({"host": "a,b"}, "several servers: set extra kind"),
    ({"extra": {"kind": "sentinel"}}, "extra service is missing"),
    ({"extra": {"service": "main"}}, "extra service needs sentinels"),
    ({"extra": {"sentinel_password": "hunter4"}}, "extra sentinel_password needs sentinels"),
    ({"extra": {"kind": "cluster", "db": 1}}, "extra db names a database, but a cluster"),
]
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"host": 5}, "host must be a text"),
    ({"password": 12345}, "password must be a text"),
    ({"host": "/tmp/\ud800"}, "host must be a text without lone surrogates"),
    ({"extra": {"kind": "sentinel", "service": "\ud800"}}, "extra service must be a text"),
    ({"port": 99999}, "port must be a whole number from 1 to 65535"),
    ({"port": 0}, "port must be a whole number from 1 to 65535"),
    ({"port": "7000x"}, "port must be a whole number from 1 to 65535"),
    ({"host": "h:0"}, "host: the URL does not name a server: host number 1"),
    ({"host": "a:7000,b:0", "extra": {"kind": "cluster"}}, "host: .* host number 2"),
    ({"host": ",".join(["h"] * 1_001), "extra": {"kind": "cluster"}}, "host: .*more than 1,000 hosts"),
    ({"host": ",".join(["h"] * 40) + "/0"}, "host must be HOST or HOST:PORT"),
    (
        {"schema": "hunter3@h", "extra": {"kind": "sentinel"}},
        "schema .* has an @: write / in a password as %2F",
    ),
    ({"host": None}, "host is missing"),
    ({"host": "http://h"}, "host: the URL does not name a server"),
    ({"host": "valkey://h?tsl=1"}, "host: option 1 in the query"),
    ({"host": "u:hunter3@h"}, "host must be HOST or HOST:PORT"),
    ({"host": "h/3"}, "host must be HOST or HOST:PORT"),
    ({"host": "h:port"}, "host: the URL does not name a server: host number 1"),
    ({"schema": "main"}, "schema .* must be a database number"),
    ({"extra": "hunter3"}, "extra must be a JSON object"),
    ({"extra": '["hunter3"]'}, "extra must be a JSON object"),
    ({"extra": {"tls": "perhaps"}}, "extra tls must be true or false"),
    ({"extra": {"db": "-1"}}, "extra db must be a whole number"),
    ({"extra": {"db": True}}, "extra db must be a whole number"),
    ({"extra": {"db": [1]}}, "extra db must be a whole number"),
    ({"extra": {"connect_timeout": "soon"}}, "extra connect_timeout must be a duration above zero"),
    ({"extra": {"socket_timeout": 0}}, "extra socket_timeout must be a duration above zero"),
    ({"extra": {"confirm_timeout": "inf"}}, "extra confirm_timeout must be a duration above zero"),
    ({"extra": {"connect_timeout": True}}, "extra connect_timeout must be a duration above zero"),
    ({"extra": {"kind": "ring"}}, "extra kind must be single, cluster or sentinel"),
    ({"extra": {"confirm": "perhaps"}}, "confirm must be disk"),
    ({"extra": {"sentinel_password": ["hunter3"]}}, "extra sentinel_password must be a text"),
    ({"extra": {"prefix": "{x}"}}, "prefix"),
    ({"extra": {"__extra__": "hunter3"}}, "extra must be a JSON object"),
]


def test_durations_may_be_text() -> None:
    times = {"connect_timeout": "500ms", "socket_timeout": "PT1M", "confirm_timeout": "2"}
    found = settings_from(connection(extra=times))
    assert (found.connect_timeout, found.socket_timeout, found.confirm_timeout) == (0.5, 60, 2)


def test_a_wrong_field_is_named_and_no_secret_is(subtests: pytest.Subtests) -> None:
    for given, expected in (*CONTRADICTIONS, *WRONG):
        with subtests.test(given=given):
            wrong = connection(**{"login": "u", "password": "hunter2", **given})
            with pytest.raises(ConfigurationError, match=rf"\Aconnection c: .*{expected}") as caught:
                settings_from(wrong)
            assert "hunter" not in str(caught.value)
            assert caught.value.__cause__ is None


def test_an_unknown_extra_is_refused_with_the_nearest_name(subtests: pytest.Subtests) -> None:
    for name, advice in UNKNOWN_EXTRAS:
        with (
            subtests.test(name=name),
            pytest.raises(ConfigurationError, match=f"connection c: extra '{name}' is unknown: {advice}"),
        ):
            settings_from(connection(extra={"db": 1, name: "hunter2"}))


def test_the_end_of_a_password_is_not_shown_as_the_name_of_an_extra() -> None:
    torn = Connection.from_uri("glidemq://u:1?hunter2&x=y@host/", conn_id="c")
    with pytest.raises(ConfigurationError, match=r"write \? in a password in a URI as %3F") as caught:
        settings_from(torn)
    assert "hunter" not in str(caught.value)


def test_the_examples_in_the_readme_are_connections() -> None:
    examples = re.findall(r"AIRFLOW_CONN_GLIDEMQ_DEFAULT='(.*)'", README.read_text(encoding="utf-8"))
    found = [
        Connection.from_json(text, "c") if text.startswith("{") else Connection.from_uri(text, "c")
        for text in examples
    ]
    assert [settings_from(one).where for one in found] == [
        "valkeys://valkey.internal:6379",
        "valkeys://valkey.internal:6379",
        "valkey+cluster://a:7000,b:7000",
        "valkey+sentinel://a:26379,b:26379/main",
        "valkeys+cluster://a:7000,b:7000",
    ]


def test_the_readme_names_every_extra() -> None:
    text = README.read_text(encoding="utf-8")
    rows = "".join(line for line in text.splitlines() if line.startswith("| extra "))
    assert set(re.findall(r"`([a-z_]+)`", rows.replace("`/`", ""))) >= set(EXTRAS)


def test_settings_show_no_password() -> None:
    shown = repr(settings_from(WAYS["form"]))  # type: ignore[arg-type]
    assert "p@ss" not in shown
    assert "hunter" not in shown


@pytest.mark.parametrize("uri", ["http://valkey:6379", "valkeys://valkey:6379"])
def test_another_type_of_connection_is_refused_with_those_that_fit(uri: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^connection c: its type is '(http|valkeys)': set it to glidemq \("
    ):
        settings_from(Connection.from_uri(uri, conn_id="c"))
    for kind in ("valkey", "redis", "generic"):
        assert (
            settings_from(Connection(conn_id="c", conn_type=kind, host="valkey")).url
            == "valkey://valkey:6379/0"
        )
