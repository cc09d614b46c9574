"""The dependencies and gates that block a node of a portable flow: the members of its ``deps`` set.

A gate is a member without a job. Gate 0 blocks the roots until every node exists, and nodes with a rule or a
delay until that is met. Gate n blocks the nodes that the n-th retry reruns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.jobs.changes import complete_child
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, command
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import number

PAGE: Final = 500


def gate(queue: QueueKeys, number: int | str) -> str:
    """The member for a gate of this queue."""
    return f"{queue.base}:gmo-gate-{number}"


def add_deps(queue: QueueKeys, job_id: str, members: Iterable[str]) -> Call[None]:
    """Add dependencies or gates to a job."""
    return command("SADD", queue.deps(job_id), *members, decode=replies.anything)


def add_dependents(queue: QueueKeys, job_id: str, members: Iterable[str]) -> Call[None]:
    """Add jobs that are notified of the end of a job."""
    return command("SADD", queue.parents(job_id), *members, decode=replies.anything)


def held_by(queue: QueueKeys, job_id: str, numbers: Sequence[int]) -> Call[list[int]]:
    """Which of these gates block the job, or did."""
    gates = [gate(queue, number) for number in numbers]

    def decode(reply: Any) -> list[int]:
        return [number for number, is_there in zip(numbers, reply, strict=True) if is_there]

    return command("SMISMEMBER", queue.deps(job_id), *gates, decode=decode)


def deps_page(queue: QueueKeys, job_id: str, cursor: str) -> Call[tuple[str, list[str]]]:
    """A page of a job's dependencies and gates: the next cursor (``0`` at the end) and the members."""
    return command(
        "SSCAN", queue.deps(job_id), cursor, "COUNT", PAGE, decode=lambda reply: (reply[0], list(reply[1]))
    )


def completed_while_waiting(queue: QueueKeys, job_id: str) -> Call[int]:
    """How many dependencies, gates and children of a waiting job have completed; -1 if it does not wait."""

    def decode(reply: Any) -> int:
        state, completed = reply
        return number(completed) if state == "waiting-children" else -1

    return job_hash.get_some(queue, job_id, ("state", "depsCompleted"), decode)


def how_many(queue: QueueKeys, job_id: str) -> Call[int]:
    """How many dependencies, gates and children a job has."""
    return command("SCARD", queue.deps(job_id), decode=replies.integer)


def open_gate(queue: QueueKeys, job_id: str, number: int | str) -> Call[int]:
    """Release a job from a gate. Idempotent."""
    return complete_child(queue, job_id, gate(queue, number))
