"""Operations whose writes are confirmed, or need not be, and the check whether a server can confirm any."""

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

# What a call is answered if an earlier one has done the same.
_ANSWERS: Final = (InvalidJob, JobNotFound, JobSkipped, JobStateConflict, SchedulerNotFound)


def unconfirmed(op: Op[T]) -> Op[T]:
    """Run an operation that nobody relies on: whatever is lost of it is done again."""

    def send(request: Request) -> Generator[Request, Any, Any]:
        return (yield _unawaited(request))

    return (yield from each_request(op, send))


def standing(op: Op[T]) -> Op[T]:
    """Run an operation to its end, also when a step was accepted but not confirmed.

    So either everything was done or a step was refused. After the first step that was not confirmed, no
    other one is waited for.

    Raises:
        NotConfirmed: At the end, if a step was not confirmed; also in place of what a repeat of a call that
            was carried out is answered, such as that the job exists already.
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


def check_confirmation(wanted: Confirmation | None) -> Op[None]:
    """Check that the server can confirm writes at all, before anything is written.

    Raises:
        ConfigurationError: It is too old, its append-only file is off, or the user lacks a right.
    """
    if wanted is None:
        return
    calls: list[Call[Any]] = [
        call
        for call, is_wanted in ((wait_replicas(0, 1), wanted.replicas), (wait_disk(1), wanted.disk))
        if is_wanted
    ]
    for reply in (yield from ask_each(calls)):
        if not isinstance(reply, GlideMQError):
            continue
        if isinstance(reply, ConfigurationError):  # a right is missing
            raise reply
        if "appendonly is disabled" in str(reply):
            raise ConfigurationError(
                'confirm="disk" needs an append-only file: set appendonly yes on the server'
            )
        if "unknown command" in str(reply):
            raise ConfigurationError('confirm="disk" needs WAITAOF: Valkey 7.2 or Redis 7.2 or newer')
