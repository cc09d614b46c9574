"""The options of the data source, and the connection that they name.

Names are case-insensitive. Each Spark task, and the driver while it plans, opens its own connection; no
connection is pickled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, TypeVar

from glidemq_orchestrate.clients.facade import SyncFacade
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.durations import MILLISECOND, setting_duration
from glidemq_orchestrate.foundation.suggestions import nearest
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.runs import Patience
from glidemq_orchestrate.settings import ENV_PREFIX, ConnectionSettings
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX

SECRETS: Final = ("url", "password", "sentinel_user", "sentinel_password")
_DURATIONS: Final = ("connect_timeout", "socket_timeout", "confirm_timeout")
_TEXTS: Final = ("user", "password", "ca", "cert", "sentinel_user", "sentinel_password", "confirm")
CONNECTION: Final = ("url", "prefix", *_TEXTS, "ssl_keyfile", "verify", *_DURATIONS)
_TRUTH: Final = {"true": True, "false": False}


class Options:
    """The options of one read or write. Errors name the option and never show a secret.

    Args:
        given: The options, as Spark passes them.
        known: The names of the options of this read or write, besides those of the connection.
        what: A description of the read or write, for errors.

    Raises:
        ConfigurationError: An option has an unknown name.
    """

    def __init__(self, given: Mapping[str, str], known: Iterable[str], what: str) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        self.what = what
        names = {name.lower(): name for name in (*known, *CONNECTION)}
        for name in self._given:
            if name not in names:
                near = nearest(name, names)
                hint = (
                    f"did you mean {names[near]}?" if near else f"it has {', '.join(sorted(names.values()))}"
                )
                raise ConfigurationError(f"{what} has no option {name}; {hint}")

    def text(self, name: str) -> str | None:
        """The value of an option; None if it is not given."""
        return self._given.get(name.lower())

    def required(self, name: str) -> str:
        """The value of an option that must be given."""
        value = self.text(name)
        if not value:
            raise ConfigurationError(f'{self.what} needs the option {name}: .option("{name}", ...)')
        return value

    def boolean(self, name: str, *, default: bool) -> bool:
        """The value of an option that is true or false."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in _TRUTH:
            raise self.refused(name, "true or false")
        return _TRUTH[value.lower()]

    def whole(self, name: str, default: int, least: int, most: int) -> int:
        """The value of an option that is a whole number."""
        value = self.text(name)
        if value is None:
            return default
        if not value.isascii() or not value.isdigit() or not least <= int(value) <= most:
            raise self.refused(name, f"a whole number from {least} to {most}")
        return int(value)

    def names(self, name: str, check: Callable[[str], str] = str) -> tuple[str, ...] | None:
        """The value of an option that is one text, or a JSON array of texts; None if it is not given."""
        value = self.text(name)
        if value is None:
            return None
        found: Any = [value]
        if value.startswith("["):
            try:
                found = json.loads(value)
            except ValueError:
                found = None
        if not isinstance(found, list) or not found or not all(isinstance(one, str) and one for one in found):
            raise self.refused(name, 'one text, or several as a JSON array: ["a", "b"]')
        return tuple(dict.fromkeys(check(one) for one in found))

    def choices(self, name: str, among: Iterable[str]) -> tuple[str, ...] | None:
        """``names``, each of which must be one of the allowed values."""
        allowed = list(among)
        found = self.names(name)
        for one in found or ():
            if one not in allowed:
                raise self.refused(name, f"one of {', '.join(allowed)}")
        return found

    def moment_ms(self, name: str) -> int | None:
        """The value of an option that is a time, in ms since the epoch, rounded up."""
        value = self.text(name)
        if value is None:
            return None
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            raise self.refused(name, "a time with its zone, such as 2026-01-31T06:00:00Z")
        return -(-round(moment.timestamp() * 1_000_000) // 1000)

    def duration(self, name: str, default: timedelta, most: timedelta) -> timedelta:
        """The value of an option that is a duration: seconds, or a text such as ``12h`` or ``P7D``."""
        value = self.text(name)
        if value is None:
            return default
        return setting_duration(f"the option {name} of {self.what}", value, min_=MILLISECOND, max_=most)

    def settings(self) -> ConnectionSettings:
        """The settings of the connection; the default URL is ``GLIDEMQ_URL``.

        A step in a session host finds the server of its worker there, and the prefix in ``GLIDEMQ_PREFIX``.

        Raises:
            ConfigurationError: A setting is invalid.
        """
        more: dict[str, Any] = {name: value for name in _TEXTS if (value := self.text(name)) is not None}
        if (key := self.text("ssl_keyfile")) is not None:
            more["key"] = key
        if self.text("verify") is not None:
            more["verify"] = self.boolean("verify", default=True)
        for name in _DURATIONS:
            if (value := self.text(name)) is not None:
                more[name] = setting_duration(f"the option {name} of {self.what}", value)
        url = ConnectionSettings.resolve(self.text("url")).url
        prefix = self.text("prefix") or os.environ.get(ENV_PREFIX) or DEFAULT_PREFIX
        return ConnectionSettings(url, prefix=prefix, **more)

    def refused(self, name: str, rule: str) -> ConfigurationError:
        """The error for an invalid value."""
        value = "" if name in SECRETS else f", got {described(self.text(name))}"
        return ConfigurationError(f"the option {name} of {self.what} must be {rule}{value}")


PATIENCE_SECONDS: Final = 60.0
T = TypeVar("T")
P = TypeVar("P")


def patience() -> Patience:
    """Patience for a server that becomes unreachable, as in a restart; none for one that never replied."""
    return Patience(PATIENCE_SECONDS, first=0.0)


class RetryingClient(SyncFacade):
    """Runs repeatable operations, and retries them."""

    def __init__(self, settings: ConnectionSettings) -> None:
        super().__init__(settings)
        self._patience = patience()

    @property
    def prefix(self) -> str:
        """First part of every key."""
        return self._prefix

    def ask(self, make: Callable[[], Op[T]]) -> T:
        """Run an operation, and retry it after temporary failures."""
        return self._patience(lambda: self._run(make()))

    def pages(
        self, read: Callable[[P | None], Op[tuple[T, P | None]]], first: P | None = None
    ) -> Iterator[T]:
        """The results of an operation for successive positions, until it returns no next position."""
        place = first
        while True:
            found, following = self.ask(partial(read, place))
            yield found
            if following is None:
                return
            place = following

    def now_ms(self) -> int:
        """The server's time."""
        return self._now()
