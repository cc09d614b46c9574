"""The jobs that a worker holds, from their arrival to the report of their outcome.

However a handler ends, its place is freed and its attempt is released: at the end of its task, or in the
callback of the task if that was cancelled before its first step.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from glidemq_orchestrate.attempts.exchange import UNBEGUN, Kind, Outcome
from glidemq_orchestrate.errors import GlideMQError, LeaseLost
from glidemq_orchestrate.jobs.attempt import Attempt
from glidemq_orchestrate.worker.early_reports import EarlyReports
from glidemq_orchestrate.worker.executor import Executor, process_token, refuse
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.log import JobLog
from glidemq_orchestrate.worker.handlers.middleware import Execution
from glidemq_orchestrate.worker.held_jobs import (
    ASIDE_SECONDS,
    REST_SECONDS,
    WAITING_SECONDS,
    Batches,
    JobEvents,
    OverdueJobs,
    Suspects,
    UnreportedStarts,
)
from glidemq_orchestrate.worker.job_slots import JobSlots
from glidemq_orchestrate.worker.metrics import JobMeter
from glidemq_orchestrate.worker.slices import (
    SliceSizes,
    ends_of,
    execute_slice,
    for_kept,
    is_of_elements,
    with_added,
)
from glidemq_orchestrate.worker.statistics import JobStatistics
from glidemq_orchestrate.worker.tasks import JobTask
from glidemq_orchestrate.worker.threads import ThreadsUnavailable
from glidemq_orchestrate.worker.watchdog import RunningHandler

logger = logging.getLogger("glidemq_orchestrate.worker")
LAST_ENDED: Final = 32


def _contexts_of(execution: Execution, attempt: Attempt) -> Sequence[Context]:
    """The contexts of an attempt: one, or those of the elements of a slice."""
    if attempt.slice is not None:
        return execution.contexts
    pairs = zip(execution.attempts, execution.contexts, strict=False)
    return [context for held, context in pairs if held is attempt]


class JobRunner:
    """Assigns places to jobs and reports their outcomes.

    Args:
        executor: Runs their handlers.
        slots: The jobs that the worker holds.
        report: Reports an outcome to the server.
        wake: Called when there is room.
        stop: Stops the worker.
        report_start: Reports the start of an attempt to the server; returns whether it still owns its job.
        is_late: Whether the leases of a queue were not renewed recently.
        note_lease: Called with the lease of a job that has its own, in seconds.
        meter: Counts the jobs for Prometheus, if anybody reads that.

    Attributes:
        log: The log lines about the ends of jobs.
        statistics: How long they waited and ran.
    """

    def __init__(  # noqa: PLR0913  the parts of its worker that it needs
        self,
        executor: Executor,
        slots: JobSlots,
        *,
        report: Callable[[Outcome], None],
        wake: Callable[[], None],
        stop: Callable[[], None],
        report_start: Callable[[Attempt], Awaitable[bool]],
        is_late: Callable[[str], bool],
        note_lease: Callable[[float], None],
        meter: JobMeter | None,
    ) -> None:
        self._executor, self._slots, self._handlers = executor, slots, executor.handlers
        self._report, self._wake, self._stop, self._report_start = report, wake, stop, report_start
        self._is_late, self._note_lease = is_late, note_lease
        self._suspects = Suspects(self._released, slots.max_suspects)
        self._batches = Batches(self._batch_closed)
        self._starts = UnreportedStarts(self._execution_of, wake)
        self._ended: deque[Execution] = deque(maxlen=LAST_ENDED)
        self._running: dict[tuple[str, str], Execution] = {}
        self._tasks: dict[asyncio.Task[None], Execution] = {}
        self._overdue = OverdueJobs(WAITING_SECONDS, self._waiting, self._give_back)
        self._overdue_aside = OverdueJobs(
            ASIDE_SECONDS, lambda: list(self._suspects.aside), self._give_back_suspects
        )
        self._messenger, self._threads = executor.contexts.messenger, executor.caller.threads
        self.log, self._events = JobLog(), JobEvents(executor.middleware)
        self.statistics = JobStatistics(executor.clock, meter)
        self._sizes = SliceSizes(executor.handlers)
        self._early = EarlyReports(report, partial(self.cancel, revoked=False))
        self._loop = asyncio.get_running_loop()
        self._threads.when_one_returns = self._thread_returned

    # --- taking jobs ---

    def take(self, fetched: list[Attempt]) -> None:
        """Take fetched jobs and run as many as there are free places."""
        for attempt in fetched:
            if self._slots.stopping:  # it was requested before the stop
                self._report(Outcome(attempt, Kind.BACK))
                continue
            earlier = self._slots.held.get((attempt.queue, attempt.job_id))
            if earlier is not None:  # heartbeats renew the newest attempt only
                self.cancel(earlier, revoked=False)
            self._slots.take(attempt)
            if (lease := attempt.options.lease) is not None:
                self._note_lease(lease.total_seconds())
            registered = self._handlers.get(attempt.name)
            is_batched = registered is not None and registered.batch_size and attempt.slice is None
            if registered is not None and is_batched and attempt.suspect is None:
                self._batches.add(attempt, registered)
            else:
                self._slots.waiting.append(attempt)
        self.fill()

    def fill(self) -> None:
        """Start waiting jobs while places are free, and not too many threads overstay."""
        slots = self._slots
        slots.is_blocked = self._threads.is_crowded
        while slots.running < slots.concurrency and not slots.stopping and not slots.is_blocked:
            if self._batches.closed:
                if batch := self._batches.closed.popleft():
                    self._start(batch)
            elif slots.waiting:
                first = slots.waiting.popleft()
                if not first.suspect or self._suspects.may_begin(first):
                    self._start([first])
            else:
                break
        slots.aside = len(self._suspects.aside)
        if (slots.waiting or self._batches.closed) and slots.prefetch is None:
            self._overdue.check()
        if slots.aside:
            self._overdue_aside.check()

    def _waiting(self) -> list[Attempt]:
        return [*self._slots.waiting, *(attempt for batch in self._batches.closed for attempt in batch)]

    def _give_back(self, overdue: list[Attempt]) -> None:
        """Give back jobs that wait for a place: the running jobs take longer than expected."""
        self._slots.is_slow = True
        for attempt in overdue:
            self._withdraw(attempt, Outcome(attempt, Kind.BACK))

    def _give_back_suspects(self, overdue: list[Attempt]) -> None:
        """Give back suspects that wait for another suspect: another worker may run them."""
        # Otherwise this worker would fetch them again in the call that gives them back.
        self._slots.is_resting = True
        self._loop.call_later(REST_SECONDS, self._end_rest)
        for attempt in overdue:
            self._withdraw(attempt, Outcome(attempt, Kind.BACK))
        self._slots.aside = len(self._suspects.aside)

    def _end_rest(self) -> None:
        self._slots.is_resting = False
        self._wake()

    def _released(self, suspects: list[Attempt]) -> None:
        self._slots.waiting.extendleft(reversed(suspects))
        self._loop.call_soon(self.fill)

    def _thread_returned(self) -> None:
        if self._slots.is_blocked:
            self.fill()
            self._wake()

    def _batch_closed(self) -> None:
        self.fill()
        self._wake()  # the starts of its jobs may be due

    def _start(self, attempts: list[Attempt]) -> None:
        """Start the handler of a job or batch in a new task."""
        self._slots.running += 1
        execution = Execution(attempts, self._loop.time())
        for attempt in attempts:
            self._running[attempt.queue, attempt.job_id] = execution
            self.statistics.started(attempt)
            if attempt.is_ahead and attempt.suspect is None:
                self._starts.add(attempt)
                self._starts.wake_when_due(attempt.queue)
            self._events.emit("active", attempt)
        # With a name of its own, as asyncio takes longer to find one.
        execution.task = JobTask(self._work(execution), loop=self._loop, name=attempts[0].job_id)
        self._tasks[execution.task] = execution
        execution.task.add_done_callback(self._task_ended)

    # --- running them ---

    async def _work(self, execution: Execution) -> None:
        """Run the handler, free its place, send its last messages and report the outcomes."""
        attempts = execution.attempts
        try:
            if any(map(self._must_report, attempts)) and not await self._may_begin(attempts):
                outcomes: Sequence[Outcome | None] = [None] * len(attempts)
            elif (slice_ := attempts[0].slice) is None:
                outcomes = with_added(execution, await self._executor.execute(execution))
            else:
                outcomes = await execute_slice(
                    self._executor, execution, slice_, self._slots, self._send_early
                )
        except ThreadsUnavailable:
            self._free(execution)
            self._stop()  # gives the held jobs back
            return
        seconds = self._free(execution)
        if attempts[0].slice is not None and outcomes[0] is not None:
            self._note_slice(outcomes[0], seconds)
        self.fill()
        if not self._messenger.is_empty:
            outcomes = await self._sent(attempts, outcomes)
        for attempt, outcome in zip(attempts, outcomes, strict=True):
            self._end(attempt, outcome, seconds)
        if (task := execution.task) is not None:  # nothing is left to clean up
            task.remove_done_callback(self._task_ended)
            del self._tasks[task]

    def _note_slice(self, outcome: Outcome, seconds: float) -> None:
        """Decide from a slice that has ended how many elements the next ones have, and when to lease them."""
        self._sizes.ran(outcome, seconds)
        is_returned = outcome.kind is Kind.LATER and outcome.second == UNBEGUN
        if is_returned and (pause := self._sizes.returned(outcome.attempt.queue)):
            self._loop.call_later(pause, self._wake)

    def _send_early(self, attempt: Attempt, outcome: Outcome, seconds: float) -> bool:
        """Report elements that have ended while the next one runs; returns False if messages come first."""
        if not self._messenger.written.is_settled(attempt):
            return False
        self._sizes.ran(outcome, seconds)
        self._early.begin(attempt, outcome)
        return True

    def unreported(self, queue: str) -> list[Attempt]:
        """The ended attempts of a queue that are not reported before an earlier report is accepted."""
        return self._early.unreported(queue)

    async def _sent(
        self, attempts: Sequence[Attempt], outcomes: Sequence[Outcome | None]
    ) -> Sequence[Outcome | None]:
        """The outcomes, once the messages of the handler are on the server, which refuses them later."""
        if any(map(self._messenger.written.has_any, attempts)):
            outcomes = [
                await self._written(attempt, outcome)
                for attempt, outcome in zip(attempts, outcomes, strict=True)
            ]
        if unsent := [attempt for attempt in attempts if self._messenger.has_unsent(attempt)]:
            await asyncio.gather(*map(self._messenger.flush, unsent))
        return outcomes

    def _must_report(self, attempt: Attempt) -> bool:
        """Whether a start is reported before the handler is called: that of a suspect.

        Otherwise, if it killed its worker immediately, it would count as not started. A start is also
        reported if leases were not renewed recently, as after SIGSTOP: another worker may have the job.
        """
        return attempt.suspect is not None or self._is_late(attempt.queue)

    async def _may_begin(self, attempts: Sequence[Attempt]) -> bool:
        """Report the starts that must be reported; returns whether the handler may be called."""
        for attempt in attempts:
            if not self._must_report(attempt):
                continue
            try:
                if not await self._report_start(attempt):
                    return False
            except GlideMQError:  # unreachable: a later heartbeat shows whether the lease is lost
                continue
            if attempt.suspect:
                self.log.runs_again(attempt)
        return True

    async def _written(self, attempt: Attempt, outcome: Outcome | None) -> Outcome | None:
        """The outcome, once all messages of the handler are on the server; a failure if they cannot be sent.

        Raises:
            asyncio.CancelledError: The worker ends first, and gives the job back.
        """
        error = await self._messenger.written.settle(attempt)
        if error is not None and self._executor.is_abandoned:
            raise asyncio.CancelledError
        if error is None or outcome is None or outcome.kind is not Kind.DONE:
            return outcome
        return None if isinstance(error, LeaseLost) else self._executor.outcome_of_error(attempt, error)

    def _free(self, execution: Execution) -> float:
        """Free the place; returns for how many seconds it was taken."""
        execution.has_ended, execution.contexts = True, ()
        self._ended.append(execution)
        self._slots.running -= 1
        seconds = self._loop.time() - execution.started
        self._slots.ran(seconds)
        for attempt in execution.attempts:
            self.statistics.returned(attempt)
            if self._running.get((attempt.queue, attempt.job_id)) is execution:
                del self._running[attempt.queue, attempt.job_id]
            if attempt.suspect:
                self._suspects.ended(attempt)
        return seconds

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """Clean up after a task that did not report all its outcomes."""
        execution = self._tasks.pop(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            text = "the worker's own code failed while it handled a job"
            logger.error(text, exc_info=error, extra={"action": "survived"})
        seconds = 0.0 if execution.has_ended else self._free(execution)
        for attempt in execution.attempts:
            held = self._slots.held.get((attempt.queue, attempt.job_id))
            if held is not attempt or self._executor.is_abandoned:
                continue  # reported, or given back when the worker ends
            if error is not None:
                self._end(attempt, self._executor.outcome_of_error(attempt, error), seconds)
            elif task.cancelled():
                self._end(attempt, self._executor.outcome_of_cancel(execution, attempt), seconds)
        self.fill()

    def _end(self, attempt: Attempt, outcome: Outcome | None, seconds: float) -> None:
        """Release an attempt: report its outcome, or emit that it was lost."""
        self._messenger.close(attempt)
        self._slots.free(attempt)
        if outcome is None:
            self.statistics.lost(attempt)
            self._events.emit("lost", attempt, seconds)
            self._wake()
        else:
            attempt.seconds = seconds
            if attempt.slice is None:
                self._report(outcome)
            else:
                self._early.end(for_kept(outcome))

    # --- ending them early ---

    def cancel(self, attempt: Attempt, revoked: bool) -> None:  # noqa: FBT001  called by heartbeats
        """Stop the handler of a job that was revoked or lost its lease; async handlers are cancelled."""
        execution = self._execution_of(attempt)
        if execution is None:
            self._withdraw(attempt, refuse(attempt, "revoked") if revoked else None)
            return
        stopped = execution.stopped = {**(execution.stopped or {}), attempt.job_id: revoked}
        for context in _contexts_of(execution, attempt):
            context.cancelled.set(is_lost=not revoked)
        registered = self._handlers.get(attempt.name)
        is_stoppable = registered is not None and (registered.is_async or registered.in_process)
        if is_stoppable and execution.task and all(held.job_id in stopped for held in execution.attempts):
            execution.task.end()

    def give_back(self, attempt: Attempt) -> None:
        """Ask the handler of a job that a user takes back soon to stop; return a job that has not started."""
        execution = self._execution_of(attempt)
        if execution is None:
            self._withdraw(attempt, Outcome(attempt, Kind.BACK))
            return
        for context in _contexts_of(execution, attempt):
            context.cancelled.set(is_stopping=True)

    def _execution_of(self, attempt: Attempt) -> Execution | None:
        """The execution of exactly this attempt of the job; None if it does not run."""
        execution = self._running.get((attempt.queue, attempt.job_id))
        if execution is not None and any(held is attempt for held in execution.attempts):
            return execution
        return None

    def _withdraw(self, attempt: Attempt, outcome: Outcome | None) -> None:
        """Release a job that has not started, with this outcome; None for a job that is lost."""
        for batch in (self._slots.waiting, self._suspects.aside, *self._batches.all):
            if attempt in batch:
                batch.remove(attempt)
                self._end(attempt, outcome, 0.0)

    def give_back_waiting(self) -> None:
        """Return the jobs that have not started: other workers may run them."""
        for attempt in list(self._slots.held.values()):
            if self._execution_of(attempt) is None:
                self._withdraw(attempt, Outcome(attempt, Kind.BACK))

    async def drain(self, seconds: float | None) -> None:
        """Wait until nothing runs, at most this long; None: however long it takes."""
        until = math.inf if seconds is None else self._loop.time() + seconds
        while self._tasks and (left := until - self._loop.time()) > 0:
            timeout = None if left == math.inf else left
            await asyncio.wait(set(self._tasks), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)

    async def abandon(self, seconds: float = 5.0) -> None:
        """Stop every handler; afterwards no message is sent. A handler that ignores the stop still runs."""
        self._executor.is_abandoned = True
        for execution in list(self._running.values()):
            for context in execution.contexts:
                context.cancelled.set(is_stopping=True)
            if execution.task is not None:
                execution.task.end()
        await self.drain(seconds)
        held = list(self._slots.held.values())
        await asyncio.gather(*(self._messenger.flush(attempt, may_wait=False) for attempt in held))

    # --- messages and events ---

    async def forward(self, token: str, kind: str, text: str) -> None:
        """Send a message of a handler in a process, or check that its attempt still owns the job.

        Raises:
            GlideMQError: A message that must not be lost cannot be sent, or the attempt has lost its job.
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

    def executing(self) -> list[RunningHandler]:
        """The running handlers, then the last ended ones, newest first; from any thread."""
        known = [*list(self._running.values()), *reversed(list(self._ended))]
        return [RunningHandler(one.attempts[0], one.task, one.thread, one.used) for one in known]

    def note(self, attempt: Attempt, line: str) -> None:
        """Write a line into the log of a job, from any thread."""
        self._messenger.send("log", attempt, line)

    def has_starts(self, queue: str) -> bool:
        """Whether the start of a prefetched job is to be reported."""
        return self._starts.is_due(queue)

    def take_starts(self, queue: str) -> list[Attempt]:
        """The prefetched jobs whose start is to be reported; afterwards they count as reported."""
        return self._starts.take(queue)

    def freed(self) -> None:
        """Wake every queue: places that one of them reserved are free again."""
        self._wake()

    def slice_sizes(self, queue: str) -> str:
        """How many elements of arrays to lease as a slice; see ``Request``."""
        return self._sizes.of(queue)

    def settled(self, outcome: Outcome, verdict: str) -> None:
        """Log, count and emit the server's verdict on an outcome; for a slice, on each of its elements."""
        if outcome.attempt.slice is not None and self._early.judged(outcome, verdict):
            self.log.verdict(outcome, verdict)  # the lost lease counts when the attempt ends
            return
        if is_of_elements(outcome) and not verdict.startswith(("stale ", "error ")):
            if verdict == "ok" and not self._events.has_listeners:
                if count := outcome.elements:
                    self.log.verdict(outcome, verdict)
                    self.statistics.elements(outcome.attempt, count)
                return
            for one, its_verdict in ends_of(outcome, verdict):
                self.settled(one, its_verdict)
            return
        self.log.verdict(outcome, verdict)
        self.statistics.settled(outcome, verdict)
        self._events.emit_verdict(outcome, verdict)
