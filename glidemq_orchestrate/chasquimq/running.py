"""Runs jobs of ChasquiMQ with the handlers, middleware and contexts of our workers."""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass, field
from typing import Final

from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.chasquimq.consuming import Arrived, Consumer, Refused, claim, max_attempts_of
from glidemq_orchestrate.chasquimq.dead_letters import DeadReason
from glidemq_orchestrate.chasquimq.ending import Ending, bury, dead_event, event, reschedule, settle
from glidemq_orchestrate.chasquimq.envelope import Envelope, is_exhausted
from glidemq_orchestrate.chasquimq.msgpack import Packable, pack
from glidemq_orchestrate.errors import EncodeError, LeaseLost
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.jobs.options import RunOptions
from glidemq_orchestrate.wire.call import Run, ask
from glidemq_orchestrate.wire.codec import decode, is_utf8, readable
from glidemq_orchestrate.worker.contexts import Contexts
from glidemq_orchestrate.worker.executor import Unhandled, refuse, unknown_handler
from glidemq_orchestrate.worker.handlers.context import Context, Reporter
from glidemq_orchestrate.worker.handlers.log import about, job_name
from glidemq_orchestrate.worker.messenger import Messenger, MessengerReporter

logger = logging.getLogger("glidemq_orchestrate.worker")
_NO_ENVELOPE: Final = Envelope("", b"", 0)


@dataclass(slots=True)
class ChasquiAttempt(Attempt):
    """A run of a job of ChasquiMQ.

    ``stored_name``: the name of the job as stored; ``name`` is that of its handler.
    ``deliveries``: how often the entry was handed to a worker before.
    """

    stored_name: str = ""
    deliveries: int = 0
    envelope: Envelope = field(default=_NO_ENVELOPE)

    @classmethod
    def of(cls, consumer: Consumer, arrived: Arrived, unnamed: str, now_ms: int) -> ChasquiAttempt:
        """The run of an entry; ``unnamed``: the handler of jobs without a name."""
        envelope = arrived.envelope
        return cls(
            queue=consumer.keys.queue,
            job_id=readable(envelope.job_id),
            entry_id=arrived.entry_id,
            token=f"{consumer.name}/{secrets.token_hex(8)}",
            processed_on=str(now_ms),
            name=arrived.name or unnamed,
            data="",
            options=RunOptions(max(max_attempts_of(consumer, envelope), 1), None, None),
            attempts_made=envelope.attempt,
            flow_id=None,
            node=None,
            unreadable="" if is_utf8(arrived.name) else "its name is not UTF-8",
            epoch=now_ms,
            stored_name=arrived.name,
            deliveries=arrived.deliveries,
            envelope=envelope,
        )


class ChasquiContexts(Contexts):
    """Creates the contexts of handlers from envelopes."""

    __slots__ = ()

    def make(self, attempt: Attempt) -> Context:
        """The context of a run.

        Raises:
            DecodeError: The data is not msgpack.
        """
        assert isinstance(attempt, ChasquiAttempt)  # noqa: S101  for the type checker
        return Context(
            attempt.queue,
            attempt.job_id,
            attempt.name,
            attempt.attempts_made + 1,
            attempt.envelope.data,
            {},
            None,
            None,
            self.messenger.of(attempt),
            allow_import=self.allow_import,
            epoch=attempt.epoch,
            token=attempt.token,
        )

    async def was_lost(self, attempt: Attempt) -> bool:
        """Whether the job was handed to a worker before that has not ended it."""
        return isinstance(attempt, ChasquiAttempt) and attempt.deliveries > 0


class ChasquiMessenger(Messenger):
    """Receives what handlers report: lines go to the log of the worker, since ChasquiMQ stores none."""

    def __init__(self, run: Run, consumer: Consumer, clock: Clock) -> None:
        super().__init__(run, {}, clock)
        self._consumer = consumer

    def of(self, attempt: Attempt) -> Reporter:
        """The reporter of a run's context: output, usage and messages have no place in ChasquiMQ."""
        return MessengerReporter(self, attempt)

    def send(self, kind: str, attempt: Attempt, text: str, *, is_awaited: bool = False) -> None:  # noqa: ARG002
        """Log a line of a handler; its progress only at DEBUG."""
        level = logging.INFO if kind == "log" else logging.DEBUG
        logger.log(level, "%s: %s: %s", job_name(attempt), kind, text, extra=about(f"job_{kind}", attempt))

    async def check_owner(self, attempt: Attempt) -> None:
        """Check that a run still holds its job, and renew it.

        Raises:
            LeaseLost: It does not.
            TransportError: The holder is unknown.
        """
        lost = [attempt.entry_id]
        if not attempt.is_mute:
            lost = await self.run(ask(claim(self._consumer, lost)))
        if lost:
            raise LeaseLost(f"this attempt no longer holds job {attempt.job_id}")


