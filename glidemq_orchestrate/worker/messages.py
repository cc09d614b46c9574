"""What handlers send while they run: progress, log lines, output and usage, apart from the outcomes.

Each attempt has its own bounded outbox: a handler that sends faster than the server accepts waits or loses
log lines, and delays no other job's result.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from glidemq_orchestrate.attempts.leases import check_owner
from glidemq_orchestrate.errors import GlideMQError, LeaseLost, ServerBusy, TransportError
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs import attempt as attempt_calls
from glidemq_orchestrate.jobs import output, usage
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.jobs.usage import Usage
from glidemq_orchestrate.wire.call import Call, Op, Run, ask, ask_each
from glidemq_orchestrate.wire.codec import JsonLike, encode
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.worker.own_task import OwnTask
from glidemq_orchestrate.worker.written import WrittenMessages

T = TypeVar("T")

MAX_TOGETHER: Final = 100
MAX_UNSENT: Final = 1_000
"""At most this many messages of an attempt wait to be sent; a thread that sends more waits for room."""
WAIT_SECONDS: Final = 1.0
FLUSH_SECONDS: Final = 5.0
logger = logging.getLogger("glidemq_orchestrate.worker")


class Message(NamedTuple):
    """One message, sent by a call or an operation; a newer one of the same kind replaces it."""

    call: Call[Any] | None = None
    op: Op[Any] | None = None
    kind: str = ""
    may_be_dropped: bool = True


class Outbox:
    """The unsent messages of one attempt. Thread-safe."""

    def __init__(self) -> None:
        self._unsent: deque[Message] = deque()
        self._room = threading.Condition()
        self.dropped = 0
        self.is_closed = False

    def add(self, message: Message, *, may_wait: bool) -> bool:
        """Add a message. Returns whether a sender must be started, as nothing was waiting before.

        Raises:
            ServerBusy: There is no room for a message that must not be dropped.
        """
        with self._room:
            if message.kind and self._unsent and self._unsent[-1].kind == message.kind:
                self._unsent[-1] = message
                return False
            if len(self._unsent) >= MAX_UNSENT and may_wait:
                self._room.wait_for(lambda: len(self._unsent) < MAX_UNSENT or self.is_closed, WAIT_SECONDS)
            if len(self._unsent) >= MAX_UNSENT and not message.may_be_dropped and not self.is_closed:
                raise ServerBusy(
                    f"{MAX_UNSENT:,} messages of this job wait to be sent: it writes output faster than the "
                    "server accepts it. Write larger pieces, or await something in between"
                )
            if len(self._unsent) >= MAX_UNSENT or self.is_closed:
                self.dropped += 1
                return False
            self._unsent.append(message)
            return len(self._unsent) == 1

    def next(self) -> Op[Any] | None:
        """The first operation, or as many plain calls as come first; None when the outbox is empty."""
        with self._room:
            if not self._unsent:
                return None
            calls: list[Call[Any]] = []
            while self._unsent and len(calls) < MAX_TOGETHER and (call := self._unsent[0].call) is not None:
                calls.append(call)
                self._unsent.popleft()
            self._room.notify_all()
            return ask_each(calls) if calls else self._unsent.popleft().op

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

    ``written``: those that must arrive.
    """

    def __init__(self, run: Run, queues: Mapping[str, QueueKeys], clock: Clock) -> None:
        self._run, self._queues, self._clock = run, queues, clock
        self._outboxes: dict[tuple[str, str], Outbox] = {}
        self._senders: dict[tuple[str, str], OwnTask] = {}
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self.written = WrittenMessages(run, queues, clock)

    def send(self, kind: str, attempt: Attempt, text: str) -> None:
        """Send ``progress`` (JSON) or a ``log`` line, from any thread."""
        queue = self._queues[attempt.queue]
        call: Call[Any] = (
            attempt_calls.add_log(attempt, queue, text)
            if kind == "log"
            else attempt_calls.progress(attempt, queue, text, self._clock.now_ms())
        )
        self._post(attempt, Message(call, kind="" if kind == "log" else "progress"))

    def of(self, attempt: Attempt) -> AttemptSpeaker:
        """The speaker of an attempt's context."""
        return AttemptSpeaker(self, attempt)

    def output(self, attempt: Attempt, fields: Mapping[str, str]) -> None:
        """Append to the output of a job, from any thread.

        Raises:
            ServerBusy: Too many messages of the job are still to be sent.
        """
        output.check_output(fields)
        call = attempt_calls.add_output(attempt, self._queues[attempt.queue], fields)
        self._post(attempt, Message(call, may_be_dropped=False))

    def usage(self, attempt: Attempt, used: Usage) -> None:
        """Report what a job used, from any thread."""
        queue, proof = self._queues[attempt.queue], attempt_calls.proof(attempt)
        op = usage.report(queue, attempt.job_id, used, self._clock, proof)
        self._post(attempt, Message(op=op, kind="usage"))

    async def check_owner(self, attempt: Attempt) -> None:
        """Check that an attempt still owns its job; on the loop.

        Raises:
            LeaseLost: It does not.
            TransportError: It is not known.
        """
        if attempt.is_mute:  # a handler that outlived its attempt
            raise LeaseLost(f"this attempt of job {attempt.job_id} has ended")
        await self._run(check_owner(self._queues[attempt.queue], attempt))

    def check_owner_from_thread(self, attempt: Attempt) -> None:
        """See ``check_owner``; from another thread than the loop's.

        Raises:
            RuntimeError: This is the loop's thread.
        """
        if threading.get_ident() == self._loop_thread:
            raise RuntimeError("check_owner would block the worker's loop: await check_owner_async instead")
        asyncio.run_coroutine_threadsafe(self.check_owner(attempt), self._loop).result()

    def note_published(self, attempt: Attempt, lines: Sequence[str]) -> None:
        """Note what an attempt has written, from another thread than the loop's; see ``Speaker``.

        Raises:
            LeaseLost: It does not own its job any more.
            TransportError: It is not known whether it is noted.
        """
        call = attempt_calls.note_published(attempt, self._queues[attempt.queue], lines, self._clock.now_ms())
        asyncio.run_coroutine_threadsafe(self._run(ask(call)), self._loop).result()

    def has_unsent(self, attempt: Attempt) -> bool:
        """Whether messages of the attempt may still be on their way."""
        return bool(self._outboxes) and _key(attempt) in self._outboxes

    async def flush(self, attempt: Attempt) -> None:
        """Close the attempt once all its messages are on the server, or after some seconds."""
        await asyncio.sleep(0)  # lets messages in that other threads have just sent
        if sender := self._senders.get(_key(attempt)):
            await asyncio.wait({sender}, timeout=FLUSH_SECONDS)
        self.close(attempt)

    def close(self, attempt: Attempt) -> None:
        """Accept no further message of the attempt; drop those that are not on their way."""
        attempt.is_mute = True
        self.written.close(attempt)
        outbox = self._outboxes.pop(_key(attempt), None) if self._outboxes else None
        if outbox is not None and (dropped := outbox.close()):
            logger.warning(
                "job %s: %d of its messages were not sent: it wrote more than the server accepted",
                attempt.job_id,
                dropped,
                extra={"action": "words_dropped", "queue": attempt.queue, "job_id": attempt.job_id},
            )

    def _post(self, attempt: Attempt, message: Message) -> None:
        """Put a message into the outbox of its attempt, and start a sender if none is running."""
        key, is_here = _key(attempt), threading.get_ident() == self._loop_thread
        if attempt.is_mute:  # a handler that outlived its attempt
            return
        outbox = self._outboxes.get(key) or self._outboxes.setdefault(key, Outbox())
        if not outbox.add(message, may_wait=not is_here):
            return
        if is_here:
            self._begin(key, outbox)
        else:
            with contextlib.suppress(RuntimeError):  # the loop has ended: a handler that outlived its worker
                self._loop.call_soon_threadsafe(self._begin, key, outbox)

    def _begin(self, key: tuple[str, str], outbox: Outbox) -> None:
        if key not in self._senders:
            self._senders[key] = OwnTask(self._send(key, outbox), loop=self._loop)

    async def _send(self, key: tuple[str, str], outbox: Outbox) -> None:
        """Send the messages of an outbox until it is empty."""
        try:
            while (op := outbox.next()) is not None:
                try:
                    await self._run(op)
                except TransportError:
                    pass  # these messages inform readers only: losing one does no harm
                except GlideMQError as exc:
                    logger.warning("messages of a job refused: %s", exc, extra={"action": "words_refused"})
                except Exception:
                    logger.exception("messages of a job not sent", extra={"action": "words_refused"})
        finally:
            self._senders.pop(key, None)


