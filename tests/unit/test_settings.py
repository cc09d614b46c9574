"""Where the server is, and that nobody reads the password."""

from __future__ import annotations

import pytest

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.settings import ENV_URL, ConnectionSettings, masked


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("valkey://h:1/2", "redis://h:1/2"),
        ("valkeys://h", "rediss://h"),
        ("redis://u:p@h", "redis://u:p@h"),
        ("rediss://h", "rediss://h"),
        ("unix:///tmp/x.sock", "unix:///tmp/x.sock"),
        ("valkey+unix:///tmp/x.sock", "unix:///tmp/x.sock"),
    ],
)
def test_every_scheme_has_a_driver(url: str, driver: str) -> None:
    assert ConnectionSettings.resolve(url).driver_url == driver


@pytest.mark.parametrize(
    "url",
    [
        "http://h", "h:6379", "valkey:h", "amqp://u:hunter2@h", "localhost", "://", "[x",
        "valkey://u:hunter2@[::1", "valkey://u:hunter2@h:port", "valkey://u:hunter2@h:70000",
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
    ],
)
def test_a_shown_url_has_no_secret(url: str, shown: str) -> None:
    assert masked(url) == shown


def test_the_repr_of_settings_has_no_secret() -> None:
    settings = ConnectionSettings.resolve("valkey://user:hunter2@h:1/0?password=hunter2")
    for text in (repr(settings), str(settings), f"{settings}"):
        assert "hunter2" not in text
        assert "user:***@h:1" in text
