"""A round: a server, the processes that use it, and the faults that happen to them, by a seed."""

from __future__ import annotations

import heapq
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from glidemq_orchestrate import Queue
from glidemq_orchestrate.lifeline import guard
from glidemq_orchestrate.shards import shard_name
from glidemq_orchestrate.testing.chaos.ledger import Ledger, LedgerReader
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX, QueueKeys
from tests.chaos.children import Children
from tests.chaos.faults import AROUND, BRIDGE, BY_NAME, PROCESSES, SPARK, Fault, empty_server
from tests.chaos.forgotten import Forgotten
from tests.chaos.grounds import GROUNDS
from tests.chaos.nursery import Nursery
from tests.chaos.proxy import Proxy
from tests.chaos.roles import NOT_STARTED, REFUSED, World, spark_mark
from tests.chaos.size import Size
from tests.chaos.spark_steps import DRIVER_SECONDS
from tests.server.connections.topologies import Server

QUEUES: Final = ("etl", "spark")
TICK_SECONDS: Final = 0.02
FORGETS_EACH: Final = 10
REST_SECONDS: Final = 0.05
UNDO_SECONDS: Final = 60.0
EXTRA_SECONDS: Final = 60.0
SLACK_SECONDS: Final = 5.0
WORKERS: Final = frozenset(
    {"worker", "worker_processes", "node_worker", "spark_worker", "bridge", "chasqui_worker"}
)
"""Roles that are never over."""


@dataclass(eq=False)
class Process:
    """One of the processes.

    Attributes:
        is_ending: It was killed or asked to stop, so its end is no surprise.
        is_over: It has ended by itself, having done its part, or is not started again.
        once: It is not started again.
    """

    role: str
    number: int
    pid: int = 0
    is_ending: bool = False
    is_over: bool = False
    once: bool = False


def _impatient(server: Server) -> Any:
    """A client with patience of its own: the server may be frozen, and only the harness can wake it."""
    options: Any = {"socket_timeout": 0.5, "retry": Retry(NoBackoff(), 0)}
    return redis.Redis(port=server.port, decode_responses=True, **options)


class _Stream:
    """Faults that follow each other at random times."""

    def __init__(self, chance: random.Random, faults: Mapping[Fault, int], pause: float) -> None:
        self._chance, self._faults, self._pause = random.Random(chance.random()), faults, pause
        self._next = time.monotonic() + self._chance.expovariate(1 / pause)

    def due(self) -> tuple[Fault, random.Random] | None:
        """The fault for now, if any, with random numbers for its own decisions."""
        if not self._faults or time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + self._chance.expovariate(1 / self._pause)
        fault = self._chance.choices(list(self._faults), list(self._faults.values()))[0]
        return fault, random.Random(self._chance.random())


