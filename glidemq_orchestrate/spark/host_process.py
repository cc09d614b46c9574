"""The process of a session host: holds one Spark session, and runs the steps that its worker sends.

Each step has its own thread, because libraries keep settings of a step per thread, such as the precision of
``decimal``. A host ends with its worker, even if that is killed, and its JVM ends with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from logging.handlers import QueueHandler
from typing import Any, Final

from glidemq_orchestrate.errors import LeaseLost
from glidemq_orchestrate.flows.spec import FlowNode
from glidemq_orchestrate.jobs.usage import Usage
from glidemq_orchestrate.spark.failures import SessionClosed, SessionGone, SessionUnfit
from glidemq_orchestrate.spark.hosts.wire import Message, Opening, StepOutcome, Wire
from glidemq_orchestrate.spark.published.acceptance import accepted, make_versions
from glidemq_orchestrate.spark.published.locations.version import Publication
from glidemq_orchestrate.spark.sessions.engines import Engine, engine_for
from glidemq_orchestrate.spark.steps.run import run_step
from glidemq_orchestrate.wire.codec import JsonLike, encode
from glidemq_orchestrate.worker.handlers.context import NO_FLOW, Cancelled, Context, FlowOfNode, Reporter
from glidemq_orchestrate.worker.handlers.tracebacks import pack, unpack

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def main() -> None:
    """Serve the worker whose descriptor is the first argument."""
    wire = Wire(socket.socket(fileno=int(sys.argv[1])))
    os.register_at_fork(after_in_child=wire.after_fork)
    message = wire.receive()
    if message is None:
        return
    opening: Opening = message.value
    sys.path[:] = opening.path
    log = _Log(wire, opening.levels)
    engine = engine_for(opening.settings)
    try:
        engine.start()
    except BaseException as exc:  # noqa: BLE001  the worker reports it
        log.stop()
        with suppress(OSError):
            if _is_of_a_killed_jvm(exc):
                wire.send("lost", message.number, ("the JVM of the Spark session ended", ""))
            else:
                wire.send("raised", message.number, pack(exc))
        engine.stop()
        return
    # A host ends with its worker, which may still wait for its steps. Programs that the host executes would
    # inherit SIG_IGN; forked children get the default handlers back.
    for number in _SIGNALS:  # after PySpark, which has its own handler
        signal.signal(number, lambda *_: None)
    os.register_at_fork(after_in_child=_default_signals)
    with suppress(OSError):
        wire.send("done", message.number)
    _Host(wire, engine, log).serve()
    with suppress(Exception):
        engine.stop()
        log.stop()
    os._exit(0)  # threads of steps may still run: nothing waits for them


def _is_of_a_killed_jvm(exc: BaseException) -> bool:
    if (protocol := sys.modules.get("py4j.protocol")) and isinstance(exc, protocol.Py4JNetworkError):
        return True
    return isinstance(exc, ConnectionError | EOFError)


class _Host:
    """The steps of this process."""

    def __init__(self, wire: Wire, engine: Engine, log: _Log) -> None:
        self._wire, self._engine, self._log, self._owner = wire, engine, log, os.getpid()
        self._steps: dict[int, _Reporter] = {}

    def serve(self) -> None:
        """Serve until the worker ends the connection."""
        while (message := self._wire.receive()) is not None:
            reporter = self._steps.get(message.number)
            if message.kind == "step":
                reporter = self._steps[message.number] = _Reporter(self._wire, message.number)
                self._begin("step", self._run, message, reporter)
            elif message.kind in ("publish", "probe"):
                self._begin(
                    message.kind, self._publish if message.kind == "publish" else self._probe, message
                )
            elif reporter is not None and message.kind == "cancel":
                reporter.cancelled.set()
            elif reporter is not None:
                reporter.answers.put(message.value)

    def _begin(self, name: str, function: Callable[..., None], *given: Any) -> None:
        threading.Thread(target=function, args=given, name=f"{name}-{given[0].number}", daemon=True).start()

    def _run(self, message: Message, reporter: _Reporter) -> None:
        kind: str
        value: Any
        self._log.restore()
        try:
            kind, value = "done", self._outcome(message, reporter)
        except SessionClosed as exc:
            kind, value = "closed", (str(exc), exc.explanation)
        except SessionUnfit as exc:
            kind, value = "unfit", (str(exc), exc.explanation)
        except SessionGone as exc:
            kind, value = "lost", (str(exc), exc.explanation)
        except BaseException as exc:  # noqa: BLE001  a step affects its own job only
            kind, value = "raised", pack(exc)
        if os.getpid() != self._owner:  # a step has forked, and the copy returned here
            os._exit(1)
        reporter.end()
        self._log.drain()
        del self._steps[message.number]
        self._send(kind, message.number, value)

    def _outcome(self, message: Message, reporter: _Reporter) -> StepOutcome:
        job, has_flow = message.value
        flow = _Flow(reporter) if has_flow else NO_FLOW
        ctx = Context(**job, reporter=reporter, cancelled=reporter.cancelled, flow=flow)
        published = list[Publication]()
        try:
            result = encode(run_step(self._engine.step, ctx), where=f"result of job {ctx.name}")
        finally:
            published += accepted.take((ctx.queue, ctx.job_id, ctx.epoch))
        return StepOutcome(result, published)

    def _publish(self, message: Message) -> None:
        try:
            publications, epoch = message.value
            settled = make_versions(publications, self._engine.session(), epoch)
        except BaseException as exc:  # noqa: BLE001  any class of the store
            self._send("raised", message.number, pack(exc))
        else:
            self._send("done", message.number, settled)

    def _probe(self, message: Message) -> None:
        """Report whether the session replies; if it hangs, the worker waits."""
        kind = "done" if self._engine.is_alive() else "lost"
        self._send(kind, message.number, ("the Spark session has ended", ""))

    def _send(self, kind: str, number: int, value: Any) -> None:
        with suppress(OSError):  # the worker has ended, and so does this process
            self._wire.send(kind, number, value)


class _Reporter(Reporter):
    """The calls of a step to its worker; each waits for its answer. See ``Reporter``."""

    def __init__(self, wire: Wire, number: int) -> None:
        self.cancelled = Cancelled()
        self.answers: queue.SimpleQueue[tuple[bytes | None, Any]] = queue.SimpleQueue()
        self._wire, self._number, self._owner = wire, number, os.getpid()
        self._calling, self._is_over, self._caller = threading.Lock(), False, 0

    def call(self, method: str, *given: Any) -> Any:
        """Make the worker call a method of its context. Returns what that returns.

        Raises:
            LeaseLost: The step has ended, or this is a forked copy of its process.
            RuntimeError: The call is recursive.
            Exception: What the worker's method raises.
        """
        if os.getpid() != self._owner:
            raise LeaseLost("a process that a step has forked cannot report for it")
        if self._caller == threading.get_ident():  # a finalizer that logs, for example
            raise RuntimeError("a step cannot report while it reports")
        with self._calling:
            if self._is_over:
                raise LeaseLost("this attempt has ended")
            self._caller = threading.get_ident()
            try:
                self._wire.send("call", self._number, (method, given))
                error, returned = self.answers.get()
            finally:
                self._caller = 0
        if error is not None:
            raise unpack(error)
        return returned

    def end(self) -> None:
        """Refuse further calls: the step has returned, but a thread may outlive it."""
        with self._calling:
            self._is_over = True

    def progress(self, value: JsonLike) -> None:
        self.call("progress", encode(value, where="progress"))

    def log(self, line: str) -> None:
        self.call("log", str(line))

    def output(self, fields: Mapping[str, str]) -> None:
        self.call("output", encode(dict(fields), where="output"))

    def report_usage(self, usage: Usage) -> None:
        self.call("report_usage", usage)

    def write_message(self, text: str) -> None:
        self.call("write_message", str(text))

    def check_owner(self) -> None:
        self.call("check_owner")

    def note_published(self, lines: Sequence[str]) -> None:
        self.call("note_published", list(lines))

    async def check_owner_async(self) -> None:
        await asyncio.to_thread(self.check_owner)


class _Flow(FlowOfNode):
    """The flow of the step's node; see ``worker.contexts.RunningFlow``."""

    def __init__(self, reporter: _Reporter) -> None:
        self._reporter = reporter

    def add_nodes(self, nodes: Iterable[FlowNode], *, before: Sequence[str] = ()) -> None:
        self._reporter.call("add_nodes", list(nodes), tuple(before))

    async def add_nodes_async(self, nodes: Iterable[FlowNode], *, before: Sequence[str] = ()) -> None:
        await asyncio.to_thread(self.add_nodes, nodes, before=before)

    def array_results(self, name: str, start: int = 0, stop: int | None = None) -> Mapping[int, Any]:
        found: dict[int, Any] = self._reporter.call("array_results", name, start, stop)
        return found

    async def array_results_async(
        self, name: str, start: int = 0, stop: int | None = None
    ) -> Mapping[int, Any]:
        return await asyncio.to_thread(self.array_results, name, start, stop)


