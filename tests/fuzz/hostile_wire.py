"""A program: read and run what a hostile neighbour may write, and print what the interpreter did meanwhile.

An audit hook sees every import, compilation, unpickling, new process and connection; it cannot be removed, so
this runs in a process of its own.
"""

from __future__ import annotations

import itertools
import json
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final

from redis import Redis

from glidemq_orchestrate import (
    Client,
    EventReader,
    FlowNode,
    FlowProducer,
    FlowSpec,
    JobState,
    Queue,
    Schedule,
    Worker,
)
from glidemq_orchestrate.clients import Schedules
from glidemq_orchestrate.clients.schedules import JobTemplate
from glidemq_orchestrate.errors import GlideMQError, JobFailed
from tests.server import process_handlers

CANARY: Final = "hostile_canary"
HOSTILE: Final = (
    f"cos\nsystem\n(S'touch {CANARY}'\ntR.",  # a pickle
    f"!!python/object/apply:os.system ['touch {CANARY}']",
    f"__import__('os').system('touch {CANARY}')",
    f"{CANARY}.module:function",
    f"../../../{CANARY}",
    f"valkey://user@127.0.0.1:1/{CANARY}",
    json.dumps({"py/object": f"{CANARY}.Class", "py/reduce": [{"py/function": "os.system"}, [CANARY]]}),
    json.dumps({"gmo": {"flow": f"../{CANARY}", "node": f"{CANARY}:x"}}),
    json.dumps([{"name": f"{CANARY}:run", "queue": f"{CANARY}", "data": {"callable": f"{CANARY}:run"}}]),
)
WATCHED: Final = """
import compile exec pickle.find_class os.system os.exec os.fork os.forkpty os.posix_spawn os.spawn
subprocess.Popen ctypes.dlopen socket.connect open code.__new__ function.__new__ shutil.rmtree os.remove
""".split()  # noqa: SIM905
INSTALLED: Final = (sys.base_prefix, sys.prefix)
TOUCHES: Final = ("import", "open")  # imports and files of our own happen: only those that were named count
SECOND: Final = timedelta(seconds=1)
LONG: Final = timedelta(seconds=30)


class Audit:
    """What happened, without what the package does by itself."""

    def __init__(self, port: int) -> None:
        self.port, self.seen, self.is_on = port, set[str](), False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_on or event not in WATCHED:
            return
        text = repr(arguments[:2])
        if event in TOUCHES and CANARY not in text:
            return
        if event == "exec" and arguments[0].co_filename.startswith(INSTALLED):
            return  # a module of the standard library or of a package, on first use
        if event == "socket.connect" and arguments[1] == ("127.0.0.1", self.port):
            return
        self.seen.add(f"{event} {text[:200]}")


def build(url: str) -> None:
    """One of everything that is stored."""
    worker = Worker(url, queues=["etl"], concurrency=4)
    worker.handler("work")(lambda ctx: ctx.data)
    worker.handler("refuse", process=True)(process_handlers.refuse_with_data)
    with FlowProducer(url) as flows, Queue("etl", url) as queue, Schedules("etl", url) as schedulers:
        with worker.running():
            nodes = [
                FlowNode("a", queue="etl", job="work", data=1),
                FlowNode("b", queue="etl", job="work", after=["a"]),
            ]
            flows.submit(FlowSpec("n", nodes), flow_id="done").result(timeout=LONG)
            with suppress(GlideMQError):
                queue.add_and_wait("refuse", "x", timeout=LONG)
            again = Worker(url, queues=["etl"])
            again.handler("other")(lambda ctx: None)
            with again.running():
                pass
        flows.submit(FlowSpec("n", nodes), flow_id="waits")
        queue.add("work", {"a": 1})
        schedulers.upsert("often", Schedule(every=LONG), JobTemplate("work", {"a": 1}))
        schedulers.upsert("ours", Schedule(cron="0 0 2 * * *", catch_up="last"), JobTemplate("work"))


