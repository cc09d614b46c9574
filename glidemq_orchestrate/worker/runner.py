"""The jobs that a worker holds: which runs where, from the start to the report of the outcome.

However a handler ends, its place is freed and its attempt leaves the worker: at the end of the task itself,
or, where that was cancelled before its first step, in the callback of the task.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from glidemq_orchestrate.attempts.exchange import Kind, Outcome
from glidemq_orchestrate.errors import GlideMQError, LeaseLost
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.worker.caller import process_token
from glidemq_orchestrate.worker.calls import ThreadsUnavailable
from glidemq_orchestrate.worker.core import Slots, refuse
from glidemq_orchestrate.worker.execution import Execution
from glidemq_orchestrate.worker.executor import Executor
from glidemq_orchestrate.worker.handler import Registered
from glidemq_orchestrate.worker.log import Log, about
from glidemq_orchestrate.worker.middleware.events import Events
from glidemq_orchestrate.worker.overdue import ASIDE_SECONDS, REST_SECONDS, WAITING_SECONDS, Overdue
from glidemq_orchestrate.worker.own_task import JobTask
from glidemq_orchestrate.worker.suspects import Suspects
from glidemq_orchestrate.worker.watch import Running

logger = logging.getLogger("glidemq_orchestrate.worker")
LAST_ENDED: Final = 32
TELL_AFTER_SECONDS: Final = 0.02


class JobRunner:
    """Assigns places to jobs and reports their outcomes.

    Args:
        executor: Runs their handlers.
        slots: The jobs that the worker holds.
        report: Called with an outcome for the server.
        wake: Called when there is room.
        stop: Stops the worker.
        tell: Tells the server that the handler of an attempt begins; whether it still owns its job.
        is_late: Whether the leases of a queue were not renewed lately.
        note_lease: Called with the seconds of the lease that a job has of its own.
    """

    def __init__(  # noqa: PLR0913  what a runner needs of its worker
        self,
        executor: Executor,
        slots: Slots,
        *,
        report: Callable[[Outcome], None],
        wake: Callable[[], None],
        stop: Callable[[], None],
        tell: Callable[[Attempt], Awaitable[bool]],
        is_late: Callable[[str], bool],
        note_lease: Callable[[float], None],
    ) -> None:
        self._executor, self._slots, self._handlers = executor, slots, executor.handlers
        self._report, self._wake, self._stop, self._tell = report, wake, stop, tell
        self._is_late, self._note_lease = is_late, note_lease
        self._suspects = Suspects(self._released)
        self._untold: dict[str, deque[Attempt]] = {}
        self._telling: set[str] = set()
        self._ended: deque[Execution] = deque(maxlen=LAST_ENDED)
        self._running: dict[tuple[str, str], Execution] = {}
        self._tasks: dict[asyncio.Task[None], Execution] = {}
        self._collected: dict[tuple[str, str], list[Attempt]] = {}
        self._full: deque[list[Attempt]] = deque()
        self._seconds: dict[tuple[str, str], float] = {}
        self._overdue = Overdue(WAITING_SECONDS, self._waiting, self._give_back)
        self._overdue_aside = Overdue(ASIDE_SECONDS, lambda: list(self._suspects.aside), self._give_aside)
        self._messenger, self._threads = executor.contexts.messenger, executor.caller.threads
        self._log, self._events = Log(), Events(executor.middleware)
        self._loop = asyncio.get_running_loop()
        self._threads.when_one_returns = self._thread_returned

    # --- taking jobs ---

    def begin(self, begun: list[Attempt]) -> None:
        """Take activated jobs and run as many as there are free places."""
        for attempt in begun:
            if self._slots.stopping:  # it was requested before the stop
                self._report(Outcome(attempt, Kind.BACK))
                continue
            earlier = self._slots.held.get((attempt.queue, attempt.job_id))
            if earlier is not None:  # no heartbeat will tell of it any more
                self.cancel(earlier, revoked=False)
            self._slots.take(attempt)
            if (lease := attempt.options.lock_duration) is not None:
                self._note_lease(lease.total_seconds())
            registered = self._handlers.get(attempt.name)
            if registered is not None and registered.batch_size and attempt.suspect is None:
                self._collect(attempt, registered)
            else:
                self._slots.waiting.append(attempt)
        self.fill()

    def fill(self) -> None:
        """Start waiting jobs while there are free places, and not too many overstayed threads."""
        slots = self._slots
        slots.is_blocked = self._threads.is_crowded
        while slots.running < slots.concurrency and not slots.stopping and not slots.is_blocked:
            if self._full:
                if batch := self._full.popleft():  # all of it may have been cancelled
                    self._start(batch)
            elif slots.waiting:
                if self._suspects.may_begin(first := slots.waiting.popleft()):
                    self._start([first])
            else:
                break
        slots.aside = len(self._suspects.aside)
        if slots.prefetch is None:
            self._overdue.look()
        self._overdue_aside.look()

    def _waiting(self) -> list[Attempt]:
        return [*self._slots.waiting, *(attempt for batch in self._full for attempt in batch)]

    def _give_back(self, overdue: list[Attempt]) -> None:
        """Give back what waits for a place: the jobs before it take longer than expected."""
        self._slots.is_slow = True
        for attempt in overdue:
            self._withdraw(attempt, Outcome(attempt, Kind.BACK))

    def _give_aside(self, overdue: list[Attempt]) -> None:
        """Let other workers have the suspects that wait for another one: each may run one."""
        self._slots.is_resting = (
            True  # else this worker would take them again, in the call that gives them back
        )
        self._loop.call_later(REST_SECONDS, self._rested)
        for attempt in overdue:
            self._withdraw(attempt, Outcome(attempt, Kind.BACK))
        self._slots.aside = len(self._suspects.aside)

    def _rested(self) -> None:
        self._slots.is_resting = False
        self._wake()

    def _collect(self, attempt: Attempt, registered: Registered) -> None:
        kind = attempt.queue, attempt.name  # budgets and limits are those of a queue
        batch = self._collected.setdefault(kind, [])
        batch.append(attempt)
        if len(batch) >= registered.batch_size:
            self._close_batch(kind, batch)
        elif len(batch) == 1:
            self._loop.call_later(registered.batch_wait, self._close_batch, kind, batch)

    def _released(self, suspects: list[Attempt]) -> None:
        self._slots.waiting.extendleft(reversed(suspects))
        self._loop.call_soon(self.fill)

    def _thread_returned(self) -> None:
        if self._slots.is_blocked:
            self.fill()
            self._wake()

    def _close_batch(self, kind: tuple[str, str], batch: list[Attempt]) -> None:
        if self._collected.get(kind) is batch:
            del self._collected[kind]
            self._full.append(batch)
            self.fill()
            self._wake()  # the server learns that they have begun

    def _start(self, attempts: list[Attempt]) -> None:
        """Start the handler of a job or batch in a task of its own."""
        self._slots.running += 1
        execution = Execution(attempts, self._loop.time())
        for attempt in attempts:
            self._running[attempt.queue, attempt.job_id] = execution
            if attempt.is_ahead and attempt.suspect is None:
                self._untold.setdefault(attempt.queue, deque()).append(attempt)
            self._events.emit("active", attempt)
        for queue in {attempt.queue for attempt in attempts if attempt.is_ahead}:
            self._tell_in_time(queue)
        execution.task = JobTask(self._work(execution), loop=self._loop)
        self._tasks[execution.task] = execution
        execution.task.add_done_callback(self._task_ended)

    # --- running them ---

    async def _work(self, execution: Execution) -> None:
        """Run the handler, free its place, send its last messages and report the outcomes."""
        try:
            if await self._may_begin(execution):
                outcomes = await self._executor.execute(execution)
            else:
                outcomes = [None] * len(execution.attempts)
        except ThreadsUnavailable:
            self._free(execution)
            self._stop()  # which gives back what is held
            return
        seconds = self._free(execution)
        self.fill()
        if any(map(self._messenger.written.has_any, execution.attempts)):
            outcomes = [
                await self._written(attempt, outcome)
                for attempt, outcome in zip(execution.attempts, outcomes, strict=True)
            ]
        # The server refuses progress after the outcome.
        if unsent := [attempt for attempt in execution.attempts if self._messenger.has_unsent(attempt)]:
            await asyncio.gather(*map(self._messenger.flush, unsent))
        for attempt, outcome in zip(execution.attempts, outcomes, strict=True):
            self._end(attempt, outcome, seconds)
        execution.is_over = True

    async def _may_begin(self, execution: Execution) -> bool:
        """Whether a handler may be called. Of a job that was lost before, the server must know first.

        One that ends its worker at once would else go as one that had not begun. And where no lease was
        renewed lately, as after a stop of the process, others may have the job.
        """
        for attempt in execution.attempts:
            if attempt.suspect is None and not self._is_late(attempt.queue):
                continue
            try:
                if not await self._tell(attempt):
                    return False
            except GlideMQError:  # the server is away: the heartbeats will find out
                continue
            if attempt.suspect:
                logger.warning(
                    "job %s: runs again after its worker was lost; that costs no attempt",
                    attempt.job_id,
                    extra=about("after_loss", attempt),
                )
        return True

    async def _written(self, attempt: Attempt, outcome: Outcome | None) -> Outcome | None:
        """The outcome, once all that the handler wrote is on the server; a failure where it never will be.

        Raises:
            asyncio.CancelledError: The worker ends before that, and gives the job back.
        """
        error = await self._messenger.written.settle(attempt)
        if error is not None and self._executor.is_abandoned:
            raise asyncio.CancelledError
        if error is None or outcome is None or outcome.kind is not Kind.DONE:
            return outcome
        return None if isinstance(error, LeaseLost) else self._executor.outcome_of_error(attempt, error)

    def _free(self, execution: Execution) -> float:
        """Free the place; returns for how long it was taken."""
        execution.has_ended, execution.contexts = True, ()
        self._ended.append(execution)
        self._slots.running -= 1
        seconds = self._loop.time() - execution.started
        self._slots.ran(seconds)
        for attempt in execution.attempts:
            if self._running.get((attempt.queue, attempt.job_id)) is execution:
                del self._running[attempt.queue, attempt.job_id]
            if attempt.suspect:
                self._suspects.ended(attempt)
        return seconds

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """Clean up after a task, however it ended."""
        execution = self._tasks.pop(task)
        if execution.is_over:
            return
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error(
                "the worker's own code failed around a job", exc_info=error, extra={"action": "survived"}
            )
        seconds = 0.0 if execution.has_ended else self._free(execution)
        for attempt in execution.attempts:
            held = self._slots.held.get((attempt.queue, attempt.job_id))
            if held is not attempt or self._executor.is_abandoned:
                continue  # it was reported, or is given back when the worker ends
            if error is not None:
                self._end(attempt, self._executor.outcome_of_error(attempt, error), seconds)
            elif task.cancelled():
                self._end(attempt, self._executor.outcome_of_cancel(execution, attempt), seconds)
        self.fill()

    def _end(self, attempt: Attempt, outcome: Outcome | None, seconds: float) -> None:
        """Let go of an attempt: report its outcome, or emit that it was lost."""
        self._messenger.close(attempt)
        self._slots.free(attempt)
        if outcome is None:
            self._events.emit("lost", attempt, seconds)
            self._wake()
        else:
            if self._events.has_listeners:
                self._seconds[attempt.token, attempt.job_id] = seconds
            self._report(outcome)

    # --- ending them early ---

    def cancel(self, attempt: Attempt, *, revoked: bool) -> None:
        """Ask the handler to stop: its job was revoked or lost its lease. Async ones are cancelled."""
        execution = self._run_of(attempt)
        if execution is None:
            self._drop(attempt, revoked=revoked)
            return
        stopped = execution.stopped = {**(execution.stopped or {}), attempt.job_id: revoked}
        for held, context in zip(execution.attempts, execution.contexts, strict=False):
            if held is attempt:
                context.cancelled.set(is_lost=not revoked)
        registered = self._handlers.get(attempt.name)
        is_stoppable = registered is not None and (registered.is_async or registered.in_process)
        if is_stoppable and execution.task and all(held.job_id in stopped for held in execution.attempts):
            execution.task.end()

    def _run_of(self, attempt: Attempt) -> Execution | None:
        """The run of this attempt, and of no other attempt of its job; None if it does not run."""
        execution = self._running.get((attempt.queue, attempt.job_id))
        if execution is not None and any(held is attempt for held in execution.attempts):
            return execution
        return None

    def _drop(self, attempt: Attempt, *, revoked: bool) -> None:
        """Drop a job that has not started."""
        self._withdraw(attempt, refuse(attempt, "revoked") if revoked else None)

    def _withdraw(self, attempt: Attempt, outcome: Outcome | None) -> None:
        """Take back a job that has not started, with this outcome."""
        for batch in (self._slots.waiting, self._suspects.aside, *self._collected.values(), *self._full):
            if attempt in batch:
                batch.remove(attempt)
                self._end(attempt, outcome, 0.0)

    async def drain(self, seconds: float) -> None:
        """Wait until nothing runs, at most this long."""
        until = self._loop.time() + seconds
        while self._tasks and (left := until - self._loop.time()) > 0:
            await asyncio.wait(set(self._tasks), timeout=left, return_when=asyncio.FIRST_COMPLETED)

    async def abandon(self, seconds: float = 5.0) -> None:
        """Stop every handler; afterwards no message is sent. One that does not stop is left running."""
        self._executor.is_abandoned = True
        for execution in list(self._running.values()):
            for context in execution.contexts:
                context.cancelled.set(is_stopping=True)
            if execution.task is not None:
                execution.task.end()
        await self.drain(seconds)
        held = list(self._slots.held.values())
        await asyncio.gather(*map(self._messenger.flush, held))

    # --- messages and events ---

    async def forward(self, token: str, kind: str, text: str) -> None:
        """Send a message of a handler in a process, or check for it that it owns its job.

        Raises:
            GlideMQError: The message must arrive, and cannot; or the handler does not own its job.
        """
        for execution in self._running.values():
            for attempt in execution.attempts:
                if process_token(attempt) != token:
                    continue
                if kind == "message":
                    await self._messenger.written.room(attempt)
                    self._messenger.written.write(attempt, text)
                elif kind == "check":
                    await self._messenger.check_owner(attempt)
                else:
                    self._messenger.send(kind, attempt, text)
                return
        if kind == "check":
            raise LeaseLost("this attempt has ended")

    def executing(self) -> list[Running]:
        """The handlers that run, then the last ones that ended, the newest first; from any thread."""
        known = [*list(self._running.values()), *reversed(list(self._ended))]
        return [Running(one.attempts[0], one.task, one.thread, one.used) for one in known]

    def note(self, attempt: Attempt, line: str) -> None:
        """Write a line into the log of a job, from any thread."""
        self._messenger.send("log", attempt, line)

    def has_begun(self, queue: str) -> bool:
        """Whether the server is to learn that jobs have begun which were fetched ahead.

        It learns of those that have run for a moment: most short ones end before, and cost no call. Whoever
        ends its worker sooner counts as fetched, and is told of before it begins the next time.
        """
        return self._untold_for(queue) <= 0

    def _untold_for(self, queue: str) -> float:
        """Seconds until the oldest of them that runs has done so for a moment; infinite for none."""
        untold = self._untold.get(queue)
        while untold:
            if (execution := self._run_of(untold[0])) is not None:
                return execution.started + TELL_AFTER_SECONDS - self._loop.time()
            untold.popleft()  # it has ended
        return math.inf

    def _tell_in_time(self, queue: str) -> None:
        """Wake the queue when one of them has run for a moment."""
        if queue not in self._telling and (left := self._untold_for(queue)) < math.inf:
            self._telling.add(queue)
            self._loop.call_later(max(left, 0.0), self._moment_over, queue)

    def _moment_over(self, queue: str) -> None:
        self._telling.discard(queue)
        if self.has_begun(queue):
            self._wake()
        else:
            self._tell_in_time(queue)

    def begun(self, queue: str) -> list[Attempt]:
        """Those of them that have run for a moment; afterwards they count as known."""
        told = []
        while self.has_begun(queue):
            attempt = self._untold[queue].popleft()
            if not attempt.is_mute:
                told.append(attempt)
        self._tell_in_time(queue)
        return told

    def freed(self) -> None:
        """Let every queue check again: places that were requested have not been used."""
        self._wake()

    def settled(self, outcome: Outcome, verdict: str) -> None:
        """Log and emit the server's verdict on an outcome."""
        self._log.verdict(outcome, verdict)
        if self._events.has_listeners:
            seconds = self._seconds.pop((outcome.attempt.token, outcome.attempt.job_id), 0.0)
            self._events.emit_verdict(outcome, verdict, seconds)
