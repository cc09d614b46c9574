"""The results of a flow that go to XCom. XCom is in Airflow's database, so they are limited in size."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

if TYPE_CHECKING:
    from airflow.sdk.types import Logger

    from glidemq_orchestrate import Flow

ResultMode = Literal["none", "leaves", "all"]
MAX_RESULT_BYTES: Final = 48 * 1024


def check_result_mode(mode: str) -> None:
    """Refuse an unknown mode while the DAG is parsed.

    Raises:
        ValueError: It is not one of ``none``, ``leaves``, ``all``.
    """
    if mode not in get_args(ResultMode):
        raise ValueError(f"result must be one of {', '.join(get_args(ResultMode))}, got {mode!r}")


def collect(flow: Flow, mode: ResultMode, log: Logger) -> dict[str, Any] | None:
    """Read the results as ``{node: result}``; None for the mode ``none``.

    More than 48 KiB of JSON are not returned: a warning is logged, and the return value is
    ``{"flow_id": ..., "omitted_bytes": ...}``, with which a later task can read them through the hook.
    """
    if mode == "none":
        return None
    values = dict(flow.results())
    if mode == "leaves":
        nodes = flow.nodes()
        inner = {dependency for node in nodes for dependency in node.after}
        values = {
            node.name: values[node.name] for node in nodes if node.name not in inner and node.name in values
        }
    size = len(json.dumps(values).encode())
    if size <= MAX_RESULT_BYTES:
        return values
    log.warning(
        "The results of flow %s are %d bytes, too many for XCom (limit %d): pushed a reference instead. "
        "Read them with GlideMQHook().get_producer().get(flow_id).results(), or let nodes return references.",
        flow.id, size, MAX_RESULT_BYTES,
    )  # fmt: skip
    return {"flow_id": flow.id, "omitted_bytes": size}