class Reader:
    """Reads everything that is stored."""

    def __init__(self, url: str) -> None:
        self.flows, self.queue, self.queues = FlowProducer(url), Queue("etl", url), Client(url)
        self.schedulers, self.url = Schedules("etl", url), url

    def read_all(self) -> None:
        """Anything but an error of ours ends the program."""
        for flow_id in ("done", "waits"):
            self._try(partial(self._read_flow, flow_id))
            self._try(partial(self._read_nodes, flow_id))
        for state in (JobState.WAITING, JobState.COMPLETED, JobState.FAILED, JobState.WAITING_CHILDREN):
            self._try(partial(self.queue.get_jobs, state))
        for ask in (self.flows.list, self.queue.workers, self.schedulers.list, self.queues.queues):
            self._try(ask)
        with EventReader("etl", self.url, position="0-0") as events:
            self._try(events.read)

    def _read_flow(self, flow_id: str) -> None:
        self.flows.get(flow_id).outcome()

    def _read_nodes(self, flow_id: str) -> None:
        self.flows.get(flow_id).nodes()

    def _try(self, ask: Callable[[], Any]) -> None:
        with suppress(GlideMQError):
            ask()

    def close(self) -> None:
        for client in (self.flows, self.queue, self.queues, self.schedulers):
            client.close()


def poisons(client: Any) -> Iterator[Callable[[], None]]:
    """Each writes a hostile text in one place; the one before was undone."""
    turn = itertools.cycle(HOSTILE)
    for key in sorted(client.scan_iter("*")):
        kind = client.type(key)
        if kind == "hash":
            before = client.hgetall(key)
            for number in range(0, len(before), 3):  # an unreadable field may hide what others would do
                some = list(before)[number : number + 3]
                yield partial(client.hset, key, mapping={field: next(turn) for field in some})
                client.hset(key, mapping=before)
            yield partial(client.hset, key, mapping=dict.fromkeys(before, next(turn)))
            client.hset(key, mapping=before)
        elif kind == "string":
            value = client.get(key)
            yield partial(client.set, key, next(turn))
            client.set(key, value)
        elif kind == "stream":
            for text in HOSTILE:
                yield partial(
                    client.xadd, key, {"event": text, "jobId": text, "data": text, "returnvalue": text}
                )


def serve(url: str) -> None:
    """Jobs whose names and data are hostile, in all kinds of handlers."""
    worker = Worker(url, queues=["mine"], concurrency=4, allow_import=["tests"])
    worker.handler("work")(lambda ctx: ctx.data)
    worker.handler("refuse", process=True)(process_handlers.refuse_with_data)
    with Queue("mine", url) as queue, FlowProducer(url) as flows, worker.running():
        for number, text in enumerate(HOSTILE):
            assert queue.add_and_wait("work", text, timeout=LONG) == text
            assert queue.add_and_wait("work", {text: [text]}, timeout=LONG) == {text: [text]}
            nodes = [
                FlowNode("a", queue="mine", job="work", data=text),
                FlowNode("b", queue="mine", job="work", after=["a"]),
            ]
            flows.submit(FlowSpec(text, nodes), flow_id=f"hostile-{number}").result(timeout=LONG)
            with suppress(JobFailed):
                queue.add_and_wait("refuse", text, timeout=LONG)
            queue.add(text, text)


def main() -> None:
    url = sys.argv[1]
    port = int(url.rpartition(":")[2].partition("/")[0])
    build(url)
    reader = Reader(url)
    reader.read_all()
    serve(url)  # what is imported on first use is imported now
    audit = Audit(port)
    sys.addaudithook(audit)
    with Redis.from_url(url.replace("valkey", "redis"), decode_responses=True) as client:
        audit.is_on = True
        tried = 0
        for write in poisons(client):
            write()
            reader.read_all()
            tried += 1
    reader.close()
    serve(url)
    seen, audit.seen = audit.seen, set()
    pickle.loads(pickle.dumps(timedelta))
    eval("1 + 1")
    audit.is_on = False
    sys.stdout.write(json.dumps({"tried": tried, "seen": sorted(seen), "control": sorted(audit.seen)}))


if __name__ == "__main__":
    main()