class Round:
    """A round; use it in a with statement.

    Args:
        seed: Decides the plan and the faults.
        folder: An empty folder for its files.
        size: How much happens.
        faults: Only these; all by default.
        ground: The name of its servers.
        defect: The name of a defect that all processes have; none by default.
    """

    def __init__(
        self,
        seed: int,
        folder: Path,
        size: Size,
        faults: Collection[Fault] = BY_NAME.values(),
        ground: str = "one",
        *,
        defect: str = "",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._chance, self._size = random.Random(f"faults {seed}"), size
        self._due: list[tuple[float, int, Callable[[], Any]]] = []
        self._order, self._stack = count(), ExitStack()
        self.done: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()
        self.surprises: list[str] = []
        self.refused_until = 0.0
        self.moving: set[str] = set()
        self.ground = self._stack.enter_context(GROUNDS[ground](folder))
        spared = {*self.ground.spared, *(() if seed % FORGETS_EACH == 0 else (empty_server,))}
        spared |= {*(() if size.spark else SPARK), *(() if size.bridged else BRIDGE)}
        self.servers, self._faults = self.ground.servers, set(faults) - spared
        self._clients = {
            server.port: self._stack.enter_context(_impatient(server)) for server in self.servers
        }
        self.world = World(
            self.ground.url, self.ground.proxied, folder, seed, size.flows, QUEUES, size.seconds * 0.5,
            size.widest, self.ground.is_one_slot, defect=defect,
            longs=size.longs, giant=size.giant, spark=size.spark, bridged=size.bridged, arrays=size.arrays,
        )  # fmt: skip
        for name in self.world.plan.all_queues if self.ground.shards else ():
            with Queue(name, self.ground.url, shards=self.ground.shards) as queue:
                queue.shards()
        self.world.cures.mkdir(exist_ok=True)
        self.ledger, self.reader = Ledger(self.world.ledger, "harness"), LedgerReader(self.world.ledger)
        self._stack.callback(self.ledger.close)
        self.forgotten = Forgotten(self.world.ledger)
        self.children = Children(self.world.ledger)
        self.entries: list[dict[str, Any]] = []
        self.nursery = Nursery(self.world)
        self._stack.callback(self.nursery.close)
        roles = [("worker", n) for n in range(size.workers)]
        roles += [("worker_processes", n) for n in range(size.parents)]
        roles += [("node_worker", n) for n in range(size.node_workers if self.ground.has_node_workers else 0)]
        roles += [("spark_worker", n) for n in range(size.spark_workers if size.spark else 0)]
        roles += [("bridge", n) for n in range(size.bridges if size.bridged else 0)]
        roles += [("chasqui_worker", n) for n in range(size.chasqui_workers if size.bridged else 0)]
        roles += [(role, n) for role in ("submitter", "waiter", "steerer") for n in range(self.world.parts)]
        self.processes = [Process(role, number) for role, number in roles]

    def __enter__(self) -> Self:
        """Nothing: it has started."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill everything."""
        self._stack.close()

    # --- what faults use ---

    def members(self) -> list[str]:
        """The queues, and their shards."""
        names = self.world.plan.all_queues
        shards = [shard_name(name, index) for name in names for index in range(self.ground.shards)]
        return [*names, *shards]

    def alive(self, role: str | None = None) -> list[Process]:
        """The processes of a role, or all of them."""
        return [process for process in self.processes if role in (None, process.role)]

    def kill(self, process: Process) -> None:
        """SIGKILL a process."""
        if self.signal(process, signal.SIGKILL, is_end=True):
            self.kills[process.role] += 1

    def signal(self, process: Process, number: int, *, is_end: bool = False) -> bool:
        """Send a signal to a process, if it runs."""
        if not process.pid or (process.is_ending and is_end):
            return False
        process.is_ending = process.is_ending or is_end
        self.nursery.signal(process.pid, number)
        return True

    def later(self, seconds: float, act: Callable[[], Any]) -> None:
        """Do something after so many seconds; before the checks in any case."""
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._order), act))

    def join(self, role: str) -> Process:
        """Start another process, which is not started again."""
        process = Process(role, len(self.processes), once=True)
        process.pid = self.nursery.start(role, process.number)
        self.processes.append(process)
        return process

    def refuse_no_longer(self) -> None:
        """The libraries are ours again: soon no process is refused because of them."""
        self.refused_until = time.monotonic() + SLACK_SECONDS

    def owner(self, queue: str) -> Server | None:
        """The server that has the slot of a queue, if it can answer now."""
        return next(
            (one for one in self.servers if self.ask(one, "EXISTS", f"{{{queue}}}") is not None), None
        )

    def leader(self, queue: str) -> Process | None:
        """The worker that leads the supervision of a queue."""
        key = QueueKeys(DEFAULT_PREFIX, queue).supervisor()
        leader = next(filter(None, (self.ask(server, "GET", key) for server in self.servers)), None)
        self.entries += self.reader.new()
        pids = {entry["worker"]: entry["pid"] for entry in self.entries if entry["kind"] == "serves"}
        return next((one for one in self.processes if one.pid and one.pid == pids.get(leader)), None)

    @property
    def down_seconds(self) -> float:
        """The longest that a killed server is down."""
        return self.ground.down_seconds

    def primaries(self) -> list[Server]:
        """The servers that follow no other."""
        roles = {server: self.ask(server, "ROLE") for server in self.servers}
        return [server for server, role in roles.items() if role and role[0] == "master"]

    @property
    def proxy(self) -> Proxy:
        """The proxy before the server."""
        assert self.ground.proxy is not None
        return self.ground.proxy

    def ask(self, server: Server, *words: str) -> Any:
        """A command to a server; None when it cannot answer now."""
        try:
            return self._clients[server.port].execute_command(*words)
        except redis.RedisError:
            return None

    def insist(self, server: Server, *words: str) -> None:
        """A command to a server, repeated until it was answered."""
        if self.ask(server, *words) is None:
            self.later(REST_SECONDS, lambda: self.insist(server, *words))

    # --- its course ---

    def harm(self, progress: Callable[[str], None] = lambda _: None) -> None:
        """Let the faults happen, until there were enough kills or the time is over."""
        end = time.monotonic() + self._size.seconds
        size, groups = self._size, (PROCESSES, AROUND, SPARK, BRIDGE)
        pauses = (size.pause, size.around, size.spark_pause, size.bridge_pause)
        streams = [
            _Stream(self._chance, {fault: n for fault, n in group.items() if fault in self._faults}, pause)
            for group, pause in zip(groups, pauses, strict=True)
        ]
        while self._goes_on(end):
            self._tend()
            for stream in streams:
                if (due := stream.due()) is not None:
                    fault, chance = due
                    self.ledger.write("fault", fault=fault.__name__)
                    fault(self, chance)
                    self.done[fault.__name__] += 1
                    progress(f"{self.kills.total()} kills, {self.done.total()} faults")
            time.sleep(TICK_SECONDS)
        self._undo()

    def _goes_on(self, end: float) -> bool:
        """Whether faults are still wanted."""
        killed, now = self.kills.total(), time.monotonic()
        return killed < self._size.kills and (
            now < end or (killed < self._size.least and now < end + EXTRA_SECONDS)
        )

    def settle(self, is_settled: Callable[[], bool], seconds: float) -> bool:
        """Go on without faults until something holds, at most so long."""
        until = time.monotonic() + seconds
        while not (settled := is_settled()) and time.monotonic() < until:
            self._tend()
            time.sleep(REST_SECONDS)
        return settled

    def left_by_spark(self) -> Iterator[str]:
        """Kill the Spark workers; what of theirs is still there after a while, in sentences."""
        for process in self.alive("spark_worker"):
            self.kill(process)
        mark, until = spark_mark(self.world).encode(), time.monotonic() + DRIVER_SECONDS
        while (left := guard.left({}, mark, {0, 1})) and time.monotonic() < until:
            time.sleep(REST_SECONDS)
        yield from (f"process {pid} outlives the Spark workers" for pid in left)

    def _undo(self) -> None:
        """Bring back what faults have taken away."""
        until = time.monotonic() + UNDO_SECONDS
        while self._due:
            assert time.monotonic() < until, "the server does not come back"
            heapq.heappop(self._due)[2]()

    def _tend(self) -> None:
        """Do what is due, and start again whoever has died."""
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()
        self.surprises += self.children.look()
        codes = self.nursery.ended()
        for process in self.processes:
            if process.pid in codes:
                code, was_ending = codes[process.pid], process.is_ending
                process.pid, process.is_ending = 0, False
                if not was_ending and code not in self._usual(process):
                    said = (self.world.folder / "processes.log").read_text(errors="replace")[-300:]
                    self.surprises.append(
                        f"{process.role}{process.number} ended by itself with {code}: {said}"
                    )
                is_done = not was_ending and not code and process.role not in WORKERS
                process.is_over = is_done or process.once
            if not process.pid and not process.is_over:
                process.pid = self.nursery.start(process.role, process.number)

    def _usual(self, process: Process) -> Collection[int]:
        """The exit codes that are no surprise."""
        is_refused = process.role == "older_worker" or time.monotonic() < self.refused_until
        return (0, NOT_STARTED, REFUSED) if is_refused else (0, NOT_STARTED)
