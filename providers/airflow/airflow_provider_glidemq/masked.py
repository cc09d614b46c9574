"""Whether the payloads of a flow hold what Airflow masks in logs.

Airflow learns in the process of a task what to mask there: passwords of connections, variables whose names
say so. A triggerer never learns it. So what nodes of such a flow log and report is shown by processes of
tasks alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.log import redact  # type: ignore[attr-defined]

if TYPE_CHECKING:
    from glidemq_orchestrate import FlowSpec

DEPTH: Final = 100
WITHHELD: Final = (
    "Its payload has values that Airflow masks, which a triggerer does not know: what it says is not shown "
    "here. See it with: glidemq flow node %s %s"
)


def holds_masked(spec: FlowSpec) -> bool:
    """Whether this process masks a part of a payload."""
    return any(_is_masked(node.data) for node in spec.nodes)


def _is_masked(value: Any) -> bool:
    if isinstance(value, str):
        return bool(redact(value) != value)
    if isinstance(value, dict):
        return any(_is_masked(key) or _is_masked(part) for key, part in value.items())
    return isinstance(value, list | tuple) and any(map(_is_masked, value))
