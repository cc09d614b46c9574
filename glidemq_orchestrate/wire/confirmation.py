"""The option ``confirm`` of a connection: what a write must reach before it counts as done. Pure.

Also the calls that wait for that (``WAITAOF``, ``WAIT``), which cover only the writes of their own
connection, and operations with or without confirmed writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar

from glidemq_orchestrate.errors import (
    ConfigurationError,
    GlideMQError,
    InvalidJob,
    JobNotFound,
    JobSkipped,
    JobStateConflict,
    NotConfirmed,
    ScheduleNotFound,
)
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import (
    Batch,
    Call,
    Op,
    Request,
    Unconfirmed,
    ask_each,
    command,
    function,
)
from glidemq_orchestrate.wire.keys import QueueKeys, mark_key

MAX_REPLICAS: Final = 99
FORMS: Final = "disk, replicas:N or disk,replicas:N"

_FORM: Final = re.compile(r"(?:(disk)(?:,|\Z))?(?:replicas:([1-9][0-9]?))?\Z")


class Confirmation(NamedTuple):
    """What a write must reach before it counts as done.

    Attributes:
        disk: The append-only file of the primary, on its disk.
        replicas: At least this many replicas, in their memory.
    """

    disk: bool
    replicas: int


def read_confirm(text: str | None) -> Confirmation | None:
    """Read the option; None if it is not set.

    Raises:
        ConfigurationError: It has none of the accepted forms; the message lists them.
    """
    if text is None:
        return None
    found = _FORM.match(text) if isinstance(text, str) else None
    if found is None or not text or text.endswith(","):
        raise ConfigurationError(f"confirm must be {FORMS}, with N from 1 to {MAX_REPLICAS}")
    return Confirmation(found[1] is not None, int(found[2] or 0))


def mark(prefix: str, key: str) -> Call[str]:
    """Make a write that leaves no trace in the slot of a key; returns the replication id of the server.

    While that id stays the same, the server has lost no accepted write. Idempotent.
    """
    return function("gmo_mark", [mark_key(prefix, key)], (), replies.text, repeatable=True)


def wait_disk(timeout_ms: int) -> Call[bool]:
    """Wait until the writes of this connection are on the disk of the server; returns whether they are.

    An error if the append-only file is switched off.
    """
    return command(
        "WAITAOF", 1, 0, timeout_ms, decode=lambda reply: reply[0] >= 1, blocks_for=timeout_ms / 1000
    )


def wait_replicas(count: int, timeout_ms: int) -> Call[int]:
    """Wait until ``count`` replicas have the writes of this connection; returns how many have."""
    return command("WAIT", count, timeout_ms, decode=replies.integer, blocks_for=timeout_ms / 1000)


def mark_queue(queue: QueueKeys) -> Call[str]:
    """``mark`` in the slot of a queue."""
    return mark(queue.prefix, queue.base)


T = TypeVar("T")

# The errors of a call that was already carried out.
_ANSWERS: Final = (InvalidJob, JobNotFound, JobSkipped, JobStateConflict, ScheduleNotFound)


def _each_request(op: Op[T], send: Callable[[Request], Generator[Request, Any, Any]]) -> Op[T]:
    """Run an operation with ``send`` for each of its requests, which returns the reply."""
    try:
        request = next(op)
        while True:
            try:
                reply = yield from send(request)
            except GlideMQError as exc:
                request = op.throw(exc)
            else:
                request = op.send(reply)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        op.close()


def unconfirmed(op: Op[T]) -> Op[T]:
    """Run an operation without confirmation: lost writes will be done again."""

    def send(request: Request) -> Generator[Request, Any, Any]:
        return (yield _unawaited(request))

    return (yield from _each_request(op, send))


def standing(op: Op[T]) -> Op[T]:
    """Run an operation to its end even if a step is accepted but not confirmed.

    So afterwards either everything was done or a step was refused. After the first unconfirmed step, the
    others do not wait for confirmation.

    Raises:
        NotConfirmed: At the end, if a step was not confirmed. Also in place of the error of a call that was
            already carried out, such as that the job exists.
    """
    missed: list[str] = []
    codes: list[str | None] = []

    def replied(reply: Any) -> Any:
        if not isinstance(reply, Unconfirmed):
            return reply
        missed.append(str(reply))
        codes.append(reply.code)
        return reply.reply

    def send(request: Request) -> Generator[Request, Any, Any]:
        try:
            reply = yield _unawaited(request) if missed else request
        except Unconfirmed as exc:
            return replied(exc)
        return [replied(one) for one in reply] if isinstance(request, Batch) else reply

    def not_confirmed() -> NotConfirmed:
        error = NotConfirmed(missed[0])
        error.code = codes[0]
        return error

    try:
        value = yield from _each_request(op, send)
    except _ANSWERS as exc:
        if missed:
            raise not_confirmed() from exc
        raise
    if missed:
        raise not_confirmed()
    return value


def _unawaited(request: Request) -> Request:
    if isinstance(request, Batch):
        return Batch(tuple(replace(call, confirms=False) for call in request.calls))
    return replace(request, confirms=False)


def check_confirmation(required: Confirmation | None) -> Op[None]:
    """Check that the server can confirm writes at all, before anything is written.

    Raises:
        ConfigurationError: The server is too old, its append-only file is off, or the user lacks a right.
    """
    if required is None:
        return
    calls: list[Call[Any]] = [
        call
        for call, is_required in ((wait_replicas(0, 1), required.replicas), (wait_disk(1), required.disk))
        if is_required
    ]
    for reply in (yield from ask_each(calls)):
        if not isinstance(reply, GlideMQError):
            continue
        if isinstance(reply, ConfigurationError):  # the user lacks a right
            raise reply
        if "appendonly is disabled" in str(reply):
            raise ConfigurationError(
                'confirm="disk" needs an append-only file. Fix: set appendonly yes on the server'
            )
        if "unknown command" in str(reply):
            raise ConfigurationError('confirm="disk" needs WAITAOF: Valkey 7.2 or Redis 7.2 or newer')
