"""What another client may have stored: workers go on, sound jobs complete, listings show what is broken."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple

from hypothesis import strategies as st

from glidemq_orchestrate import (
    EventReader,
    FlowNode,
    FlowProducer,
    FlowSpec,
    Handlers,
    JobOptions,
    JobState,
    Ordering,
    Queue,
    Worker,
)
from glidemq_orchestrate.attempts import supervision as supervise
from glidemq_orchestrate.attempts.supervision import Supervision
from glidemq_orchestrate.clients import Schedules
from glidemq_orchestrate.clients.servers import examine
from glidemq_orchestrate.errors import WaitTimeout
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.io.sync import SyncDriver
from glidemq_orchestrate.schedules import ops as scheduler_ops
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.testing import RunningWorker
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.fuzz.entry import Entry, Target, outcome
from tests.fuzz.secret import Listener, listening
from tests.fuzz.test_fuzzed_wire import (
    ENTRIES,
    ENTRY_FIELDS,
    EVENT_FIELDS,
    FLOW_FIELDS,
    JOB_FIELDS,
    VALUES,
)
from tests.fuzz.violation import Violation
from tests.fuzz.world import DATA, World, world

P: Final = b"glide:{good}:"
SECOND: Final = timedelta(seconds=1)
LONG: Final = timedelta(seconds=20)
MARK: Final = b"odd"
KINDS: Final = [
    JobOptions(),
    JobOptions(lifo=True),
    JobOptions(priority=3),
    JobOptions(attempts=2, delay=SECOND / 100),
    JobOptions(ordering=Ordering("k")),
]
_QUEUE_KEYS: Final = """
id meta stream scheduled priority lifo list-active suspended ratelimited completed failed events ordering
dedup metrics:completed metrics:failed schedulers schedulers:lock:__tick__ gmo:schedulers
gmo:schedulers:due gmo:schedulers:last gmo:schedulers:paused
gmo:due gmo:owners gmo:todo gmo:staging gmo:letters gmo:portable
gmo:portable:leaving gmo:portable:expiring gmo:published gmo:flows gmo:beside
gmo:workers gmo:supervisor gmo:supervised gmo:list-held gmo:large-events gmo:flows:state:running group:k
groupq:k budget:1 usage:1 w:x job:1 job:1:x deps:1 parents:1 log:1
"""
QUEUE_KEYS: Final = st.sampled_from(_QUEUE_KEYS.split())
FLOW_KEYS: Final = st.sampled_from(
    ["", ":nodes", ":order", ":open", ":ready", ":roots", ":failed", ":blocked", ":notifying"]
)
MEMBERS: Final = VALUES.filter(bool)
SCORES: Final = st.sampled_from([0.0, 1.0, -1.0, 1e300, float("inf"), float("-inf"), 2.0**53])


class Write(NamedTuple):
    """One write of somebody else: a key, what it becomes, and with what."""

    key: bytes
    kind: str
    values: list[bytes]
    score: float = 0.0

    def apply(self, raw: Any) -> None:
        """Write it; a key of another type is replaced."""
        if self.kind in ("string", "gone") or raw.type(self.key).decode() not in (self.kind, "none"):
            raw.delete(self.key)
        first, *rest = self.values
        match self.kind:
            case "string":
                raw.set(self.key, first)
            case "list":
                raw.rpush(self.key, *self.values)
            case "set":
                raw.sadd(self.key, *self.values)
            case "zset":
                raw.zadd(self.key, dict.fromkeys(self.values, self.score))
            case "hash":
                raw.hset(self.key, first, b"".join(rest))
            case "stream":
                raw.xadd(self.key, {first: b"".join(rest)})


class Damage(NamedTuple):
    """All that is stored in one case."""

    jobs: list[dict[bytes, bytes]]
    options: int
    flow: dict[bytes, bytes]
    node: dict[bytes, bytes]
    row: bytes
    writes: list[Write]
    flow_writes: list[Write]
    events: list[dict[bytes, bytes]]
    entries: dict[bytes, bytes]


def _writes(keys: st.SearchStrategy[bytes]) -> st.SearchStrategy[Write]:
    kinds = st.sampled_from(["string", "list", "set", "zset", "hash", "stream", "gone"])
    return st.builds(Write, keys, kinds, st.lists(MEMBERS, min_size=2, max_size=3), SCORES)


def _fields(names: st.SearchStrategy[str], most: int = 4) -> st.SearchStrategy[dict[bytes, bytes]]:
    return st.dictionaries(names.map(str.encode) | MEMBERS, VALUES, max_size=most)


SCHEDULES: Final = (
    ENTRIES.map(str.encode)
    | VALUES
    | st.dictionaries(ENTRY_FIELDS, st.integers()).map(lambda entry: json.dumps(entry).encode())
)
DAMAGE: Final = st.builds(
    Damage,
    st.lists(_fields(JOB_FIELDS), max_size=3),
    st.integers(0, len(KINDS) - 1),
    _fields(FLOW_FIELDS),
    _fields(JOB_FIELDS),
    VALUES,
    st.lists(_writes(QUEUE_KEYS.map(lambda name: b"glide:{bad}:" + name.encode())), max_size=3),
    st.lists(_writes(FLOW_KEYS.map(lambda name: P + b"gmo:flow:odd" + name.encode())), max_size=1),
    st.lists(st.dictionaries(EVENT_FIELDS, VALUES, min_size=1, max_size=3), max_size=2),
    st.dictionaries(MEMBERS, SCHEDULES, max_size=2),
)


@dataclass
class Setting:
    """A worker of a sound queue and of one whose keys are anything, and the clients that look at both."""

    here: World
    running: RunningWorker
    good: Queue
    bad: Queue
    flows: FlowProducer
    schedulers: Schedules
    driver: SyncDriver
    heard: Listener

    def attempt(self, damage: Damage) -> None:
        """Store it, look at all of it, and run sound work beside it."""
        raw, ids = self.here.raw, list[str]()
        self.good.pause()
        try:
            for fields in damage.jobs:
                ids.append(self.good.add("work", DATA, options=KINDS[damage.options]))
                if fields:
                    raw.hset(P + b"job:" + ids[-1].encode(), mapping=fields)
            self._store_flow(damage)
            for write in damage.writes:
                write.apply(raw)
            for event in damage.events:
                raw.xadd(P + b"events", event)
                raw.xadd(P + b"stream", event)
            for name, entry in damage.entries.items():
                raw.hset(P + b"schedulers", MARK + name, entry)
            self._look(damage)
            self.good.resume()
            self._work()
            self._look(damage)
            self.heard.check()
        finally:
            self._clear(ids, damage)

    def _store_flow(self, damage: Damage) -> None:
        raw = self.here.raw
        nodes = [
            FlowNode("a", queue="good", job="work", data=DATA),
            FlowNode("b", queue="good", job="work", after=["a"]),
        ]
        self.flows.submit(FlowSpec("odd", nodes), flow_id="odd")
        raw.hset(P + b"gmo:flow:odd:nodes", "b", damage.row)
        for key, fields in ((P + b"gmo:flow:odd", damage.flow), (P + b"job:odd~a", damage.node)):
            if fields:
                raw.hset(key, mapping=fields)
        for write in damage.flow_writes:
            write.apply(raw)

    def _work(self) -> None:
        """Jobs of the sound queue, and a flow of it, complete."""
        try:
            if self.good.add_and_wait("work", DATA, timeout=LONG) != DATA:
                raise Violation("a sound job has another result", "wrong result")
        except WaitTimeout as exc:
            why = "the worker has ended" if not self.running._thread.is_alive() else "it still runs"
            raise Violation(f"a sound job did not complete; {why}: {self._state()}", f"stuck: {why}") from exc
        if self.running.error is not None:
            raise Violation(f"the worker ended: {self.running.error!r}", "the worker ended")

    def _state(self) -> str:
        """What may explain that nothing happens."""
        said = [record.getMessage() for record in self.heard.records if record.levelname != "DEBUG"]
        groups, _ = outcome(lambda: self.here.text.xinfo_groups(P + b"stream"), (Exception,))
        return f"{dict(self.good.counts())}, paused {self.good.is_paused()}, {groups}, said {said[-5:]}"

    def _look(self, damage: Damage) -> None:
        """Every listing of both queues; those of the sound one show everything else."""
        for queue in (self.good, self.bad):
            for look in _looks(queue):
                outcome(look)
        listed, _ = outcome(self.schedulers.list, ())
        broken = {one.name.encode(errors="surrogateescape") for one in listed or () if one.broken}
        # Others may have come to their end, and are removed then.
        wanted = {MARK + name for name, text in damage.entries.items() if not text.startswith(b"{")}
        if missing := wanted - broken:
            raise Violation(f"schedulers are not listed as broken: {missing!r}", "schedulers are missing")
        self._examine_flows()
        for name in ("good", "bad"):
            watch = Supervision(QueueKeys("glide", name), f"gmo-worker-fuzz-{name}")
            for op in (scheduler_ops.tick(watch.queue, SystemClock()), supervise.tick(watch, SystemClock())):
                outcome(partial(self.driver.run, op))
            with EventReader(name, self.here.url, position="0-0") as reader:
                outcome(reader.read)

    def _examine_flows(self) -> None:
        listed, _ = outcome(lambda: self.flows.list(limit=1_000), ())
        if not {"f1", "f2"} <= {flow.id for flow in listed or ()}:
            raise Violation("sound flows are not listed", "flows are missing")
        flow, _ = outcome(lambda: self.flows.get("odd"))
        if flow is not None:
            for look in (flow.status, flow.nodes, flow.results, flow.outcome, lambda: flow.node("b")):
                outcome(look)
            outcome(lambda: list(flow.watch(timeout=timedelta(0))))
        outcome(lambda: examine(self.here.url))

    def _clear(self, ids: Sequence[str], damage: Damage) -> None:
        raw = self.here.raw
        odd = [*(job_id.encode() for job_id in ids), b"odd~a", b"odd~b"]
        keys = (
            [P + b"job:" + job_id for job_id in odd]
            + raw.keys(P + b"gmo:flow:odd*")
            + raw.keys("glide:{bad}:*")
        )
        keys += raw.keys("glide:gmo:home:{odd}")
        pipe = raw.pipeline(transaction=False)
        pipe.delete(*keys)
        for name in (
            b"completed",
            b"failed",
            b"scheduled",
            b"gmo:flows",
            b"gmo:flows:state:running",
            b"gmo:due",
        ):
            pipe.zrem(P + name, *odd, b"odd")
        for name in (b"priority", b"lifo"):
            pipe.delete(P + name)
        for name in damage.entries:
            pipe.hdel(P + b"schedulers", MARK + name)
        pipe.srem(P + b"gmo:todo", b"odd")
        pipe.execute(raise_on_error=False)


def _looks(queue: Queue) -> Iterator[Callable[[], Any]]:
    """Every way to look at a queue."""
    yield from (
        queue.counts,
        queue.scan_jobs,
        queue.dead_letters,
        queue.groups,
        queue.workers,
        queue.is_paused,
    )
    yield from (queue.metrics, queue.search, queue.global_rate_limit, queue.dead_letter_queue)
    yield partial(queue.search, name="work", data={"a": 1})
    for state in set(JobState) - {JobState.SKIPPED}:
        yield partial(queue.get_jobs, state)


@contextmanager
def opened() -> Iterator[Target]:
    """Needs a server, and a worker that runs through all cases."""
    with ExitStack() as stack:
        heard, here = stack.enter_context(listening()), stack.enter_context(world())
        handlers = Handlers()
        handlers.handler("work")(lambda ctx: ctx.data)
        driver = SyncDriver(ConnectionSettings.resolve(here.url))
        stack.callback(driver.close)
        good, bad = (stack.enter_context(Queue(name, here.url)) for name in ("good", "bad"))
        good.set_dead_letter_queue("dead")
        flows = stack.enter_context(FlowProducer(here.url))
        schedulers = stack.enter_context(Schedules("good", here.url))
        worker = Worker(here.url, queues=["good", "bad"], handlers=handlers, lease=SECOND, max_stalled=0)
        running = RunningWorker(worker)
        running.start()
        stack.callback(running.stop)
        yield Target(DAMAGE, Setting(here, running, good, bad, flows, schedulers, driver, heard).attempt)


ENTRY: Final = Entry("stored", "what others may have stored", 6, opened)
