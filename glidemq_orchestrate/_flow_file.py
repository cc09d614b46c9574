"""The shape of a flow file. Apart from ``flow`` because pydantic is slow to import and only files need it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from glidemq_orchestrate.errors import InvalidFlow


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class BackoffFile(_Strict):
    """``backoff`` of a node's options."""

    kind: Literal["fixed", "exponential"] = "exponential"
    delay: timedelta = timedelta(seconds=1)
    jitter: float = 0.0


class OptionsFile(_Strict):
    """``options`` of a node; durations are seconds or ISO 8601."""

    attempts: int = 1
    backoff: BackoffFile | None = None
    timeout: timedelta | None = None
    delay: timedelta = timedelta(0)


class NodeFile(_Strict):
    """One element of ``nodes``."""

    name: str
    queue: str
    job: str
    data: Any = None
    after: list[str] = []
    options: OptionsFile = OptionsFile()


class FlowFile(_Strict):
    """The whole file."""

    name: str
    nodes: list[NodeFile]
    labels: dict[str, str] = {}
    retention: timedelta | None = None


def read(wire: Mapping[str, Any]) -> FlowFile:
    """Check the shape.

    Raises:
        InvalidFlow: A field is missing, unknown or of the wrong type; the message lists every place.
    """
    try:
        return FlowFile.model_validate(dict(wire))
    except ValidationError as exc:
        faults = [(".".join(map(str, fault["loc"])), fault["msg"]) for fault in exc.errors()]
        told = "; ".join(f"{place}: {message}" for place, message in faults)
        raise InvalidFlow(f"not a flow: {told}") from exc
