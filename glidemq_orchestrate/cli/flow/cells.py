"""Values in the cells of tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from glidemq_orchestrate.cli.shell import as_json_value
from glidemq_orchestrate.flows.status import FlowStatus, NodeStatus, Wait

NAMED: Final = 20


def status_json(status: FlowStatus) -> dict[str, Any]:
    """The status of a flow for ``--json``."""
    return {name: value for name, value in asdict(status).items() if name != "stored_as"}


def wait_json(waits: Mapping[str, Wait], node: NodeStatus) -> dict[str, Any] | None:
    """Why a node waits, and until when, for ``--json``; None if it does not wait."""
    found = waits.get(node.name)
    return None if found is None else asdict(found)


def changed_line(what: str, names: Sequence[str]) -> str:
    """A line about changed nodes."""
    if not names:
        return "Nothing was changed."
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return f"{what}: {', '.join(names[:NAMED])}{more}"


def short(value: Any, limit: int | None) -> str:
    """A value as the text of a cell, cut to ``limit`` characters."""
    text = value if isinstance(value, str) else None
    if isinstance(value, datetime):
        text = value.astimezone().isoformat(sep=" ", timespec="milliseconds")
    if text is None:
        text = json.dumps(value, default=as_json_value, ensure_ascii=False)
    if limit is None or len(text) <= limit:
        return text
    return f"{text[:limit]} … ({len(text):,} characters; --full shows all)"
