"""A real server with both libraries, and a thin wrapper that names the arguments of the functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
import redis
from redis.crc import key_slot

from glidemq_orchestrate.embedded import EmbeddedServer
from glidemq_orchestrate.flows.backend import Reach
from tests.profile import IS_LONG
from tests.server.life_cycle import LifeCycle
from tests.server.lua.keyspace import Dump, changes, dump
from tests.server.lua.portable_slots import Slots
from tests.server.lua.servers import (
    load_libraries,
    owner_of,
    redis7_binary,
    running,
    running_cluster,
    valkey_binary,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

T = 1700000000000
SHIFT = 4398046511104


class Queue:
    """The functions on the queue ``q``; every time is an argument and starts at ``T``."""

    def __init__(self, valkey: redis.Redis, name: str = "q") -> None:
        self.valkey: Any = valkey
        self.base = f"glide:{{{name}}}"
        self.name = name
        self.called: set[str] = set()
        self.life_cycle: LifeCycle | None = None

    @classmethod
    def on(cls, valkey: redis.Redis, name: str = "q") -> Queue:
        """The queue with the group ``workers``."""
        queue = cls(valkey, name)
        queue.valkey.xgroup_create(queue.key("stream"), "workers", "0", mkstream=True)
        return queue

    def key(self, name: str) -> str:
        return f"{self.base}:{name}"

    def keys(self, *names: str) -> list[str]:
        return [self.key(name) for name in names]

    def call(self, function: str, keys: list[str], *args: Any) -> Any:
        name = f"glidemq_{function}"
        self.called.add(name)
        with self.life_cycle.watching([name]) if self.life_cycle else nullcontext():
            return self.valkey.fcall(name, len(keys), *keys, *args)

    def job(self, job_id: str) -> dict[str, str]:
        return dict(self.valkey.hgetall(self.key(f"job:{job_id}")))

    def hash(self, name: str) -> dict[str, str]:
        return dict(self.valkey.hgetall(self.key(name)))

    def scores(self, name: str) -> dict[str, float]:
        return dict(self.valkey.zrange(self.key(name), 0, -1, withscores=True))

    def stream(self) -> list[dict[str, str]]:
        return [fields for _, fields in self.valkey.xrange(self.key("stream"))]

    def events(self) -> list[tuple[str, ...]]:
        return [
            tuple(x for pair in fields.items() for x in pair)
            for _, fields in self.valkey.xrange(self.key("events"))
        ]

    def event_names(self) -> list[str]:
        return [event[1] for event in self.events()]

    def pending(self, group: str = "workers") -> list[str]:
        return [
            entry["message_id"]
            for entry in self.valkey.xpending_range(self.key("stream"), group, "-", "+", 100)
        ]

    def dump(self) -> Dump:
        """Every key with its value."""
        return dump(self.valkey)

    def changes(self, before: Dump) -> Dump:
        """What differs from an earlier dump; the keys without the base of this queue."""
        found = changes(before, self.dump())
        return {key.removeprefix(f"{self.base}:"): value for key, value in found.items()}

    def add(self, **given: Any) -> str:
        """AddJob; only the names given differ from the defaults."""
        return str(self.call("addJob", self.keys("id", "stream", "scheduled", "events"), *_add_args(given)))

    def dedup(self, dedup_id: str, mode: str, window: int = 0, **given: Any) -> str:
        args = _add_args(given)
        args.pop(19)
        keys = self.keys("dedup", "id", "stream", "scheduled", "events")
        return str(self.call("dedup", keys, dedup_id, window, mode, *args))

    def read(self, group: str = "workers", consumer: str = "c") -> tuple[str, str]:
        """Entry id and job id of the next stream entry."""
        reply = self.valkey.xreadgroup(group, consumer, {self.key("stream"): ">"}, count=1)
        entry_id, fields = reply[0][1][0]
        return entry_id, fields["jobId"]

    def activate(
        self, job_id: str, entry_id: str = "", now: int = T, group: str = "workers", broadcast: str = ""
    ) -> Any:
        keys = self.keys(f"job:{job_id}", "stream")
        return self.call("moveToActive", keys, now, entry_id, group, job_id, broadcast)

    def start(self, now: int = T) -> tuple[str, Any]:
        """Read the next entry and activate its job: entry id and reply."""
        entry_id, job_id = self.read()
        return entry_id, self.activate(job_id, entry_id, now)

    def _finish_keys(self, job_id: str, parent: str, home: Queue | None = None) -> list[str]:
        keys = self.keys("stream", "completed", "events", f"job:{job_id}", "metrics:completed")
        names = (f"deps:{parent}", f"job:{parent}", "stream", "events")
        return keys + ((home or self).keys(*names) if parent else [])

    def complete(self, job_id: str, entry_id: str = "", now: int = T, **more: Any) -> Any:
        """Complete; more: mode, count, age, member, parent, home (queue of the parent), broadcast, group."""
        retention = (more.get("mode", "0"), more.get("count", 0), more.get("age", 0))
        parent = more.get("parent", "")
        args = (job_id, entry_id, "r", now, more.get("group", "workers"), *retention)
        keys = self._finish_keys(job_id, parent, more.get("home"))
        return self.call("complete", keys, *args, more.get("member", ""), parent, more.get("broadcast", ""))

    def complete_and_fetch(self, job_id: str, entry_id: str = "", now: int = T, **more: Any) -> list[str]:
        """CompleteAndFetchNext; more: parent, member, home, group_key (hint), skip_events, skip_metrics."""
        parent = more.get("parent", "")
        relation = (more.get("member", ""), parent)
        hints = ("", "", more.get("group_key", ""), "", "", "")
        flags = (more.get("skip_events", ""), more.get("skip_metrics", ""))
        args = (job_id, entry_id, "r", now, "workers", "c", "0", 0, 0, *relation, *hints, *flags)
        keys = self._finish_keys(job_id, parent, more.get("home"))
        return list(self.call("completeAndFetchNext", keys, *args))

    def fail(self, job_id: str, entry_id: str = "", now: int = T, **more: Any) -> str:
        """Fail; more: attempts, backoff, group, broadcast, mode, count, age."""
        keys = self.keys("stream", "failed", "scheduled", "events", f"job:{job_id}", "metrics:failed")
        args = (job_id, entry_id, "boom", now, more.get("attempts", 0), more.get("backoff", 0))
        retention = (more.get("mode", "0"), more.get("count", 0), more.get("age", 0))
        group, broadcast = more.get("group", "workers"), more.get("broadcast", "")
        return str(self.call("fail", keys, *args, group, *retention, broadcast))

    def promote(self, now: int) -> int:
        return int(self.call("promote", self.keys("scheduled", "stream", "events"), now))

    def promote_groups(self, now: int) -> int:
        return int(self.call("promoteRateLimited", self.keys("ratelimited", "stream"), now))

    def next_due(self) -> int:
        return int(self.call("nextDue", self.keys("scheduled", "ratelimited")))

    def revoke(self, job_id: str, now: int = T) -> str:
        keys = self.keys(f"job:{job_id}", "stream", "scheduled", "failed", "events")
        return str(self.call("revoke", keys, job_id, now, "workers"))

    def remove(self, job_id: str) -> int:
        names = (f"job:{job_id}", "stream", "scheduled", "completed", "failed", "events", f"log:{job_id}")
        return int(self.call("removeJob", self.keys(*names), job_id))

    def retry_jobs(self, count: int, now: Any) -> int:
        return int(self.call("retryJobs", self.keys("failed", "scheduled", "events", "id"), count, now))

    def drain(self, scheduled: str = "0") -> int:
        keys = self.keys("stream", "scheduled", "events", "id", "lifo", "priority")
        return int(self.call("drain", keys, scheduled, "workers"))

    def reclaim(self, now: int, min_idle: int = 0, max_stalled: int = 1, lock: int = 0) -> int:
        args = ("workers", "c2", min_idle, max_stalled, now, self.key("failed"), "", lock)
        return int(self.call("reclaimStalled", self.keys("stream", "events"), *args))

    def reclaim_lists(self, now: int, min_idle: int = 0) -> int:
        args = (min_idle, 1, now, self.key("failed"))
        return int(self.call("reclaimStalledListJobs", self.keys("stream", "events"), *args))

    def sweep_suspended(self, now: int) -> int:
        keys = self.keys("suspended", "events", "failed", "metrics:failed")
        return int(self.call("sweepSuspended", keys, now, f"{self.base}:"))

    def change_priority(self, job_id: str, priority: Any) -> str:
        keys = self.keys(f"job:{job_id}", "stream", "scheduled", "events")
        return str(self.call("changePriority", keys, job_id, priority, "workers"))

    def change_delay(self, job_id: str, delay: Any, now: int = T) -> str:
        keys = self.keys(f"job:{job_id}", "stream", "scheduled", "events")
        return str(self.call("changeDelay", keys, job_id, delay, now, "workers"))

    def promote_job(self, job_id: str) -> str:
        keys = self.keys(f"job:{job_id}", "stream", "scheduled", "events")
        return str(self.call("promoteJob", keys, job_id))

    def postpone(self, job_id: str, entry_id: str, now: int, until: int, data: str = "") -> str:
        keys = self.keys(f"job:{job_id}", "stream", "scheduled", "events")
        return str(self.call("moveActiveToDelayed", keys, job_id, entry_id, now, until, "workers", data, ""))

    def wait_for_children(self, job_id: str, entry_id: str, now: int = T) -> str:
        keys = self.keys(f"job:{job_id}", "stream", "events")
        return str(self.call("moveToWaitingChildren", keys, job_id, entry_id, "workers", now, ""))

    def defer(self, job_id: str, entry_id: str) -> int:
        keys = self.keys("stream", f"job:{job_id}", "list-active")
        return int(self.call("deferActive", keys, job_id, entry_id, "workers", ""))

    def clean(self, kind: str, cutoff: int, limit: int) -> list[str]:
        return list(self.call("clean", self.keys(kind, "events", "id"), cutoff, limit))

    def suspend(self, job_id: str, entry_id: str, now: int = T, timeout: int = 0) -> str:
        keys = self.keys(f"job:{job_id}", "stream", "events", "suspended")
        return str(self.call("suspend", keys, job_id, entry_id, "workers", now, "why", timeout))

    def signal(self, job_id: str, name: str = "go", data: str = "") -> str:
        keys = self.keys(f"job:{job_id}", "stream", "events", "suspended", f"signals:{job_id}")
        return str(self.call("signal", keys, job_id, name, data, T))

    def limit_group(self, job_id: str, entry_id: str, now: int, duration: int, **more: str) -> str:
        args = (job_id, entry_id, "workers", duration, now, "", more.get("current", "requeue"))
        keys = self.keys(f"job:{job_id}", "stream")
        reply = self.call(
            "rateLimitGroup", keys, *args, more.get("position", "front"), more.get("extend", "max")
        )
        assert isinstance(reply, str)
        return reply

    def flow(
        self,
        parent: dict[str, Any],
        children: list[dict[str, Any]],
        extra: list[str] | None = None,
        now: int = T,
    ) -> str:
        """AddFlow; fields: name, opts, delay, priority, attempts, job_id; of a child its queue too."""
        names = ("id", "stream", "scheduled", "events")
        keys = self.keys(*names)
        args = [*_flow_args(parent)[:3], now, *_flow_args(parent)[3:]]
        args += [len(children), parent.get("job_id", "")]
        for child in children:
            queue = child.get("queue", self)
            keys += queue.keys(*names)
            args += [*_flow_args(child), queue.base, self.name, child.get("job_id", "")]
        args += [len(extra or []), *(extra or [])]
        return str(self.call("addFlow", keys, *args))

    def register_parent(self, child: str, parent: str, home: Queue | None = None) -> str:
        """RegisterParent; home: queue of the parent."""
        home = home or self
        keys = self.keys(f"job:{child}", f"parents:{child}")
        keys += home.keys(f"deps:{parent}", f"job:{parent}", "stream", "events")
        return str(self.call("registerParent", keys, child, parent, home.base, f"{self.base}:{child}"))

    def complete_child(self, parent: str, member: str) -> int:
        keys = self.keys(f"deps:{parent}", f"job:{parent}", "stream", "events")
        return int(self.call("completeChild", keys, member, parent))


_ADD_DEFAULTS: dict[str, Any] = {
    "name": "n", "data": "{}", "opts": "{}", "now": T, "delay": 0, "priority": 0,
    "parent_id": "", "attempts": 0,
    "group": "", "concurrency": 0, "rate_max": 0, "rate_duration": 0, "capacity": 0, "refill": 0, "cost": 0,
    "ttl": 0, "job_id": "", "lifo": 0, "parent_queue": "", "scheduler": "", "skip_events": "0",
}  # fmt: skip


def _add_args(given: dict[str, Any]) -> list[Any]:
    unknown = set(given) - set(_ADD_DEFAULTS)
    assert not unknown, unknown
    return list((_ADD_DEFAULTS | given).values())


def _flow_args(job: dict[str, Any]) -> list[Any]:
    fields = {"name": "n", "data": "{}", "opts": "{}", "delay": 0, "priority": 0, "attempts": 0}
    return [job.get(field, default) for field, default in fields.items()]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "standalone: not for a cluster, such as for keys of several slots")
    config.addinivalue_line("markers", "every_server: also where short of time, on each kind of server")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on a primary of a cluster, which is strictest; some, or in the long profile all, on each."""
    if "server_port" in metafunc.fixturenames:
        marks = {mark.name for mark in metafunc.definition.iter_markers()}
        servers = ["cluster", "valkey", "redis7"][1 if "standalone" in marks else 0 :]
        count = None if IS_LONG or "every_server" in marks else 1
        metafunc.parametrize("server_port", servers[:count], indirect=True, scope="session")


