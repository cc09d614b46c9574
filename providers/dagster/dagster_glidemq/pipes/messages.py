"""Pipes messages: those that workers have written, and those that a JSON result stands for. Does no I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from dagster_pipes import (
    PIPES_METADATA_TYPE_INFER,
    PIPES_PROTOCOL_VERSION,
    PIPES_PROTOCOL_VERSION_FIELD,
    PipesMessage,
)

from glidemq_orchestrate.runs import Json

RESULT_FIELD: Final = "dagster_pipes"
"""Where a result that is an object may have a list of messages."""
LIVE: Final = frozenset({"log", "log_external_stream"})
"""Handed over as they are made, of every attempt."""
REPORTS: Final = frozenset({"report_asset_materialization", "report_asset_check", "report_custom_message"})
"""Handed over when the attempt that wrote them was accepted."""
MAX_METADATA: Final = 50
MAX_TEXT: Final = 10_000
_ASSET: Final = {"asset_key": None, "metadata": None}
# The parameters of each method with their defaults; those of ... must be given.
_PARAMS: Final[dict[str, dict[str, Any]]] = {
    "log": {"message": ..., "level": "INFO"},
    "log_external_stream": {"stream": ..., "text": ..., "extras": {}},
    "report_asset_materialization": {**_ASSET, "data_version": None},
    "report_asset_check": {**_ASSET, "check_name": ..., "passed": ..., "severity": "ERROR"},
    "report_custom_message": {"payload": ...},
}


class InvalidReport(ValueError):
    """A result does not have the form of Pipes messages; the message names the place."""


def make(method: str, params: Mapping[str, Any]) -> PipesMessage:
    """A message of the protocol."""
    made = {PIPES_PROTOCOL_VERSION_FIELD: PIPES_PROTOCOL_VERSION, "method": method, "params": dict(params)}
    return cast("PipesMessage", made)


def read(text: str) -> PipesMessage | None:
    """The Pipes message in what a handler has written; None for anything else."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    is_pipes = isinstance(found, dict) and PIPES_PROTOCOL_VERSION_FIELD in found and "method" in found
    return cast("PipesMessage", found) if is_pipes else None


def with_metadata(message: PipesMessage, more: Mapping[str, Any]) -> PipesMessage:
    """A report of an asset with more metadata; what the handler has reported under a name stays."""
    params = message["params"] or {}
    if "asset_key" not in params:
        return message
    added = {name: _metadata_value(value) for name, value in more.items()}
    return make(message["method"], {**params, "metadata": added | dict(params.get("metadata") or {})})


def of_result(result: Json, asset_keys: Sequence[str]) -> list[PipesMessage]:
    """The messages in the field ``dagster_pipes`` of a result; none if it has no such field.

    Args:
        result: The result of a job.
        asset_keys: The selected assets; a report without an asset is about the only one.

    Raises:
        InvalidReport: They do not have the form.
    """
    listed = result.get(RESULT_FIELD) if isinstance(result, dict) else None
    if listed is None:
        return []
    if not isinstance(listed, list):
        raise InvalidReport(f'{RESULT_FIELD} must be a list of {{"method", "params"}}')
    return [_message(f"{RESULT_FIELD}[{at}]", one, asset_keys) for at, one in enumerate(listed)]


def scalars_of(result: Json) -> dict[str, str | int | float | bool]:
    """The plain values of a result, as metadata; of texts those of at most 10,000 characters."""
    found = result if isinstance(result, dict) else {"result": result}
    plain = {name: value for name, value in found.items() if isinstance(value, str | int | float)}
    short = [(name, value) for name, value in plain.items() if len(str(value)) <= MAX_TEXT]
    return dict(short[:MAX_METADATA])


def _message(place: str, one: Json, asset_keys: Sequence[str]) -> PipesMessage:
    method = one.get("method") if isinstance(one, dict) else None
    given = one.get("params", {}) if isinstance(one, dict) else None
    if not isinstance(method, str) or method not in _PARAMS or not isinstance(given, dict):
        raise InvalidReport(
            f'{place} must be {{"method", "params"}}, with a method of {", ".join(sorted(_PARAMS))}'
        )
    known = _PARAMS[method]
    if unknown := sorted(set(given) - set(known)):
        raise InvalidReport(f"{place}: {method} takes no {', '.join(unknown)}")
    params = {**known, **given}
    if missing := sorted(name for name, value in params.items() if value is ...):
        raise InvalidReport(f"{place}: {method} needs {', '.join(missing)}")
    if "asset_key" in params:
        params["asset_key"] = _asset_key(place, params["asset_key"], asset_keys)
        metadata = params["metadata"] or {}
        if not isinstance(metadata, dict):
            raise InvalidReport(f"{place}: metadata must be an object")
        params["metadata"] = {name: _metadata_value(value) for name, value in metadata.items()}
    return make(method, params)


def _asset_key(place: str, given: Json, asset_keys: Sequence[str]) -> str:
    if isinstance(given, str) and given:
        return given
    if given is not None:
        raise InvalidReport(f"{place}: asset_key must be a text; parts are separated by /")
    if len(asset_keys) != 1:
        raise InvalidReport(f"{place}: asset_key is needed, as the step has {len(asset_keys)} assets")
    return asset_keys[0]


def _metadata_value(value: Any) -> dict[str, Any]:
    if isinstance(value, dict) and set(value) == {"raw_value", "type"}:
        return value
    if isinstance(value, dict | list):
        return {"raw_value": value, "type": "json"}
    return {"raw_value": value, "type": PIPES_METADATA_TYPE_INFER}
