"""The connection form for Airflow 3.1, which asks the hook for it. Later releases read the provider info."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from airflow_provider_glidemq.get_provider_info import get_provider_info

_KINDS = {"integer": "IntegerField", "boolean": "BooleanField"}


def form_widgets() -> dict[str, Any]:
    """The fields of ``extra``, made of wtforms, or of what Airflow puts in its place."""
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
    """The class of a field; numbers of seconds are texts, as a form of 3.1 knows whole numbers only."""
    if schema.get("format") == "password":
        return "PasswordField"
    return _KINDS.get(schema["type"][0], "StringField")


def form_behaviour() -> dict[str, Any]:
    """Which of the standard fields are hidden, what they are named, and examples."""
    behaviour = _connection_type()["ui-field-behaviour"]
    return {name.replace("-", "_"): value for name, value in behaviour.items()}


def _connection_type() -> dict[str, Any]:
    found: dict[str, Any] = get_provider_info()["connection-types"][0]
    return found