@pytest.fixture(scope="session")
def cluster_ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[int]]:
    """Ports of a cluster's three primaries, with both libraries loaded."""
    with running_cluster(valkey_binary(), tmp_path_factory.mktemp("cluster")) as ports:
        for port in ports:
            load_libraries(port)
        yield ports


@pytest.fixture(scope="session")
def server_port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Port of a server with both libraries; in a cluster, of the primary that has the queue ``q``."""
    if request.param == "cluster":
        ports = request.getfixturevalue("cluster_ports")
        yield owner_of(key_slot(b"q"), ports)
        return
    directory = tmp_path_factory.mktemp(request.param)
    binary = valkey_binary() if request.param == "valkey" else redis7_binary(directory)
    with running(binary, directory) as port:
        load_libraries(port)
        yield port


@pytest.fixture
def valkey(server_port: int) -> Iterator[redis.Redis]:
    """A client of an empty database."""
    client = redis.Redis(port=server_port, decode_responses=True, driver_info=None)
    client.flushall()
    yield client
    client.close()


@pytest.fixture
def q(valkey: redis.Redis) -> Queue:
    """The queue ``q`` with the group ``workers``; its calls are held against the life cycle of jobs."""
    queue = Queue.on(valkey)
    queue.life_cycle = LifeCycle(valkey)
    return queue


@pytest.fixture(
    scope="session",
    params=[
        "cluster",
        pytest.param("cluster without our functions", marks=pytest.mark.long),
        "one server without our functions",
    ],
)
def slot_servers(request: pytest.FixtureRequest, server: EmbeddedServer) -> Iterator[tuple[list[int], Reach]]:
    """Ports of servers that have all slots, and what a function of ours can reach there."""
    is_cluster = "cluster" in request.param
    ports = request.getfixturevalue("cluster_ports") if is_cluster else [urlsplit(server.url).port or 0]
    reach = Reach(is_cluster, "without" not in request.param)
    for port in ports:
        load_libraries(port)
        if not reach.has_functions:
            with redis.Redis(port=port) as client:
                client.function_delete("glidemq_orchestrate")
    yield ports, reach
    for port in ports:
        load_libraries(port)


@pytest.fixture
def slots(slot_servers: tuple[list[int], Reach]) -> Iterator[Slots]:
    made = Slots(*slot_servers)
    yield made
    for client in made.clients:
        client.close()
