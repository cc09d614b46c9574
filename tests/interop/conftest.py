"""The Node side of the interop suite: what a glide-mq 0.15 client sends, written as raw commands.

Source: the client specification, sections 1 to 6; each method sends the keys and arguments in its order.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from redis.exceptions import ResponseError

from glidemq_orchestrate import Queue


@dataclass(frozen=True)
class Taken:
    """A job that the Node worker has begun."""

    id: str
    entry: str
    fields: dict[str, str]


class Node:
    """One Node client with its queue ``q``: producer, worker and flow producer."""

    def __init__(self, client: Any, queue: str = "q") -> None:
        self.client, self.name, self.prefix = client, queue, f"glide:{{{queue}}}"
        self.consumer = "worker-1-0badcafe"

    def key(self, *names: str) -> list[str]:
        return [f"{self.prefix}:{name}" for name in names]

    def now(self) -> int:
        seconds, micros = self.client.time()
        return int(seconds * 1000 + micros // 1000)

    def fcall(self, name: str, keys: list[str], *args: Any) -> Any:
        return self.client.fcall(name, len(keys), *keys, *args)

    # --- producer ---

    def add(self, name: str = "work", data: str = "{}", opts: dict[str, Any] | None = None) -> str:
        """Queue.add; the plain arguments come from the options, as a Node client takes them."""
        opts = opts or {}
        keys = self.key("id", "stream", "scheduled", "events")
        parent = opts.get("parent", {})
        if parent and parent["queue"] == self.name:
            keys += self.key(f"deps:{parent['id']}")
        job_id: str = self.fcall("glidemq_addJob", keys, *self._words(name, data, opts), "", 0)
        return job_id

    def dedup(self, dedup_id: str, mode: str, data: str = "{}", opts: dict[str, Any] | None = None) -> str:
        keys = self.key("dedup", "id", "stream", "scheduled", "events")
        words = self._words("work", data, opts or {})
        answer: str = self.fcall("glidemq_dedup", keys, dedup_id, 0, mode, *words, 0)
        return answer

    def _words(self, name: str, data: str, opts: dict[str, Any]) -> list[Any]:
        ordering = opts.get("ordering", {})
        return [
            name, data, json.dumps(opts, separators=(",", ":")), self.now(), opts.get("delay", 0),
            opts.get("priority", 0), opts.get("parent", {}).get("id", ""), opts.get("attempts", 0),
            ordering.get("key", ""), ordering.get("concurrency", 1 if ordering else 0), 0, 0, 0, 0, 0,
            opts.get("ttl", 0), opts.get("jobId", ""), int(opts.get("lifo", False)),
            opts.get("parent", {}).get("queue", ""),
        ]  # fmt: skip

    def job(self, job_id: str) -> dict[str, str]:
        fields: dict[str, str] = self.client.hgetall(f"{self.prefix}:job:{job_id}")
        return fields

    def events(self) -> list[dict[str, str]]:
        return [fields for _, fields in self.client.xrange(f"{self.prefix}:events")]

    # --- worker ---

    def open(self) -> None:
        """Worker start: the consumer group."""
        with contextlib.suppress(ResponseError):  # BUSYGROUP
            self.client.xgroup_create(f"{self.prefix}:stream", "workers", "0", mkstream=True)

    def take(self) -> Taken | None:
        """One turn of the poll loop: the lists first, then the stream."""
        self.open()
        ids = self.fcall("glidemq_popLists", self.key("priority", "lifo"), 1)
        entry = ""
        if ids:
            self.client.incrby(f"{self.prefix}:list-active", len(ids))
        else:
            found = self.client.xreadgroup("workers", self.consumer, {f"{self.prefix}:stream": ">"}, count=1)
            if not found:
                return None
            ((_, ((entry, fields),)),) = found
            ids = [fields["jobId"]]
        reply = self.fcall(
            "glidemq_moveToActive", self.key(f"job:{ids[0]}", "stream"), self.now(), entry, "workers", ids[0]
        )
        if not isinstance(reply, list):
            return None
        return Taken(ids[0], entry, dict(zip(reply[::2], reply[1::2], strict=True)))

    def complete(self, taken: Taken, result: str = "null") -> Taken | None:
        """completeAndFetchNext with the hints and the parent's keys that a Node worker passes."""
        keys = self.key("stream", "completed", "events", f"job:{taken.id}", "metrics:completed")
        parent, queue = taken.fields.get("parentId", ""), taken.fields.get("parentQueue", "")
        member = ""
        if parent and queue:
            home = f"glide:{{{queue}}}"
            keys += [f"{home}:deps:{parent}", f"{home}:job:{parent}", f"{home}:stream", f"{home}:events"]
            member = f"{self.prefix}:{taken.id}"
        reply = self.fcall(
            "glidemq_completeAndFetchNext", keys, taken.id, taken.entry, result, self.now(), "workers",
            self.consumer, 0, 0, 0, member, parent if member else "", "__", "", "__", 0,
            taken.fields["processedOn"], int("parentIds" in taken.fields), 0, 0,
        )  # fmt: skip
        if reply[0] != "NEXT_HASH":
            return None
        fields = reply[4:]
        return Taken(reply[2], reply[3], dict(zip(fields[::2], fields[1::2], strict=True)))

    def fail(self, taken: Taken, reason: str = "broken", backoff: int = 0) -> str:
        opts = json.loads(taken.fields["opts"])
        keys = self.key("stream", "failed", "scheduled", "events", f"job:{taken.id}", "metrics:failed")
        words = (
            taken.id,
            taken.entry,
            reason,
            self.now(),
            opts.get("attempts", 0),
            backoff,
            "workers",
            0,
            0,
            0,
        )
        answer: str = self.fcall("glidemq_fail", keys, *words)
        return answer

    def run(self, handle: Callable[[Taken], str] = lambda taken: "null") -> list[str]:
        """Work until the queue is empty; the ids in order."""
        order = []
        taken = self.take()
        while taken:
            order.append(taken.id)
            taken = self.complete(taken, handle(taken)) or self.take()
        return order

    def promote(self) -> None:
        self.fcall("glidemq_promote", self.key("scheduled", "stream", "events"), self.now() + 86_400_000)

    def revoke(self, job_id: str) -> str:
        keys = self.key(f"job:{job_id}", "stream", "scheduled", "failed", "events")
        answer: str = self.fcall("glidemq_revoke", keys, job_id, self.now(), "workers")
        return answer

    def children_values(self, job_id: str) -> dict[str, str]:
        """getChildrenValues: keyed by the member of the deps set."""
        values = {}
        for member in self.client.smembers(f"{self.prefix}:deps:{job_id}"):
            base, _, child = member.rpartition(":")
            value = self.client.hget(f"{base}:job:{child}", "returnvalue")
            if value is not None:
                values[member] = value
        return values

    def workers(self) -> list[dict[str, Any]]:
        """getWorkers: only registrations that have every field it needs."""
        found = []
        for key in self.client.scan_iter(f"glide:{{{self.name}}}:w:*"):
            registration = json.loads(self.client.get(key))
            kinds = (
                (registration.get("addr"), str),
                (registration.get("pid"), int),
                (registration.get("startedAt"), int),
            )
            if all(isinstance(value, kind) for value, kind in kinds):
                age = self.now() - registration["startedAt"]
                found.append({"id": key.rpartition(":w:")[2], "age": age, **registration})
        return found

    def fire(self) -> int:
        """One scheduler step of a Node worker: under the lock, jobs and entries in one transaction."""
        (lock,) = self.key("schedulers:lock:__tick__")
        token = secrets.token_hex(8)
        if not self.fcall("glidemq_tryLock", [lock], token, 5000):
            return 0
        now, fired = self.now(), 0
        pipeline = self.client.pipeline(transaction=True)
        for name, text in self.client.hgetall(f"{self.prefix}:schedulers").items():
            entry = json.loads(text)
            if not entry.get("nextRun") or entry["nextRun"] > now:
                continue
            if entry.get("limit") and entry["iterationCount"] >= entry["limit"]:
                pipeline.hdel(f"{self.prefix}:schedulers", name)
                continue
            fired += 1
            keys = self.key("id", "stream", "scheduled", "events")
            words = self._words(entry.get("template", {}).get("name", name), "{}", {})
            pipeline.fcall("glidemq_addJob", len(keys), *keys, *words, "", 0)
            entry |= {"lastRun": now, "iterationCount": entry["iterationCount"] + 1}
            missed = (now - entry["nextRun"]) // entry["every"] + 1
            entry["nextRun"] += missed * entry["every"]
            if entry.get("limit") and entry["iterationCount"] >= entry["limit"]:
                pipeline.hdel(f"{self.prefix}:schedulers", name)
            else:
                pipeline.hset(f"{self.prefix}:schedulers", name, json.dumps(entry, separators=(",", ":")))
        self.fcall("glidemq_renewLock", [lock], token, 5000)
        pipeline.execute()
        self.fcall("glidemq_unlock", [lock], token)
        return fired

    # --- flow producer ---

    def add_parent(self, name: str, job_id: str = "") -> str:
        """A node with dependencies, as addDAG writes it first."""
        keys = self.key("id", "stream", "scheduled", "events")
        reply = self.fcall("glidemq_addFlow", keys, name, "{}", "{}", self.now(), 0, 0, 0, 0, job_id, 0)
        (made,) = json.loads(reply)
        return str(made)

    def link(self, child_id: str, *parents: tuple[Node, str]) -> None:
        """Phase B of addDAG: the further dependents of a node."""
        ids, queues = [job_id for _, job_id in parents], [node.name for node, _ in parents]
        self.client.hset(
            f"{self.prefix}:job:{child_id}",
            mapping={"parentIds": json.dumps(ids), "parentQueues": json.dumps(queues)},
        )
        for node, parent_id in parents:
            keys = self.key(f"job:{child_id}", f"parents:{child_id}")
            keys += node.key(f"deps:{parent_id}", f"job:{parent_id}", "stream", "events")
            words = (child_id, parent_id, node.prefix, f"{self.prefix}:{child_id}")
            assert self.fcall("glidemq_registerParent", keys, *words) == "ok"

    def diamond(self) -> dict[str, str]:
        """A -> B, C -> D by addDAG: dependents first."""
        d = self.add_parent("D")
        b, c = self.add_parent("B"), self.add_parent("C")
        self.link(b, (self, d))
        self.link(c, (self, d))
        a = self.add("A")
        self.link(a, (self, b), (self, c))
        return {"A": a, "B": b, "C": c, "D": d}


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    with Queue("q", url) as made:
        yield made


@pytest.fixture
def node(redis_client: Any, queue: Queue) -> Node:
    """A Node client on a server whose libraries P has loaded."""
    queue.add("load the libraries")
    redis_client.flushall()
    return Node(redis_client)
