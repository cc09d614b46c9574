"""Which workers are alive, and whether they can run a flow."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Final

from glidemq_orchestrate._protocol import glidemq, orchestrate
from glidemq_orchestrate._protocol.call import Op, ask
from glidemq_orchestrate.errors import HandlerNotFound, ProtocolError, QueueNotServed
from glidemq_orchestrate.keys import QueueKeys

FOREIGN_IDLE_MS: Final = 10_000
OURS: Final = "gmo-worker-"


def require(prefix: str, jobs: Mapping[str, Collection[str]], now_ms: int) -> Op[None]:
    """Refuse unless every queue has a live worker that knows its jobs.

    A worker that tells its handlers (ours do) is held to them; a Node worker tells none and is trusted.

    Raises:
        QueueNotServed: A queue has no live worker.
        HandlerNotFound: All live workers of a queue tell their handlers, and a job has none.
    """
    unserved, missing, known = [], {}, {}
    for queue, names in jobs.items():
        handlers = yield from _handlers(QueueKeys(prefix, queue), now_ms)
        if handlers is None:
            continue
        if not handlers:
            unserved.append(queue)
        elif lacking := sorted(set(names) - handlers):
            missing[queue], known[queue] = lacking, sorted(handlers - {""})
    if unserved:
        raise QueueNotServed(unserved)
    if missing:
        raise HandlerNotFound(missing, known)


def _handlers(queue: QueueKeys, now_ms: int) -> Op[set[str] | None]:
    """Job names that live workers can run (with '' for a worker); None when a foreign worker is alive."""
    ours = yield from ask(orchestrate.live_workers(queue, now_ms))
    described = (yield from ask(glidemq.worker_descriptions(queue, ours))) if ours else []
    names = {name for text in described if text for name in ["", *json.loads(text).get("handlers", [])]}
    try:
        consumers = yield from ask(glidemq.consumers(queue))
    except ProtocolError:
        return names  # the queue has no group: it never had a worker
    # A worker of ours that died a moment ago is not foreign: its name tells.
    foreign = [consumer for consumer in consumers if not str(consumer["name"]).startswith(OURS)]
    return None if any(int(consumer["idle"]) < FOREIGN_IDLE_MS for consumer in foreign) else names
