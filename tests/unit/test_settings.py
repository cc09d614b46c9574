"""Where the server is, and that nobody reads the password."""

from __future__ import annotations

from typing import Any

import pytest

from glidemq_orchestrate import Queue
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.settings import ENV_URL, ConnectionSettings, Place, masked


@pytest.mark.parametrize(
    ("url", "kind", "tls", "places", "service", "db"),
    [
        ("valkey://h:1/2", "single", False, ["h:1"], "", 2),
        ("valkeys://h", "single", True, ["h:6379"], "", 0),
        ("redis://u:p@h", "single", False, ["h:6379"], "", 0),
        ("rediss://[::1]:7?db=3", "single", True, ["[::1]:7"], "", 3),
        ("valkey://", "single", False, ["localhost:6379"], "", 0),
        ("unix:///tmp/x%20y.sock?db=4", "single", False, ["/tmp/x y.sock"], "", 4),
        ("valkey+unix:///tmp/x.sock", "single", False, ["/tmp/x.sock"], "", 0),
        ("valkey+cluster://a:1,b", "cluster", False, ["a:1", "b:6379"], "", 0),
        ("rediss+cluster://u:p@a:1", "cluster", True, ["a:1"], "", 0),
        ("valkey+sentinel://a,b:2/main", "sentinel", False, ["a:26379", "b:2"], "main", 0),
        ("valkeys+sentinel://u:p@a/my%2Fmain/5", "sentinel", True, ["a:26379"], "my/main", 5),
    ],
)
def test_an_url_says_where_the_servers_are(
    *, url: str, kind: str, tls: bool, places: list[str], service: str, db: int
) -> None:
    read = ConnectionSettings(url)
    assert [str(place) for place in read.places] == places
    assert (read.kind, read.tls, read.service, read.db) == (kind, tls, service, db)


def test_what_is_given_goes_before_the_url_and_an_url_before_the_defaults() -> None:
    url = "valkeys://u:p%40w@h?ca=a&cert=b&key=c&verify=no&connect_timeout=2&socket_timeout=3"
    read = ConnectionSettings(url)
    assert (read.user, read.password, read.ca, read.cert, read.key) == ("u", "p@w", "a", "b", "c")
    assert (read.verify, read.connect_timeout, read.socket_timeout) == (False, 2, 3)
    given = ConnectionSettings(url, user="other", ca="mine", socket_timeout=9)
    assert (given.user, given.password, given.ca, given.socket_timeout) == ("other", "p@w", "mine", 9)
    old = ConnectionSettings("rediss://h?ssl_ca_certs=x&ssl_cert_reqs=none&username=u")
    assert (old.ca, old.verify, old.user) == ("x", False, "u")


def test_settings_stand_wherever_an_url_may() -> None:
    settings = ConnectionSettings("valkey://h", prefix="mine")
    assert ConnectionSettings.resolve(settings) is settings
    assert ConnectionSettings.resolve(settings, prefix="other").prefix == "other"
    queue = Queue("etl", settings)
    assert (queue._settings, queue._keys.base) == (settings, "mine:{etl}")
    cluster = ConnectionSettings("valkeys://u:p@h/1?ca=x", prefix="mine").as_cluster(Place("::1", 7))
    assert (cluster.kind, cluster.places, cluster.user, cluster.password, cluster.ca, cluster.tls) == (
        "cluster", (Place("::1", 7),), "u", "p", "x", True
    )  # fmt: skip


@pytest.mark.parametrize(
    ("url", "options", "told"),
    [
        ("valkey://h?passwort=hunter2", {}, "unknown option passwort"),
        ("valkey://h/x", {}, "db must be a whole number, got 'x'"),
        ("valkey://h/1/2", {}, "'2' is too much"),
        ("valkey+cluster://h/1", {}, "db must be 0 in a cluster"),
        ("valkey+sentinel://h", {}, "the service is missing"),
        ("valkey+cluster://a,:1", {}, "':1' is no host"),
        ("valkey://a,b", {}, "several need"),
        ("valkey://h", {"ca": "x"}, "ca needs TLS"),
        ("valkeys://h", {"key": "x"}, "key needs cert"),
        ("valkey://h", {"sentinel_password": "hunter2"}, r"need a \+sentinel URL"),
        ("valkey://h", {"connect_timeout": 0}, "connect_timeout must be a number of seconds above zero"),
        ("valkey://h?socket_timeout=soon", {}, "socket_timeout must be a number of seconds, got 'soon'"),
        ("valkey://h?socket_timeout=nan", {}, "socket_timeout must be a number"),
        ("valkeys://h?verify=perhaps", {}, "verify must be true or false"),
    ],
)
def test_a_bad_option_is_named(url: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told) as refused:
        ConnectionSettings(url, **options)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://h", "h:6379", "valkey:h", "amqp://u:hunter2@h", "localhost", "://", "[x",
        "valkey+cluster+x://h", "valkey+://h", "valkey://u:hunter2@[::1", "valkey://u:hunter2@h:port", "valkey://u:hunter2@h:70000",
    ],
)  # fmt: skip
def test_an_url_that_names_no_server_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError, match="name a server") as refused:
        ConnectionSettings.resolve(url)
    assert "hunter2" not in str(refused.value)


def test_the_environment_names_the_server_where_the_caller_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_URL, "valkey://env")
    assert ConnectionSettings.resolve().url == "valkey://env"
    assert ConnectionSettings.resolve("valkey://own").url == "valkey://own"
    monkeypatch.setenv(ENV_URL, "")
    with pytest.raises(ConfigurationError, match="GLIDEMQ_URL"):
        ConnectionSettings.resolve()


@pytest.mark.parametrize("prefix", ["", "a{b", "a}"])
def test_a_bad_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigurationError, match="prefix"):
        ConnectionSettings.resolve("valkey://h", prefix=prefix)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("valkey://user:hunter2@h:1/0", "valkey://user:***@h:1/0"),
        ("valkey://:hunter2@h", "valkey://:***@h"),
        ("valkey://user@h", "valkey://user@h"),
        ("valkey://h/0?password=hunter2", "valkey://h/0"),
        ("valkey://user:hun@ter2@h", "valkey://user:***@h"),
        ("valkey://user:hunter2@[::1", "***"),
        ("valkey://h", "valkey://h"),
        ("valkeys+cluster://u:hunter2@a:1,b:2?ca=x", "valkeys+cluster://u:***@a:1,b:2"),
        ("valkey+sentinel://u:hunter2@a:1,b/main", "valkey+sentinel://u:***@a:1,b/main"),
        ("valkey://u:hun/ter2@h", "valkey://***"),
        ("valkey://u:p@x/ter2@h", "valkey://***"),
    ],
)
def test_a_shown_url_has_no_secret(url: str, shown: str) -> None:
    assert masked(url) == shown


def test_the_repr_of_settings_has_no_secret() -> None:
    settings = ConnectionSettings.resolve("valkey://user:hunter2@h:1/0?password=hunter2")
    for text in (repr(settings), str(settings), f"{settings}"):
        assert "hunter2" not in text
        assert "user:***@h:1" in text
    watched = ConnectionSettings(
        "valkeys+sentinel://h/s?sentinel_password=hunter2", user="u", password="hunter2", ca="/ca.pem"
    )
    assert repr(watched) == (
        "ConnectionSettings(url='valkeys+sentinel://h/s', prefix='glide', user='u', ca='/ca.pem', "
        "password='***', sentinel_password='***')"
    )
