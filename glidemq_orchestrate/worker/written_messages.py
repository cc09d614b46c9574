"""The messages of ``ctx.write_message``: none is dropped, and all of them precede the outcome.

Each attempt has its own box. Its messages are sent in order, many per call, and stay in the box until the
server has them, so that a call can be repeated if its reply is lost. The server appends no message twice,
and none of an attempt that has lost its job. If a worker is killed, its unsent messages are lost; but its
attempt is not accepted either, so the messages that it sent before do not count.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from glidemq_orchestrate.errors import GlideMQError, LeaseLost, ProtocolError, ServerBusy, TransportError
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.jobs.output import MAX_MESSAGES, write_messages
from glidemq_orchestrate.wire.call import Run, ask
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.worker.tasks import KeyedTasks, reconnect_delays

MAX_UNSENT: Final = 10_000
MAX_BYTES: Final = 16 * 1024 * 1024
"""The max unsent bytes of an attempt; a thread that writes more waits for room."""
TOGETHER_BYTES: Final = 1024 * 1024
logger = logging.getLogger("glidemq_orchestrate.worker")


class Box:
    """The messages of one attempt that are not on the server yet. Thread-safe.

    Attributes:
        error: Why no further message can be sent.
        has_sender: Whether a task is sending the messages.
    """

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._unsent: deque[tuple[str, int]] = deque()
        self._bytes, self._sent = 0, 0
        self._room = threading.Condition()
        self._is_closed = False
        self.error: GlideMQError | None = None
        self.has_sender = False

    def add(self, text: str, *, may_wait: bool) -> bool:
        """Add a message. Returns whether a sender must be started.

        Raises:
            LeaseLost: The attempt has ended.
            ServerBusy: The box is full, and the caller may not wait.
            GlideMQError: An earlier message could not be sent.
        """
        size = len(text.encode())
        with self._room:
            if may_wait:
                self._room.wait_for(self._takes_some)
            self._raise_if_over()
            if not self._has_room():
                raise ServerBusy(
                    f"{len(self._unsent):,} messages of job {self._job_id} are unsent: it writes faster "
                    "than the server accepts them. Fix: write fewer, or await between writes"
                )
            self._unsent.append((text, size))
            self._bytes += size
            if self.has_sender:
                return False
            self.has_sender = True
            return True

    def next(self) -> tuple[int, Sequence[str]] | None:
        """The number of the first unsent message, and the messages of the next call; None if there are none.

        They stay in the box. After None the sender ends.
        """
        with self._room:
            texts, together = list[str](), 0
            for text, size in self._unsent:
                if len(texts) == MAX_MESSAGES or (texts and together + size > TOGETHER_BYTES):
                    break
                texts.append(text)
                together += size
            if not texts or self.error or self._is_closed:
                self.has_sender = False
                return None
            return self._sent + 1, texts

    def sent(self, count: int) -> None:
        """Remove the first messages: the server has them."""
        with self._room:
            for _ in range(count):
                self._bytes -= self._unsent.popleft()[1]
            self._sent += count
            self._room.notify_all()

    def fail(self, error: GlideMQError) -> None:
        """Refuse to send more: the attempt must not be accepted."""
        with self._room:
            self.error = self.error or error
            self._room.notify_all()

    def close(self) -> None:
        """Accept no more messages. Dropping unsent ones is an error, stored in ``error``."""
        with self._room:
            self._is_closed = True
            if self._unsent:
                lost = f"{len(self._unsent):,} messages of job {self._job_id} were not sent"
                self.error = self.error or LeaseLost(f"{lost} before its attempt ended")
            self._unsent.clear()
            self._room.notify_all()

    @property
    def is_half_full(self) -> bool:
        """Whether a writer should wait for room."""
        with self._room:
            return len(self._unsent) * 2 > MAX_UNSENT or self._bytes * 2 > MAX_BYTES

    @property
    def is_settled(self) -> bool:
        """Whether all messages are sent, or can no longer be sent."""
        with self._room:
            return not self._unsent or self.error is not None or self._is_closed

    def _takes_some(self) -> bool:
        return self._has_room() or self.error is not None or self._is_closed

    def _has_room(self) -> bool:
        return len(self._unsent) < MAX_UNSENT and self._bytes < MAX_BYTES

    def _raise_if_over(self) -> None:
        if self.error is not None:
            raise self.error
        if self._is_closed:
            raise LeaseLost(f"this attempt of job {self._job_id} has ended: nothing more can be sent")


class WrittenMessages:
    """Sends what handlers write. Created on the loop; any thread may write."""

    def __init__(self, run: Run, queues: Mapping[str, QueueKeys], clock: Clock) -> None:
        self._run, self._queues, self._clock = run, queues, clock
        self.boxes: dict[tuple[str, str], Box] = {}
        self._senders = KeyedTasks()

    def write(self, attempt: Attempt, text: str) -> None:
        """Write a message, from any thread; threads other than the loop's wait while too much is unsent.

        Raises:
            GlideMQError: See ``Box.add``.
        """
        if attempt.is_mute:
            raise LeaseLost(f"this attempt of job {attempt.job_id} has ended: nothing more can be sent")
        key = attempt_key(attempt)
        box = self.boxes.get(key) or self.boxes.setdefault(key, Box(attempt.job_id))
        if box.add(text, may_wait=not self._senders.is_here):
            self._senders.start(key, functools.partial(self._send, attempt, box))

    async def room(self, attempt: Attempt) -> None:
        """Wait until there is enough room, or sending has ended: for messages from another process."""
        if (box := self.boxes.get(attempt_key(attempt))) and box.is_half_full:
            await self.settle(attempt)

    def has_any(self, attempt: Attempt) -> bool:
        """Whether the attempt has written messages."""
        return attempt_key(attempt) in self.boxes

    def is_settled(self, attempt: Attempt) -> bool:
        """Whether all messages of the attempt are on the server, or can no longer be sent."""
        box = self.boxes.get(attempt_key(attempt))
        return box is None or box.is_settled

    async def settle(self, attempt: Attempt) -> GlideMQError | None:
        """Wait until all messages are on the server; returns the reason if some cannot be sent."""
        box = self.boxes.get(attempt_key(attempt))
        while box is not None and not box.is_settled:
            if sender := self._senders.get(attempt_key(attempt)):
                await asyncio.wait({sender})
            else:
                await asyncio.sleep(0)  # a thread has just written the last message
        return box.error if box else None

    def close(self, attempt: Attempt) -> None:
        """Accept no further message of the attempt."""
        box = self.boxes.pop(attempt_key(attempt), None)
        if box is not None:
            box.close()

    async def _send(self, attempt: Attempt, box: Box) -> None:
        """Send the messages of a box until it is empty, again after each broken connection."""
        pauses = reconnect_delays()
        try:
            while (batch := box.next()) is not None:
                try:
                    await self._send_batch(attempt, box, *batch)
                except TransportError as exc:
                    if not exc.retryable:
                        box.fail(exc)
                        continue
                    await asyncio.sleep(next(pauses))
                except GlideMQError as exc:
                    box.fail(exc)
                else:
                    pauses = reconnect_delays()
        except BaseException as exc:  # otherwise ``settle`` would never return
            box.fail(ProtocolError(f"sending the messages of job {attempt.job_id} was interrupted"))
            if not isinstance(exc, Exception):
                raise
            logger.exception("messages of a job not sent", extra={"action": "messages_refused"})

    async def _send_batch(self, attempt: Attempt, box: Box, first: int, texts: Sequence[str]) -> None:
        call = write_messages(attempt, self._queues[attempt.queue], first, texts, self._clock.now_ms())
        there, last = await self._run(ask(call)), first + len(texts) - 1
        if there < last:
            raise ProtocolError(
                f"the server has {there:,} of {last:,} messages of job {attempt.job_id}: it lost some, as "
                "can happen in a failover. The job must run again"
            )
        box.sent(len(texts))


def attempt_key(attempt: Attempt) -> tuple[str, str]:
    """Identifies an attempt: several jobs may be fetched under one token."""
    return attempt.token, attempt.job_id
