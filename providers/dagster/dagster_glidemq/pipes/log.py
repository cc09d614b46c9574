"""Copies the log of running jobs, from every attempt, to Dagster's log, in a separate thread."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import dagster as dg
from dagster_pipes import PipesMessage, PipesParams

from dagster_glidemq.pipes import messages as pipes
from glidemq_orchestrate import Client, JobState, Queue
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.jobs import JobMessage
from glidemq_orchestrate.runs import NO_PATIENCE, Patience, in_text

PAGE: Final = 100
_SIGNALS: Final = frozenset({"RetryLater", "Skip", "Suspend", "WaitForChildren"})
"""Exceptions that handlers raise without failing."""


class ShownLines:
    """The lines that earlier attempts of a step have shown in the log of its run. The log is read once.

    Args:
        lines: The texts of the lines.
        until: The server time after which no message is among them.
    """

    def __init__(self, lines: Iterable[str] = (), until: datetime | None = None) -> None:
        self._lines = Counter(lines)
        self._until_ms = 0 if until is None else int(until.timestamp() * 1000)

    def has(self, position: str | None, text: str) -> bool:
        """Whether a message is one of these lines; each counts once. ``position``: None if unknown."""
        if not self._lines[text] or (position is not None and _place(position)[0] > self._until_ms):
            return False
        self._lines[text] -= 1
        return True


def shown_before(context: dg.OpExecutionContext, now: Callable[[], datetime]) -> ShownLines:
    """The lines that earlier attempts of a step have shown; none in its first attempt."""
    if context.retry_number == 0:
        return ShownLines()
    key = context.get_step_execution_context().step.key
    entries = context.instance.all_logs(context.run.run_id)
    lines = [one.user_message for one in entries if one.step_key == key and not one.is_dagster_event]
    return ShownLines(lines, now())


class LiveLog:
    """Passes messages to Dagster as if a single process had written them. Safe for use by two threads.

    Args:
        handler: The handler of the session.
        is_single: The flow is one job, so log lines need no name of a node.
        shown_before: The lines that are not shown again.

    Attributes:
        is_complete: The flow has completed; set before ``close``.
    """

    def __init__(self, handler: dg.PipesMessageHandler, *, is_single: bool, shown_before: ShownLines) -> None:
        self._handler, self._is_single, self._shown_before = handler, is_single, shown_before
        self._lock = threading.Lock()
        self._positions: dict[tuple[str, str], str] = {}
        self._exceptions: dict[str, Any] = {}
        self._is_opened = False
        self.is_complete = False

    def position(self, queue: str, job_id: str) -> str:
        """The position up to which the messages of a job were shown; empty for the start."""
        return self._positions.get((queue, job_id), "")

    def show(self, queue: str, job_id: str, node: str, page: Sequence[JobMessage]) -> None:
        """Show the log lines of a page that were not shown before."""
        with self._lock:
            shown = _place(self._positions.get((queue, job_id), ""))
            for one in page:
                if _place(one.id) > shown and (message := pipes.read(one.text)) is not None:
                    self._show(node, message, one.id)
            if _place(page[-1].id) > shown:
                self._positions[queue, job_id] = page[-1].id

    def log(self, node: str, message: PipesMessage) -> None:
        """Show a message that has no other source."""
        with self._lock:
            self._log(node, message, None)

    def report(self, message: PipesMessage) -> None:
        """Pass on a report of an asset or check."""
        with self._lock:
            self._handler.handle_message(message)

    def close(self) -> None:
        """Pass on the end; after a failure, with the last exception of the first failed node."""
        with self._lock:
            if self.is_complete and not self._is_opened:
                self._open(pipes.make("opened", {"extras": {}}))
            exception = None if self.is_complete else next(iter(self._exceptions.values()), None)
            if self._is_opened:
                self._handler.handle_message(
                    pipes.make("closed", {} if exception is None else {"exception": exception})
                )

    def _open(self, message: PipesMessage) -> None:
        self._is_opened = True
        self._handler.handle_message(message)

    def _show(self, node: str, message: PipesMessage, position: str) -> None:
        method, params = message["method"], message["params"] or {}
        if method == "opened" and not self._is_opened:
            self._open(message)
        elif method in pipes.LIVE:
            self._log(node, message, position)
        elif method == "closed":
            self._exceptions.pop(node, None)
            if exception := params.get("exception"):
                self._show_end(node, exception, position)

    def _show_end(self, node: str, exception: Mapping[str, Any], position: str) -> None:
        text = str(exception.get("message") or exception.get("name")).strip()
        is_signal = exception.get("name") in _SIGNALS
        if not is_signal:
            self._exceptions[node] = exception
        what, level = ("ended", "INFO") if is_signal else ("failed", "ERROR")
        line = pipes.make("log", {"message": f"an attempt {what}: {text}", "level": level})
        self._log(node, line, position)

    def _log(self, node: str, message: PipesMessage, position: str | None) -> None:
        params = dict(message["params"] or {})
        if message["method"] == "log":
            text = in_text(str(params.get("message")))
            params["message"] = text if self._is_single else f"{node}: {text}"
            if self._shown_before.has(position, params["message"]):
                return
        self._handler.handle_message(pipes.make(message["method"], params))


def pages(queue: Queue, job_id: str, after: str, patience: Patience) -> Iterator[list[JobMessage]]:
    """The messages of a job's attempts after a position, page by page."""

    def next_page() -> list[JobMessage]:
        return queue.messages(job_id, after=after or None, limit=PAGE)

    while page := patience(next_page):
        yield page
        after = page[-1].id


