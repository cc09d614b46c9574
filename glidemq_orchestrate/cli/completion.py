"""Completion of flow ids, nodes and queue names in a shell; empty if the server does not answer soon."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import typer

from glidemq_orchestrate.clients.client import Client
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX

PATIENCE: Final = timedelta(seconds=1.5)
NEWEST: Final = 100


def flow_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """The ids of the newest flows that begin with the text."""
    return ids_like(ctx.params, incomplete)


def ids_like(params: Mapping[str, Any], start: str) -> list[str]:
    """``flow_ids`` for the options of a command."""
    return _complete(params, start, lambda client: (flow.id for flow in client.flows.list(limit=NEWEST)))


def node_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of the nodes of the flow on the command line that begin with the text."""
    flow_id = ctx.params.get("flow_id")
    if not flow_id:
        return []
    return _complete(
        ctx.params, incomplete, lambda client: (node.name for node in client.flows.get(flow_id).nodes())
    )


def queue_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of the queues that begin with the text."""
    return _complete(ctx.params, incomplete, lambda client: client.queues())


def _complete(
    params: Mapping[str, Any], incomplete: str, read: Callable[[Client], Iterable[str]]
) -> list[str]:
    found: list[str] = []
    reader = threading.Thread(target=_read, args=(params, read, found), daemon=True)
    reader.start()
    reader.join(PATIENCE.total_seconds())
    return sorted(name for name in list(found) if name.startswith(incomplete) and name.isprintable())


def _read(options: Mapping[str, Any], read: Callable[[Client], Iterable[str]], found: list[str]) -> None:
    prefix = options.get("prefix") or DEFAULT_PREFIX
    # The command itself reports what is wrong.
    with suppress(Exception), Client(options.get("url"), prefix=prefix) as client:
        found.extend(read(client))
