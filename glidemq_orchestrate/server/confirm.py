"""Runs operations with or without confirmed writes, and checks whether a server can confirm writes."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any, Final, TypeVar

from glidemq_orchestrate.errors import (
    ConfigurationError,
    GlideMQError,
    InvalidJob,
    JobNotFound,
    JobSkipped,
    JobStateConflict,
    NotConfirmed,
    SchedulerNotFound,
)
from glidemq_orchestrate.wire.call import Batch, Call, Op, Request, Unconfirmed, ask_each, each_request
from glidemq_orchestrate.wire.confirmation import Confirmation
from glidemq_orchestrate.wire.wait import wait_disk, wait_replicas

T = TypeVar("T")

# The errors of a call that was already carried out.
_ANSWERS: Final = (InvalidJob, JobNotFound, JobSkipped, JobStateConflict, SchedulerNotFound)


def unconfirmed(op: Op[T]) -> Op[T]:
    """Run an operation without confirmation: lost writes will be done again."""

    def send(request: Request) -> Generator[Request, Any, Any]:
        return (yield _unawaited(request))

    return (yield from each_request(op, send))


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
        value = yield from each_request(op, send)
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