_OWNER: Final = os.getpid()


class _Log(QueueHandler):
    """Logs to the worker in a thread, because the caller may be in the middle of a message to it."""

    def __init__(self, wire: Wire, levels: Mapping[str, int]) -> None:
        super().__init__(queue.SimpleQueue())
        self._wire, self._levels = wire, {"": logging.WARNING, **levels}
        for name, level in {"py4j": logging.WARNING, **levels}.items():  # it logs each connection
            logging.getLogger(name or None).setLevel(level)
        self._sender = threading.Thread(target=self._send_all, name="log", daemon=True)
        self._sender.start()
        self.restore()

    def restore(self) -> None:
        """Undo a step's changes to logging: the worker's level applies, and all records go to it."""
        root = logging.getLogger()
        root.setLevel(self._levels[""])
        logging.disable(logging.NOTSET)
        if self not in root.handlers:
            root.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.process == _OWNER:  # a process that a step has forked has no sending thread
            super().emit(record)

    def prepare(self, record: logging.LogRecord) -> dict[str, object]:
        """The fields of a record, in a form that can be pickled, with the traceback of an error as text."""
        fields = {**vars(record), "msg": record.getMessage(), "args": None, "exc_info": None}
        if record.exc_info and not record.exc_text:
            fields["exc_text"] = logging.Formatter().formatException(record.exc_info)
        plain = (type(None), str, int, float, bool)
        return {name: value if type(value) in plain else str(value) for name, value in fields.items()}

    def drain(self) -> None:
        """Wait until the records so far are sent: those of a step reach the worker before its outcome."""
        sent = threading.Event()
        self.queue.put_nowait(sent)
        sent.wait()

    def stop(self) -> None:
        """Send the remaining records."""
        self.queue.put_nowait(None)
        self._sender.join()

    def _send_all(self) -> None:
        while (item := self.queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
                continue
            with suppress(OSError):  # the worker has ended
                self._wire.send("logged", 0, item)


def _default_signals() -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
