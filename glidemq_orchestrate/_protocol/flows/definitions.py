"""What a node does, as its job has it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from glidemq_orchestrate._protocol.call import Call, command
from glidemq_orchestrate._protocol.flows.portable.node_jobs import KEEPING
from glidemq_orchestrate.flows.checked import canonical
from glidemq_orchestrate.keys import QueueKeys

POLICIES: Final = ("gmo:rule", "gmo:on_failure", "gmo:queue_timeout", "gmo:edge")


class Definition(NamedTuple):
    """Data as JSON text with its keys in order, options, and the policies that are stored with the job."""

    data: str
    options: dict[str, Any]
    policies: Mapping[str, str]


def definition(
    queue: QueueKeys, job_id: str, path: str, edges: Sequence[str] = ()
) -> Call[Definition | None]:
    """The definition of a node, None if its job was removed; of single edges only the fields in ``edges``."""
    fields = (*POLICIES, *edges)

    def decode(reply: Any) -> Definition | None:
        data, options, *policies = reply
        if data is None or options is None:
            return None
        own = {name: text for name, text in zip(fields, policies, strict=True) if text}
        return Definition(canonical(data), settled_options(options, path), own)

    return command("HMGET", queue.job(job_id), "data", "opts", *fields, decode=decode)


def settled_options(options: str, path: str) -> dict[str, Any]:
    """The options of a node without what its flow adds or leaves out, such as the trace context."""
    added = {"traceparent", "tracestate", "gmo", *(KEEPING if path == "portable" else ())}
    return {name: value for name, value in json.loads(options).items() if name not in added}
