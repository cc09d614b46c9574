"""What handlers send while they run: progress, log lines, output and usage.

Each attempt has its own bounded outbox: a handler that sends faster than the server accepts must wait, or
loses log lines, but never delays the results of other jobs.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from glidemq_orchestrate.attempts.exchange import check_owner
from glidemq_orchestrate.errors import (
    ConnectionFailed,
    GlideMQError,
    LeaseLost,
    ServerBusy,
    TransportError,
)
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs import attempt as attempt_calls
from glidemq_orchestrate.jobs import usage
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.jobs.output import append_log, append_output, check_output
from glidemq_orchestrate.jobs.usage import Usage
from glidemq_orchestrate.wire.call import Call, Op, Run, ask, ask_each
from glidemq_orchestrate.wire.codec import JsonLike, encode, sendable
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.worker.handlers.context import Reporter
from glidemq_orchestrate.worker.handlers.log import about, job_name
from glidemq_orchestrate.worker.tasks import KeyedTasks, reconnect_delays
from glidemq_orchestrate.worker.written_messages import WrittenMessages, attempt_key

T = TypeVar("T")

MAX_TOGETHER: Final = 100
MAX_UNSENT: Final = 1_000
"""The max number of unsent messages of an attempt; a thread that sends more waits for room."""
WAIT_SECONDS: Final = 1.0
FLUSH_SECONDS: Final = 5.0
logger = logging.getLogger("glidemq_orchestrate.worker")


class Report(NamedTuple):
    """One message, sent by a call or an operation. A newer one of the same kind, if any, replaces it.

    ``is_awaited``: the attempt does not end before it is sent.
    """

    call: Call[Any] | None = None
    op: Op[Any] | None = None
    kind: str = ""
    may_be_dropped: bool = True
    is_awaited: bool = False


class Outbox:
    """The unsent messages of one attempt. Thread-safe."""

    def __init__(self) -> None:
        self._unsent: deque[Report] = deque()
        self._room = threading.Condition()
        self.dropped = 0
        self.is_closed = self.is_awaited = False

    def add(self, message: Report, *, may_wait: bool) -> bool:
        """Add a message. Returns whether a sender must be started: the outbox was empty.

        Raises:
            ServerBusy: There is no room for a message that must not be dropped.
        """
        with self._room:
            self.is_awaited = self.is_awaited or message.is_awaited
            if message.kind and self._unsent and self._unsent[-1].kind == message.kind:
                self._unsent[-1] = message
                return False
            if len(self._unsent) >= MAX_UNSENT and may_wait:
                self._room.wait_for(lambda: len(self._unsent) < MAX_UNSENT or self.is_closed, WAIT_SECONDS)
            if len(self._unsent) >= MAX_UNSENT and not message.may_be_dropped and not self.is_closed:
                raise ServerBusy(
                    f"{MAX_UNSENT:,} messages of this job are unsent: it writes output faster than the "
                    "server accepts it. Fix: write larger pieces, or await between writes"
                )
            if len(self._unsent) >= MAX_UNSENT or self.is_closed:
                self.dropped += 1
                return False
            self._unsent.append(message)
            return len(self._unsent) == 1

    def next(self) -> list[Report]:
        """Take out all leading messages with plain calls, or one with an operation; empty at the end."""
        with self._room:
            found: list[Report] = []
            while self._unsent and len(found) < MAX_TOGETHER and self._unsent[0].call is not None:
                found.append(self._unsent.popleft())
            if self._unsent and not found:
                found.append(self._unsent.popleft())
            self._room.notify_all()
            return found

    def put_back(self, unsent: Sequence[Report]) -> None:
        """Put messages that have not arrived before all others, unless a newer one replaces them."""
        with self._room:
            if self.is_closed:
                self.dropped += len(unsent)
            for message in reversed(unsent if not self.is_closed else ()):
                if not (message.kind and self._unsent and self._unsent[0].kind == message.kind):
                    self._unsent.appendleft(message)

    def close(self) -> int:
        """Accept no further message; returns how many were dropped."""
        with self._room:
            self.dropped += len(self._unsent)
            self._unsent.clear()
            self.is_closed = True
            self._room.notify_all()
            return self.dropped


class Messenger:
    """Sends the messages of handlers. Created on the loop; any thread may use it.

    Attributes:
        written: Sends the messages that must not be lost.
    """

    def __init__(self, run: Run, queues: Mapping[str, QueueKeys], clock: Clock) -> None:
        self.run, self.queues, self.clock = run, queues, clock
        self._outboxes: dict[tuple[str, str], Outbox] = {}
        self._senders = KeyedTasks()
        self.written = WrittenMessages(run, queues, clock)

    def of(self, attempt: Attempt) -> Reporter:
        """The reporter of an attempt's context."""
        return AttemptReporter(self, attempt)

    def send(self, kind: str, attempt: Attempt, text: str, *, is_awaited: bool = False) -> None:
        """Send ``progress`` (JSON) or a ``log`` line, from any thread.

        ``is_awaited``: the attempt does not end before the progress is sent.
        """
        queue = self.queues[attempt.queue]
        if kind == "log":
            line = text if attempt.element is None else f"[{attempt.element}] {text}"
            proof = attempt_calls.proof(attempt)
            self.post(attempt, Report(append_log(queue, proof, sendable(line), attempt.node_job_id)))
        else:
            call = attempt_calls.progress(attempt, queue, text, self.clock.now_ms())
            self.post(attempt, Report(call, kind="progress", is_awaited=is_awaited))

    def post(self, attempt: Attempt, message: Report) -> None:
        """Put a message into the outbox of its attempt, from any thread.

        Raises:
            ServerBusy: There is no room for a message that must not be dropped.
        """
        if attempt.is_mute:  # the handler still runs after its attempt has ended
            return
        key = attempt_key(attempt)
        outbox = self._outboxes.get(key) or self._outboxes.setdefault(key, Outbox())
        if outbox.add(message, may_wait=not self._senders.is_here):
            self._senders.start(key, functools.partial(self._send, outbox))

    async def check_owner(self, attempt: Attempt) -> None:
        """Check that an attempt still owns its job; on the loop.

        Raises:
            LeaseLost: It does not.
            TransportError: The owner is unknown.
        """
        if attempt.is_mute:  # the handler still runs after its attempt has ended
            raise LeaseLost(f"this attempt of job {attempt.job_id} has ended")
        await self.run(check_owner(self.queues[attempt.queue], attempt))

    def wait_for(self, work: Coroutine[Any, Any, T], instead: str) -> T:
        """Run a coroutine on the loop, and return its result to another thread.

        Raises:
            RuntimeError: This is the loop's thread, which would wait for itself; the message ends
                with ``instead``.
        """
        if self._senders.is_here:
            work.close()
            raise RuntimeError(f"this would block the worker's loop: {instead}")
        return asyncio.run_coroutine_threadsafe(work, self._senders.loop).result()

    @property
    def is_empty(self) -> bool:
        """Whether no attempt has any messages: the usual case."""
        return not (self._outboxes or self.written.boxes)

    def has_unsent(self, attempt: Attempt) -> bool:
        """Whether messages of the attempt may still be on their way."""
        return bool(self._outboxes) and attempt_key(attempt) in self._outboxes

    async def flush(self, attempt: Attempt, *, may_wait: bool = True) -> None:
        """Close the attempt once all its messages are on the server, or after some seconds.

        ``may_wait``: messages that are awaited have as long as they need.
        """
        await asyncio.sleep(0)  # for messages that other threads have just sent
        if sender := self._senders.get(attempt_key(attempt)):
            outbox = self._outboxes.get(attempt_key(attempt))
            is_awaited = may_wait and outbox is not None and outbox.is_awaited
            await asyncio.wait({sender}, timeout=None if is_awaited else FLUSH_SECONDS)
        self.close(attempt)

    def close(self, attempt: Attempt) -> None:
        """Accept no further message of the attempt; drop the unsent ones."""
        attempt.is_mute = True
        if self.is_empty:
            return
        self.written.close(attempt)
        outbox = self._outboxes.pop(attempt_key(attempt), None)
        if outbox is not None and (dropped := outbox.close()):
            text = "%s: %d of its messages were not sent: it wrote more than the server accepted"
            logger.warning(text, job_name(attempt), dropped, extra=about("words_dropped", attempt))

    async def _send(self, outbox: Outbox) -> None:
        """Send the messages of an outbox until it is empty or closed."""
        pauses = reconnect_delays()
        while batch := outbox.next():
            if refused := await self._refused(batch):
                outbox.put_back(refused)
                await asyncio.sleep(next(pauses))
            else:
                pauses = reconnect_delays()

    async def _refused(self, batch: Sequence[Report]) -> list[Report]:
        """Send messages together; returns those to send again, since they have certainly not arrived.

        Others may be lost, as they only inform readers. Those that are awaited may arrive twice instead.
        """
        calls = [message.call for message in batch if message.call is not None]
        try:
            outcomes = await self.run(ask_each(calls) if calls else batch[0].op or ask_each(()))
        except TransportError as exc:
            outcomes = [exc] * len(calls)
        except GlideMQError as exc:
            logger.warning("messages of a job refused: %s", exc, extra={"action": "messages_refused"})
            return []
        except Exception:
            logger.exception("messages of a job not sent", extra={"action": "messages_refused"})
            return []
        if not calls:
            return []
        return [
            message
            for message, outcome in zip(batch, outcomes, strict=True)
            if isinstance(outcome, ServerBusy | ConnectionFailed)
            or (message.is_awaited and isinstance(outcome, TransportError))
        ]