class AttemptSpeaker:
    """Sends the messages of one attempt through the messenger: the ``Speaker`` of its context."""

    __slots__ = ("_attempt", "_messenger")

    def __init__(self, messenger: Messenger, attempt: Attempt) -> None:
        self._messenger, self._attempt = messenger, attempt

    def progress(self, value: JsonLike) -> None:
        """See ``Context.progress``."""
        text = encode(value, where=f"progress of job {self._attempt.name}")
        self._messenger.send("progress", self._attempt, text)

    def log(self, line: str) -> None:
        """See ``Context.log``."""
        self._messenger.send("log", self._attempt, line)

    def output(self, fields: Mapping[str, str]) -> None:
        """See ``Context.output``."""
        self._messenger.output(self._attempt, fields)

    def report_usage(self, usage: Usage) -> None:
        """See ``Context.report_usage``."""
        self._messenger.usage(self._attempt, usage)

    def write_message(self, text: str) -> None:
        """See ``Context.write_message``."""
        self._messenger.written.write(self._attempt, text)

    def check_owner(self) -> None:
        """See ``Context.check_owner``."""
        self._messenger.check_owner_from_thread(self._attempt)

    async def check_owner_async(self) -> None:
        """See ``Context.check_owner_async``."""
        await self._messenger.check_owner(self._attempt)

    def note_published(self, lines: Sequence[str]) -> None:
        """See ``Speaker.note_published``."""
        self._messenger.note_published(self._attempt, lines)


def _key(attempt: Attempt) -> tuple[str, str]:
    return attempt.token, attempt.job_id
