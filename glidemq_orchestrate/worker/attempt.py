"""From an attempt to the context of its handler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glidemq_orchestrate._protocol.flows import nodes
from glidemq_orchestrate.codec import decode
from glidemq_orchestrate.errors import DecodeError
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.worker.context import Context, FlowOfNode
from glidemq_orchestrate.worker.messages import Voice


def make_context(
    attempt: Attempt, voice: Voice, flow: FlowOfNode | None, allow_import: Sequence[str] = ()
) -> Context:
    """What the handler of an attempt gets.

    Raises:
        DecodeError: The stored data, inputs or signals are not JSON.
    """
    options, index = attempt.options, attempt.fallback_index
    signals = decode(attempt.signals, where=f"signals of job {attempt.job_id}") if attempt.signals else ()
    return Context(
        attempt.queue,
        attempt.job_id,
        attempt.name,
        attempt.attempts_made + 1,
        decode(attempt.data, where=f"data of job {attempt.name}"),
        nodes.read_results(attempt.inputs) if attempt.inputs else {},
        attempt.flow_id,
        attempt.node,
        voice.of(attempt),
        signals=_read_signals(signals),
        flow=flow,
        fallback=options.fallbacks[index - 1] if 0 < index <= len(options.fallbacks) else None,
        allow_import=allow_import,
    )


def refuse_unreadable(attempts: Sequence[Attempt]) -> None:
    """Raise for an attempt that no handler can run.

    Raises:
        DecodeError: Fields of the job hold what cannot be meant; the message says which.
    """
    for attempt in attempts:
        if attempt.unreadable:
            raise DecodeError(attempt.unreadable)


def portable(context: Context) -> dict[str, Any]:
    """What a context in another process is made of."""
    names = ("queue", "job_id", "name", "attempt", "data", "inputs", "flow_id", "node", "signals", "fallback")
    return {name: getattr(context, name) for name in (*names, "allow_import")}


def _read_signals(stored: Any) -> Sequence[Any]:
    """Signals with their data decoded: glide-mq stores that as a JSON text of its own."""
    if not isinstance(stored, list):
        return ()
    return [
        {**signal, "data": decode(signal.get("data"), where="data of a signal")}
        for signal in stored
        if isinstance(signal, dict)
    ]
