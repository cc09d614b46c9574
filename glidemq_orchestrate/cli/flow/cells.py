"""Values in the cells of tables."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from typing import Any

from glidemq_orchestrate.cli.shell import as_json_value
from glidemq_orchestrate.flows.spec import FlowStatus


def status_json(status: FlowStatus) -> dict[str, Any]:
    """The status of a flow for ``--json``."""
    return {name: value for name, value in asdict(status).items() if name != "stored_as"}


def short(value: Any, most: int | None) -> str:
    """A value as the text of a cell, cut to ``most`` characters."""
    text = value if isinstance(value, str) else None
    if isinstance(value, datetime):
        text = value.astimezone().isoformat(sep=" ", timespec="milliseconds")
    if text is None:
        text = json.dumps(value, default=as_json_value, ensure_ascii=False)
    if most is None or len(text) <= most:
        return text
    return f"{text[:most]} … ({len(text):,} characters; --full shows all)"