def _place(position: str) -> tuple[int, int]:
    milliseconds, _, number = position.partition("-")
    return int(milliseconds or 0), int(number or 0)


JOIN_SECONDS: Final = 30.0


class GlideMQMessageReader(dg.PipesMessageReader):
    """Shows the log of jobs while they run. Reports of assets and checks are read separately (``Reports``).

    Nothing changes on the server: after a kill of this process, the same messages can be read again.

    Args:
        client: The server.
        flow_id: The flow.
        poll_seconds: Time between reads of the running jobs.
        after_generation: Generations up to this one belong to earlier runs; their lines are not shown.
        is_single: The flow is one job.
        shown_before: The lines that are not shown again.
    """

    log: LiveLog

    def __init__(  # noqa: PLR0913  keyword-only
        self,
        client: Client,
        flow_id: str,
        *,
        poll_seconds: float,
        after_generation: int,
        is_single: bool,
        shown_before: ShownLines,
    ) -> None:
        self._client, self._flow_id, self._is_single = client, flow_id, is_single
        self._poll_seconds, self._after_generation = poll_seconds, after_generation
        self._shown_before = shown_before

    @property
    def expected_writer_count(self) -> int:
        """One: the end is passed on once, for the whole flow."""
        return 1

    @contextlib.contextmanager
    def read_messages(self, handler: dg.PipesMessageHandler) -> Iterator[PipesParams]:
        """Follow the running jobs until the session is closed."""
        self.log = LiveLog(handler, is_single=self._is_single, shown_before=self._shown_before)
        closing = threading.Event()
        thread = threading.Thread(
            target=self._follow, args=(handler, closing), daemon=True, name="glidemq-pipes"
        )
        thread.start()
        try:
            yield {}
        finally:
            closing.set()
            thread.join(JOIN_SECONDS)
            self.log.close()

    def no_messages_debug_text(self) -> str:
        """Advice if there are no messages."""
        return (
            f"The jobs of flow {self._flow_id} have written none. A handler reports by open_pipes(ctx) of "
            "glidemq_orchestrate.pipes."
        )

    def _follow(self, handler: dg.PipesMessageHandler, closing: threading.Event) -> None:
        pause = self._poll_seconds
        try:
            while not closing.wait(pause):
                began = time.monotonic()
                with contextlib.suppress(GlideMQError):
                    flow = self._client.flows.get(self._flow_id)
                    running = flow.nodes() if flow.generation > self._after_generation else []
                    for node in running:
                        if node.state is JobState.ACTIVE:
                            self._show_new(node.queue, node.job_id, node.name)
                # Large flows take long to read: spend at most a third of the time on it.
                pause = max(self._poll_seconds, 2 * (time.monotonic() - began))
        except Exception:
            handler.report_pipes_framework_exception("the log of running jobs", sys.exc_info())
            raise

    def _show_new(self, queue: str, job_id: str, node: str) -> None:
        after = self.log.position(queue, job_id)
        # The step itself survives outages, and shows the lines that are missed here.
        for page in pages(self._client.queue(queue), job_id, after, NO_PATIENCE):
            self.log.show(queue, job_id, node, page)