class MessengerReporter(Reporter):
    """The reporter of an attempt's context: what every messenger sends."""

    __slots__ = ("_attempt", "_messenger")

    def __init__(self, messenger: Messenger, attempt: Attempt) -> None:
        self._messenger, self._attempt = messenger, attempt

    def progress(self, value: JsonLike) -> None:
        text = encode(value, where=f"progress of job {self._attempt.name}")
        self._messenger.send("progress", self._attempt, text)

    def log(self, line: str) -> None:
        self._messenger.send("log", self._attempt, line)

    def check_owner(self) -> None:
        self._messenger.wait_for(self.check_owner_async(), "await check_owner_async instead")

    async def check_owner_async(self) -> None:
        await self._messenger.check_owner(self._attempt)


class AttemptReporter(MessengerReporter):
    """The reporter of an attempt of one of our jobs."""

    __slots__ = ()

    def output(self, fields: Mapping[str, str]) -> None:
        check_output(fields)
        attempt = self._attempt
        call = append_output(self._queue, attempt_calls.proof(attempt), fields, attempt.node_job_id)
        self._messenger.post(self._attempt, Report(call, may_be_dropped=False))

    def report_usage(self, used: Usage) -> None:
        proof = attempt_calls.proof(self._attempt)
        op = usage.report(self._queue, self._attempt.job_id, used, self._messenger.clock, proof)
        self._messenger.post(self._attempt, Report(op=op, kind="usage"))

    def write_message(self, text: str) -> None:
        self._messenger.written.write(self._attempt, text)

    def note_published(self, lines: Sequence[str]) -> None:
        now_ms = self._messenger.clock.now_ms()
        call = attempt_calls.note_published(self._attempt, self._queue, lines, now_ms)
        self._messenger.wait_for(self._messenger.run(ask(call)), "publish in a plain handler")

    @property
    def _queue(self) -> QueueKeys:
        return self._messenger.queues[self._attempt.queue]
