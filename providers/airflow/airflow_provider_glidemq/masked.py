"""Whether the payloads of a flow hold what Airflow masks in logs.

Airflow learns in the process of a task what to mask there: passwords of connections, variables whose names
say so. A triggerer never learns it. So what nodes of such a flow log and report is shown by processes of
tasks alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.log import redact  # type: ignore[attr-defined]

if TYPE_CHECKING:
    from glidemq_orchestrate import FlowSpec

AT_ONCE: Final = 1_000
WITHHELD: Final = (
    "Its payload has values that Airflow masks, which a triggerer does not know: what it says is not shown "
    "here. See it with: glidemq flow node %s %s"
)


def holds_masked(spec: FlowSpec) -> bool:
    """Whether this process masks a part of a payload."""
    texts = (text for node in spec.nodes for text in _texts(node.data))
    while some := list(islice(texts, AT_ONCE)):  # a call for many: each costs some microseconds
        whole = "\n".join(some)
        if redact(whole) != whole:
            return True
    return False


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)
