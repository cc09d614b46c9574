"""What handlers say while they run: progress, log lines, output and usage, apart from the outcomes.

Each attempt has a line of its own, which is bounded: one that says more than the server takes waits, or loses
log lines, and keeps nobody else's result back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar

from glidemq_orchestrate._ops.queue import jobs, usage
from glidemq_orchestrate._protocol.call import Call, Op, Run, ask_each
from glidemq_orchestrate._protocol.queue import jobs as job_calls
from glidemq_orchestrate._protocol.worker import attempt as attempt_calls
from glidemq_orchestrate.clock import Clock
from glidemq_orchestrate.codec import JsonLike, encode
from glidemq_orchestrate.errors import GlideMQError, ServerBusy, TransportError
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.jobs.usage import Usage
from glidemq_orchestrate.keys import QueueKeys

T = TypeVar("T")

SAID_AT_ONCE: Final = 100
MOST_UNSAID: Final = 1_000
"""So many messages of an attempt wait to be sent; a thread that says more waits for room."""
WAIT_SECONDS: Final = 1.0
LAST_WORDS_SECONDS: Final = 5.0
logger = logging.getLogger("glidemq_orchestrate.worker")


class Message(NamedTuple):
    """One thing to say, by a call or an operation; a newer one of the same kind replaces it."""

    call: Call[Any] | None = None
    op: Op[Any] | None = None
    kind: str = ""
    may_be_dropped: bool = True


class Line:
    """What one attempt has said and the server has not heard yet. Thread-safe."""

    def __init__(self) -> None:
        self._unsaid: deque[Message] = deque()
        self._room = threading.Condition()
        self.dropped = 0
        self.is_closed = False

    def add(self, message: Message, *, may_wait: bool) -> bool:
        """Answers whether a sender must be begun: nothing was waiting before.

        Raises:
            ServerBusy: There is no room for what must not be dropped.
        """
        with self._room:
            if message.kind and self._unsaid and self._unsaid[-1].kind == message.kind:
                self._unsaid[-1] = message
                return False
            if len(self._unsaid) >= MOST_UNSAID and may_wait:
                self._room.wait_for(lambda: len(self._unsaid) < MOST_UNSAID or self.is_closed, WAIT_SECONDS)
            if len(self._unsaid) >= MOST_UNSAID and not message.may_be_dropped and not self.is_closed:
                raise ServerBusy(
                    f"{MOST_UNSAID:,} messages of this job wait to be sent: it writes output faster than the "
                    "server takes it. Write larger pieces, or await something in between"
                )
            if len(self._unsaid) >= MOST_UNSAID or self.is_closed:
                self.dropped += 1
                return False
            self._unsaid.append(message)
            return len(self._unsaid) == 1

    def next(self) -> Op[Any] | None:
        """The operation that stands first, or as many plain calls as do; None when all is said."""
        with self._room:
            if not self._unsaid:
                return None
            calls: list[Call[Any]] = []
            while self._unsaid and len(calls) < SAID_AT_ONCE and (call := self._unsaid[0].call) is not None:
                calls.append(call)
                self._unsaid.popleft()
            self._room.notify_all()
            return ask_each(calls) if calls else self._unsaid.popleft().op

    def close(self) -> int:
        """Take nothing any more; answers how many messages nobody will hear."""
        with self._room:
            self.dropped += len(self._unsaid)
            self._unsaid.clear()
            self.is_closed = True
            self._room.notify_all()
            return self.dropped


class Messenger:
    """Sends what handlers say. Made on the loop; any thread may speak."""

    def __init__(self, run: Run, queues: Mapping[str, QueueKeys], clock: Clock) -> None:
        self._run, self._queues, self._clock = run, queues, clock
        self._lines: dict[tuple[str, str], Line] = {}
        self._senders: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()

    def send(self, kind: str, attempt: Attempt, text: str) -> None:
        """Send ``progress`` (JSON) or a ``log`` line, from any thread."""
        queue = self._queues[attempt.queue]
        call: Call[Any] = (
            job_calls.add_log(queue, attempt.job_id, text)
            if kind == "log"
            else attempt_calls.progress(attempt, queue, text, self._clock.now_ms())
        )
        self._post(attempt, Message(call, kind="" if kind == "log" else "progress"))

    def of(self, attempt: Attempt) -> OfAttempt:
        """What the handler of an attempt speaks by."""
        return OfAttempt(self, attempt)

    def output(self, attempt: Attempt, fields: Mapping[str, str]) -> None:
        """Append to the output of a job, from any thread.

        Raises:
            ServerBusy: Too much of what the job said is still to be sent.
        """
        op = jobs.add_output(self._queues[attempt.queue], attempt.job_id, fields)
        self._post(attempt, Message(op=op, may_be_dropped=False))

    def usage(self, attempt: Attempt, used: Usage) -> None:
        """Report what a job used, from any thread."""
        op = usage.report(self._queues[attempt.queue], attempt.job_id, used, self._clock)
        self._post(attempt, Message(op=op, kind="usage"))

    def has_unsent(self, attempt: Attempt) -> bool:
        """Whether something that the attempt said may be on its way."""
        return bool(self._lines) and _key(attempt) in self._lines

    async def flush(self, attempt: Attempt) -> None:
        """Wait until everything the attempt said is on the server, some seconds at most; it says no more."""
        await asyncio.sleep(0)  # lets what other threads have just said come in
        if sender := self._senders.get(_key(attempt)):
            await asyncio.wait({sender}, timeout=LAST_WORDS_SECONDS)
        self.hush(attempt)

    def hush(self, attempt: Attempt) -> None:
        """The attempt says no more; what is not on its way is dropped."""
        attempt.is_mute = True
        line = self._lines.pop(_key(attempt), None) if self._lines else None
        if line is not None and (dropped := line.close()):
            logger.warning(
                "job %s: %d of its messages were not sent: it said more than the server took",
                attempt.job_id,
                dropped,
                extra={"action": "words_dropped", "queue": attempt.queue, "job_id": attempt.job_id},
            )

    def _post(self, attempt: Attempt, message: Message) -> None:
        key, is_here = _key(attempt), threading.get_ident() == self._loop_thread
        if attempt.is_mute:  # a handler that outlived its attempt
            return
        line = self._lines.get(key) or self._lines.setdefault(key, Line())
        if not line.add(message, may_wait=not is_here):
            return
        if is_here:
            self._begin(key, line)
        else:
            with contextlib.suppress(RuntimeError):  # the loop has ended: a handler that outlived its worker
                self._loop.call_soon_threadsafe(self._begin, key, line)

    def _begin(self, key: tuple[str, str], line: Line) -> None:
        if key not in self._senders:
            self._senders[key] = self._loop.create_task(self._send(key, line))

    async def _send(self, key: tuple[str, str], line: Line) -> None:
        try:
            while (op := line.next()) is not None:
                try:
                    await self._run(op)
                except TransportError:
                    pass  # what is lost so is only told, not counted on
                except GlideMQError as exc:
                    logger.warning("a job's words were refused: %s", exc, extra={"action": "words_refused"})
                except Exception:
                    logger.exception("a job's words could not be sent", extra={"action": "words_refused"})
        finally:
            self._senders.pop(key, None)


class OfAttempt:
    """What one attempt says through the messenger: the ``Speaker`` of its context."""

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


def _key(attempt: Attempt) -> tuple[str, str]:
    return attempt.token, attempt.job_id
