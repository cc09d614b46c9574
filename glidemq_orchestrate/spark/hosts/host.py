"""A session host: holds one Spark session, and runs the steps that its worker sends, each in a thread.

It ends with its worker, also when that is killed, and its JVM ends with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from glidemq_orchestrate.codec import JsonLike
from glidemq_orchestrate.errors import LeaseLost
from glidemq_orchestrate.flows.pattern import map_over
from glidemq_orchestrate.flows.spec import FlowNode
from glidemq_orchestrate.jobs.usage import Usage
from glidemq_orchestrate.spark.back_ends import engine_for
from glidemq_orchestrate.spark.engine import Engine, SessionGone
from glidemq_orchestrate.spark.hosts.wire import Opening, Outcome, Wire
from glidemq_orchestrate.spark.published.acceptance import accepted, make_versions
from glidemq_orchestrate.spark.published.version import Publication
from glidemq_orchestrate.spark.step import run_step
from glidemq_orchestrate.worker.child import pack, unpack
from glidemq_orchestrate.worker.context import Cancelled, Context

MOST_THREADS: Final = 10_000


def main() -> None:
    """Serve the worker whose descriptor is the argument."""
    wire = Wire(int(sys.argv[1]))
    opening = wire.receive()
    if opening is None:
        return
    given: Opening = opening.value
    sys.path[:] = given.path
    _log_to(wire, given.levels)
    engine = engine_for(given.settings)
    try:
        engine.start()
    except BaseException as exc:  # noqa: BLE001  whatever it is, the worker reports it
        with suppress(OSError):
            wire.send("raised", opening.number, pack(exc))
        engine.stop()
        return
    wire.send("ready", opening.number)
    _Host(wire, engine).serve()
    with suppress(Exception):
        engine.stop()
    os._exit(0)  # threads of steps may still be there: nobody waits for them


class _Host:
    """The steps of this process."""

    def __init__(self, wire: Wire, engine: Engine) -> None:
        self._wire, self._engine = wire, engine
        self._steps: dict[int, _Speaker] = {}
        self._threads = ThreadPoolExecutor(MOST_THREADS, "step")

    def serve(self) -> None:
        """Until the worker ends the connection."""
        while (message := self._wire.receive()) is not None and message.kind != "stop":
            speaker = self._steps.get(message.number)
            if message.kind == "step":
                speaker = self._steps[message.number] = _Speaker(self._wire, message.number)
                self._threads.submit(self._run, message.number, speaker, *message.value)
            elif message.kind == "publish":
                self._threads.submit(self._publish, message.number, *message.value)
            elif speaker is not None and message.kind == "cancel":
                speaker.cancelled.set()
            elif speaker is not None:
                speaker.answers.put(message.value)

    def _run(self, number: int, speaker: _Speaker, job: Mapping[str, Any], has_flow: bool) -> None:  # noqa: FBT001
        kind: str
        value: Any
        flow = _Flow(speaker) if has_flow else None
        ctx = Context(**job, speaker=speaker, cancelled=speaker.cancelled, flow=flow)
        try:
            kind, value = "done", run_step(self._engine, ctx)
        except SessionGone as exc:
            kind, value = "lost", str(exc)
        except BaseException as exc:  # noqa: BLE001  a step harms its job only
            kind, value = "raised", pack(exc)
        published = accepted.take((ctx.queue, ctx.job_id, ctx.epoch))
        if kind == "done":
            value = Outcome(value, published)
        speaker.end()
        del self._steps[number]
        self._say(kind, number, value)

    def _publish(self, number: int, places: Sequence[Publication], epoch: int | None) -> None:
        try:
            make_versions(places, self._engine.session(), epoch)
        except BaseException as exc:  # noqa: BLE001  whatever the store raises
            self._say("raised", number, pack(exc))
        else:
            self._say("done", number, Outcome(None, []))

    def _say(self, kind: str, number: int, value: Any) -> None:
        with suppress(OSError):  # the worker has ended, and so does this process
            self._wire.send(kind, number, value)


class _Speaker:
    """What a step asks of its worker, each answered before it goes on; see ``worker.context.Speaker``."""

    def __init__(self, wire: Wire, number: int) -> None:
        self.cancelled = Cancelled()
        self.answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._wire, self._number = wire, number
        self._asking, self._is_over = threading.Lock(), False

    def ask(self, method: str, *given: Any) -> None:
        """Let the worker call a method of its context.

        Raises:
            LeaseLost: The step has ended.
            Exception: What the worker's method raises.
        """
        with self._asking:
            if self._is_over:
                raise LeaseLost("this attempt has ended")
            self._wire.send("call", self._number, (method, given))
            answer = self.answers.get()
        if answer is not None:
            raise unpack(answer)

    def end(self) -> None:
        """The step has returned; a thread that outlives it is told so."""
        with self._asking:
            self._is_over = True

    def progress(self, value: JsonLike) -> None:
        self.ask("progress", value)

    def log(self, line: str) -> None:
        self.ask("log", line)

    def output(self, fields: Mapping[str, str]) -> None:
        self.ask("output", dict(fields))

    def report_usage(self, usage: Usage) -> None:
        self.ask("report_usage", usage)

    def write_message(self, text: str) -> None:
        self.ask("write_message", text)

    def check_owner(self) -> None:
        self.ask("check_owner")

    async def check_owner_async(self) -> None:
        await asyncio.to_thread(self.check_owner)


class _Flow:
    """The flow of the step's node; see ``worker.running_flow.RunningFlow``."""

    def __init__(self, speaker: _Speaker) -> None:
        self._speaker = speaker

    def add_nodes(self, nodes: Iterable[FlowNode], *, before: Sequence[str] = ()) -> None:
        self._speaker.ask("add_nodes", list(nodes), tuple(before))

    async def add_nodes_async(self, nodes: Iterable[FlowNode], *, before: Sequence[str] = ()) -> None:
        await asyncio.to_thread(self.add_nodes, nodes, before=before)

    def map_over(
        self,
        template: FlowNode,
        items: Iterable[JsonLike],
        *,
        collect: FlowNode | None = None,
        before: Sequence[str] = (),
    ) -> None:
        if nodes := map_over(template, items, collect=collect):
            self.add_nodes(nodes, before=before)

    async def map_over_async(
        self,
        template: FlowNode,
        items: Iterable[JsonLike],
        *,
        collect: FlowNode | None = None,
        before: Sequence[str] = (),
    ) -> None:
        if nodes := map_over(template, items, collect=collect):
            await self.add_nodes_async(nodes, before=before)


class _ToWorker(logging.Handler):
    """Sends what is logged here to the loggers of the worker."""

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire

    def emit(self, record: logging.LogRecord) -> None:
        told = logging.makeLogRecord(record.__dict__)
        told.msg, told.args = record.getMessage(), None
        if record.exc_info and not record.exc_text:
            told.exc_text = logging.Formatter().formatException(record.exc_info)
        told.exc_info = None
        with suppress(Exception):  # the worker has ended, or an extra cannot travel
            self._wire.send("logged", 0, {name: _plain(value) for name, value in vars(told).items()})


def _plain(value: object) -> object:
    """A value that surely arrives, whatever an ``extra`` holds."""
    return value if value is None or isinstance(value, str | int | float) else repr(value)


def _log_to(wire: Wire, levels: Mapping[str, int]) -> None:
    logging.getLogger().addHandler(_ToWorker(wire))
    for name, level in {"py4j": logging.WARNING, **levels}.items():  # it tells of each connection
        logging.getLogger(name or None).setLevel(level)


if __name__ == "__main__":
    main()
