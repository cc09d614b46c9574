"""What a job carries for Pipes: the context of the step, under one key of its data. Holds no secret."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, cast

import dagster as dg
from dagster_pipes import (
    DAGSTER_PIPES_CONTEXT_ENV_VAR,
    PipesContextData,
    PipesDefaultContextLoader,
    PipesParams,
)

from glidemq_orchestrate import Flow, FlowNode, FlowSpec
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.pipes import PIPES
from glidemq_orchestrate.runs import Json

TRIED_NODES: Final = 10
_EXTRAS: Final = "extras"


class GlideMQContextInjector(dg.PipesContextInjector):
    """Puts the context into the data of the jobs.

    Args:
        stored: The context with which an earlier run has begun the flow that this one goes on with. A node
            whose data changes would run again, and the context names the run: so it stays as it was, but for
            the extras, which are the user's.
        asset_keys: In place of the selected assets: a handler may only report assets that it knows of, and
            in a flow nodes run whose assets are not selected. None: the selected ones.
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
        """Say where the context is."""
        return f"The context is in the data of the job, under {PIPES}; open_pipes(ctx) reads it."


def with_bootstrap(spec: FlowSpec, params: Mapping[str, Any]) -> FlowSpec:
    """The flow whose nodes carry the bootstrap parameters, as far as their data is an object or nothing.

    Raises:
        ConfigurationError: The data of a node has the key already.
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
