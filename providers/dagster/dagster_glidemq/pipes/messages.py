"""Pipes messages: the context in the data of a job, messages of workers, and messages in a result.

Does no I/O; the context holds no secret.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, cast

import dagster as dg
from dagster_pipes import (
    DAGSTER_PIPES_CONTEXT_ENV_VAR,
    PIPES_METADATA_TYPE_INFER,
    PIPES_PROTOCOL_VERSION,
    PIPES_PROTOCOL_VERSION_FIELD,
    PipesContextData,
    PipesDefaultContextLoader,
    PipesMessage,
    PipesParams,
)

from glidemq_orchestrate import Flow, FlowNode, FlowSpec
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.pipes import PIPES
from glidemq_orchestrate.runs import Json

RESULT_FIELD: Final = "dagster_pipes"
"""The field of a result object that may hold a list of messages."""
LIVE: Final = frozenset({"log", "log_external_stream"})
"""Methods of messages that are passed on immediately, from every attempt."""
REPORTS: Final = frozenset({"report_asset_materialization", "report_asset_check", "report_custom_message"})
"""Methods of messages that are passed on when their attempt is accepted."""
MAX_METADATA: Final = 50
MAX_TEXT: Final = 10_000
_ASSET: Final = {"asset_key": None, "metadata": None}
# The parameters of each method with their defaults; a parameter with ... is required.
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
    """The Pipes message in a text of a handler; None for any other text."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    is_pipes = isinstance(found, dict) and PIPES_PROTOCOL_VERSION_FIELD in found and "method" in found
    return cast("PipesMessage", found) if is_pipes else None


def with_metadata(message: PipesMessage, more: Mapping[str, Any]) -> PipesMessage:
    """A report of an asset with more metadata; names that the handler has reported take precedence."""
    params = message["params"] or {}
    if "asset_key" not in params:
        return message
    added = {name: _metadata_value(value) for name, value in more.items()}
    return make(message["method"], {**params, "metadata": added | dict(params.get("metadata") or {})})


def of_result(result: Json, asset_keys: Sequence[str]) -> list[PipesMessage]:
    """The messages in the field ``dagster_pipes`` of a result; none if it has no such field.

    Args:
        result: The result of a job.
        asset_keys: The selected assets; a report without an asset refers to the only one.

    Raises:
        InvalidReport: The messages have another form.
    """
    listed = result.get(RESULT_FIELD) if isinstance(result, dict) else None
    if listed is None:
        return []
    if not isinstance(listed, list):
        raise InvalidReport(f'{RESULT_FIELD} must be a list of {{"method", "params"}}')
    return [_message(f"{RESULT_FIELD}[{at}]", one, asset_keys) for at, one in enumerate(listed)]


def scalars_of(result: Json) -> dict[str, str | int | float | bool]:
    """The plain values of a result as metadata, without texts of more than 10,000 characters."""
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


TRIED_NODES: Final = 10
_EXTRAS: Final = "extras"


class GlideMQContextInjector(dg.PipesContextInjector):
    """Puts the context into the data of the jobs.

    Args:
        stored: The context with which an earlier run has begun the flow that this run continues. A node whose
            data changes would run again, and the context names the run: so it stays unchanged, except for the
            extras, which belong to the user.
        asset_keys: The assets for the handlers, instead of the selected assets. A handler may only report
            assets of its context, and a flow may run nodes whose assets are not selected. None: the selected
            assets.
    """

    def __init__(self, stored: Mapping[str, Any] | None, asset_keys: Sequence[str] | None) -> None:
        self._stored, self._asset_keys = stored, asset_keys

    @contextmanager
    def inject_context(self, context_data: PipesContextData) -> Iterator[PipesParams]:
        """Yield the context itself: it travels in the data of each job."""
        data: dict[str, Any] = dict(context_data)
        if self._stored is not None:
            data = {**self._stored, _EXTRAS: data[_EXTRAS]}
        elif self._asset_keys is not None:
            data["asset_keys"] = self._asset_keys
        yield cast("PipesParams", {PipesDefaultContextLoader.DIRECT_KEY: data})

    def no_messages_debug_text(self) -> str:
        """Advice on where the context is."""
        return f"The context is in the data of the job, under {PIPES}; open_pipes(ctx) reads it."


def with_bootstrap(spec: FlowSpec, params: Mapping[str, Any]) -> FlowSpec:
    """The flow with the bootstrap parameters in the data of its nodes, if the data is an object or None.

    Raises:
        ConfigurationError: The data of a node already has the key.
    """
    return replace(spec, nodes=[_with_bootstrap(node, dict(params)) for node in spec.nodes])


def stored_context(flow: Flow, read: Any) -> Mapping[str, Any] | None:
    """The context that the jobs of a flow carry; None if they carry none.

    Args:
        flow: The flow.
        read: Called with queue and job id; returns the data of the job.
    """
    for node in flow.nodes()[:TRIED_NODES]:
        data: Json = read(node.queue, node.job_id)
        params = data.get(PIPES) if isinstance(data, dict) else None
        found = params.get(DAGSTER_PIPES_CONTEXT_ENV_VAR) if isinstance(params, dict) else None
        context = found.get(PipesDefaultContextLoader.DIRECT_KEY) if isinstance(found, dict) else None
        if isinstance(context, dict):
            return context
    return None


def _with_bootstrap(node: FlowNode, params: Mapping[str, Any]) -> FlowNode:
    if node.data is not None and not isinstance(node.data, dict):
        return node
    data = dict(node.data or {})
    if PIPES in data:
        raise ConfigurationError(f"node {node.name}: its data has a key {PIPES}, which Pipes needs")
    return replace(node, data={**data, PIPES: dict(params)})