class ChasquiUnhandled(Unhandled):
    """Fails the runs of jobs without a handler in this worker; another worker may take the next run."""

    __slots__ = ()

    async def outcome_of(self, attempt: Attempt) -> Outcome:
        """A failure that counts."""
        failure = unknown_handler(attempt, self.handlers.names)
        return failure._replace(first=attempt.options.attempts)


@dataclass(frozen=True, slots=True)
class End:
    """How a run ends on the server.

    Attributes:
        ending: Ends it.
        verdict: What that means, as for jobs of our queues: ``ok``, ``retrying`` or ``failed``.
        outcome: The outcome, for the log and the hooks.
    """

    ending: Ending
    verdict: str
    outcome: Outcome


def end_of(
    consumer: Consumer, outcome: Outcome, *, result_seconds: int | None, now_ms: int, chance: float
) -> End:
    """The end of a run, by ChasquiMQ's rules for retries.

    Args:
        consumer: The consumer that runs it.
        outcome: What the executor returned.
        result_seconds: How long its result is kept; None: it is not stored.
        now_ms: The server's time.
        chance: A random number from 0 to 1, for the jitter.
    """
    attempt = outcome.attempt
    assert isinstance(attempt, ChasquiAttempt)  # noqa: S101  for the type checker
    keys, name, job_id, entry_id = (
        consumer.keys,
        attempt.stored_name,
        attempt.envelope.job_id,
        attempt.entry_id,
    )
    number, micros = attempt.attempts_made + 1, int(attempt.seconds * 1_000_000)
    match outcome.kind:
        case Kind.DONE | Kind.SKIP:
            completed = event("completed", job_id, name, now_ms, attempt=number, duration_us=micros)
            try:
                result = _result(consumer, attempt, outcome, result_seconds)
            except EncodeError as exc:
                outcome = refuse(attempt, f"EncodeError: {exc}")
            else:
                return End(settle(keys, entry_id, result, completed), "ok", outcome)
        case Kind.LATER:
            again = reschedule(keys, entry_id, name, attempt.envelope, outcome.first)
            return End(again, "ok", outcome)
        case Kind.FAIL:
            pass
        case _:
            text = f"{outcome.kind} is not possible for a job of ChasquiMQ: it has no children and no signals"
            outcome = Outcome(attempt, Kind.FAIL, text)
    failed = event("failed", job_id, name, now_ms, attempt=number, reason=outcome.text, duration_us=micros)
    is_final = not outcome.first
    if is_final or is_exhausted(attempt.attempts_made, max_attempts_of(consumer, attempt.envelope)):
        reason = DeadReason.UNRECOVERABLE if is_final else DeadReason.RETRIES_EXHAUSTED
        refused = Refused(entry_id, reason, attempt.envelope.packed, name, job_id=job_id, runs=number)
        return End(bury(keys, refused, failed, dead_event(refused, now_ms)), "failed", outcome)
    wait = outcome.second or attempt.envelope.options.wait_ms(number, chance)
    following = event("retry-scheduled", job_id, name, now_ms, attempt=number + 1, backoff_ms=wait)
    again = reschedule(keys, entry_id, name, attempt.envelope.again(), now_ms + wait, failed, following)
    return End(again, "retrying", outcome._replace(second=wait))


def _result(
    consumer: Consumer, attempt: ChasquiAttempt, outcome: Outcome, seconds: int | None
) -> tuple[str, bytes, int] | None:
    """The key, the bytes and the time to live of a result; None if there is nothing to store."""
    where = f"result of job {attempt.name}"
    value: Packable = decode(outcome.text, where=where) if outcome.kind is Kind.DONE else None
    if value is None or seconds is None:
        return None
    return consumer.keys.result(attempt.envelope.job_id), pack(value, where=where), seconds
