"""A server with something of everything, which can be put back as it was after each case."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

from redis import Redis

from glidemq_orchestrate import (
    Broadcast,
    Context,
    EmbeddedServer,
    FlowNode,
    FlowProducer,
    FlowSpec,
    Handlers,
    JobOptions,
    Ordering,
    Queue,
    Schedule,
    Suspend,
    Worker,
)
from glidemq_orchestrate.clients import Schedules
from glidemq_orchestrate.jobs.usage import Usage
from glidemq_orchestrate.testing import RunningWorker
from tests.fuzz.secret import ENVIRONMENT, PASSWORD, PASSWORD_END, PAYLOAD
from tests.server.lua import keyspace

DATA: Final = {"token": PAYLOAD}
HOUR: Final = timedelta(hours=1)
LONG: Final = timedelta(seconds=60)
USER: Final = "fuzz"
VARIABLE: Final = "GLIDEMQ_FUZZ_SECRET"


class World:
    """One database: ``etl`` with jobs in every state, flows ``f1`` (ended) and ``f2`` (open), and more."""

    def __init__(self, port: int, url: str) -> None:
        self.url = url
        self.raw: Any = Redis(port=port)
        self.text: Any = Redis(port=port, decode_responses=True, encoding_errors="surrogateescape")
        self._saved: dict[bytes, bytes] = {}
        self.base: dict[str, Any] = {}

    def save(self) -> None:
        """Keep what is there now; ``restore`` brings it back."""
        keys = self.raw.keys("*")
        pipe = self.raw.pipeline(transaction=False)
        for key in keys:
            pipe.dump(key)
        self._saved = dict(zip(keys, pipe.execute(), strict=True))
        self.base = self.dump()

    def restore(self) -> None:
        """Put everything back as it was."""
        pipe = self.raw.pipeline(transaction=False)
        pipe.flushdb()
        for key, value in self._saved.items():
            pipe.restore(key, 0, value)
        pipe.execute()

    def dump(self) -> dict[str, Any]:
        """Everything in the database, in a form that can be compared."""
        return keyspace.dump(self.text)

    def close(self) -> None:
        """Close its connections."""
        self.raw.close()
        self.text.close()


def work(ctx: Context) -> Any:
    """Ends as the data says."""
    match ctx.data:
        case {"end": "fail"}:
            raise ValueError("it fails")
        case {"end": "suspend"}:
            raise Suspend("a signal", HOUR)
        case _:
            return {"secret": PAYLOAD}


@contextmanager
def world() -> Iterator[World]:
    """A server of its own with a password, populated."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = ENVIRONMENT
    try:
        with EmbeddedServer() as server:
            port = int(server.url.rpartition(":")[2])
            password = f"{PASSWORD}{PASSWORD_END}"
            made = World(port, f"valkey://{USER}:{password}@127.0.0.1:{port}")
            made.raw.execute_command("ACL", "SETUSER", USER, "on", f">{password}", "~*", "&*", "+@all")
            _populate(made.url)
            made.save()
            yield made
            made.close()
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


def _populate(url: str) -> None:
    handlers = Handlers()
    handlers.handler("work")(work)
    nodes = [
        FlowNode("a", queue="etl", job="work", data=DATA),
        FlowNode("b", queue="etl", job="work", data=DATA, after=["a"]),
    ]
    open_nodes = [
        FlowNode("a", queue="idle", job="work", data=DATA),
        FlowNode("b", queue="idle", job="work", after=["a"]),
    ]
    with Queue("etl", url) as queue, FlowProducer(url) as flows, Schedules("etl", url) as schedulers:
        queue.set_dead_letter_queue("dead")
        running = RunningWorker(Worker(url, queues=["etl"], handlers=handlers))
        running.start()
        queue.add_and_wait("work", DATA, options=JobOptions(job_id="done"), timeout=LONG)
        queue.add("work", DATA | {"end": "fail"}, options=JobOptions(job_id="failed"))
        queue.add("work", DATA | {"end": "suspend"}, options=JobOptions(job_id="suspended"))
        queue.add_and_wait("work", DATA, options=JobOptions(ordering=Ordering("k")), timeout=LONG)
        flows.submit(FlowSpec("nightly", nodes, labels={"dag": "x"}), flow_id="f1").wait(timeout=LONG)
        while not (queue.dead_letters() and queue.get_jobs("suspended")):
            queue.add_and_wait("work", None, timeout=LONG)  # what is awaited is done beside it
        running.stop()
        flows.submit(FlowSpec("open", open_nodes), flow_id="f2")
        queue.add("work", DATA, options=JobOptions(job_id="waiting"))
        queue.add("work", DATA, options=JobOptions(job_id="later", delay=HOUR))
        queue.add("work", DATA, options=JobOptions(job_id="first", priority=3))
        queue.add("work", DATA, options=JobOptions(job_id="lifo", lifo=True))
        queue.add_log("done", "a line")
        queue.set_progress("done", {"percent": 5})
        queue.report_usage("done", Usage("m", tokens={"in": 1}))
        queue.add_output("done", {"text": "x"})
        schedulers.upsert("s1", Schedule(every=HOUR))
        schedulers.upsert("s2", Schedule(cron="0 0 6 * * *"))
    with Broadcast("news", url) as news:
        news.publish("a.b", DATA)
