"""Checks of the arguments of workers."""

from __future__ import annotations

from datetime import timedelta

from glidemq_orchestrate.errors import ConfigurationError


def whole(name: str, value: object, least: int) -> None:
    """Refuse what is not a whole number from ``least``.

    Raises:
        ConfigurationError: The value is refused.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigurationError(f"{name} must be a whole number of at least {least}, got {value!r}")


def duration(name: str, value: object, least: timedelta) -> None:
    """Refuse what is not a ``timedelta`` from ``least``.

    Raises:
        ConfigurationError: The value is refused.
    """
    if not isinstance(value, timedelta) or value < least:
        raise ConfigurationError(f"{name} must be a timedelta of at least {least}, got {value!r}")
