"""A glide-mq 0.15 client in Node: what it sends, written as raw commands.

Source: the client specification, sections 1 to 6; each method sends the keys and arguments in its order.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from glidemq_orchestrate._lua import GLIDEMQ, library


@dataclass(frozen=True)
class Taken:
    """A job that the Node worker has begun."""

    id: str
    entry: str
    fields: dict[str, str]


class Node:
    """One Node client with its queue ``q``: producer, worker and flow producer.

    ``reader`` is its connection for blocking reads.
    """

    def __init__(self, client: Any, queue: str = "q", *, reader: Any = None, prefix: str = "glide") -> None:
        self.client, self.name, self.prefix = client, queue, f"{prefix}:{{{queue}}}"
        self.consumer, self.reader = "worker-1-0badcafe", reader or client

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
        place = self.place()
        begun = self.activate(*place) if place else ""
        return begun if isinstance(begun, Taken) else None

    def place(self, block_ms: int | None = None) -> tuple[str, str] | None:
        """The next job and its entry, '' if it is from a list."""
        return (ids[0], "") if (ids := self.pop()) else self.read(block_ms)

    def pop(self) -> list[str]:
        """Take the id of a job from the lists, and count it."""
        ids: list[str] = self.fcall("glidemq_popLists", self.key("priority", "lifo"), 1)
        if ids:
            self.client.incrby(f"{self.prefix}:list-active", len(ids))
        return ids

    def read(self, block_ms: int | None = None) -> tuple[str, str] | None:
        """The job and the id of the next entry of the stream."""
        stream = {f"{self.prefix}:stream": ">"}
        found = self.reader.xreadgroup("workers", self.consumer, stream, count=1, block=block_ms)
        if not found:
            return None
        ((_, ((entry, fields),)),) = found
        return fields["jobId"], entry

    def activate(self, job_id: str, entry: str) -> Taken | str:
        """Begin a job; else the word that says why it may not begin."""
        keys = self.key(f"job:{job_id}", "stream")
        reply = self.fcall("glidemq_moveToActive", keys, self.now(), entry, "workers", job_id)
        if not isinstance(reply, list):
            return str(reply)
        return Taken(job_id, entry, dict(zip(reply[::2], reply[1::2], strict=True)))

    def complete(self, taken: Taken, result: str = "null") -> Taken | None:
        """completeAndFetchNext; the next job."""
        return self.fetched(self.finish(taken, result))

    def fetched(self, reply: list[str]) -> Taken | None:
        """The job in a reply of completeAndFetchNext."""
        if reply[:1] != ["NEXT_HASH"]:
            return None
        return Taken(reply[2], reply[3], dict(zip(reply[4::2], reply[5::2], strict=True)))

    def finish(self, taken: Taken, result: str) -> list[str]:
        """The reply of completeAndFetchNext, called with the hints and the keys of the parent."""
        keys = self.key("stream", "completed", "events", f"job:{taken.id}", "metrics:completed")
        parent, queue = taken.fields.get("parentId", ""), taken.fields.get("parentQueue", "")
        member = ""
        if parent and queue:
            home = f"glide:{{{queue}}}"
            keys += [f"{home}:deps:{parent}", f"{home}:job:{parent}", f"{home}:stream", f"{home}:events"]
            member = f"{self.prefix}:{taken.id}"
        group = taken.fields.get("groupKey", "")
        hints = ("__", taken.fields["orderingSeq"], group) if group else ("__", "", "__")
        reply: list[str] = self.fcall(
            "glidemq_completeAndFetchNext", keys, taken.id, taken.entry, result, self.now(), "workers",
            self.consumer, 0, 0, 0, member, parent if member else "", *hints, 0,
            taken.fields["processedOn"], int("parentIds" in taken.fields), 0, 0,
        )  # fmt: skip
        return reply

    def fail(
        self, taken: Taken, reason: str = "broken", backoff: int = 0, *, attempts: int | None = None
    ) -> str:
        """``attempts``: instead of those of the job; 0 fails it for good."""
        most = json.loads(taken.fields["opts"]).get("attempts", 0) if attempts is None else attempts
        keys = self.key("stream", "failed", "scheduled", "events", f"job:{taken.id}", "metrics:failed")
        words = (taken.id, taken.entry, reason, self.now(), most, backoff, "workers", 0, 0, 0)
        answer: str = self.fcall("glidemq_fail", keys, *words)
        return answer

    def postpone(self, taken: Taken, delay: int) -> str:
        """DelayedError: the job starts again after so many ms; the attempt does not count."""
        keys = self.key(f"job:{taken.id}", "stream", "scheduled", "events")
        now = self.now()
        words = (taken.id, taken.entry, now, now + delay, "workers", "")
        answer: str = self.fcall("glidemq_moveActiveToDelayed", keys, *words)
        return answer

    def beat(self, job_id: str) -> None:
        """Keep the lease of a job."""
        self.client.hset(f"{self.prefix}:job:{job_id}", "lastActive", self.now())

    def reclaim(self, idle: int, lock: int, most: int) -> None:
        """The stalled tick: jobs of the stream, then those of the lists."""
        keys, failed = self.key("stream", "events"), f"{self.prefix}:failed"
        words = ("workers", self.consumer, idle, most, self.now(), failed, 0, lock)
        self.fcall("glidemq_reclaimStalled", keys, *words)
        self.fcall("glidemq_reclaimStalledListJobs", keys, idle, most, self.now(), failed, lock)

    def heal(self) -> None:
        """Each tenth promotion tick: correct the count of the jobs from lists."""
        self.fcall("glidemq_healListActive", self.key("id"))

    def run(self, handle: Callable[[Taken], str] = lambda taken: "null") -> list[str]:
        """Work until the queue is empty; the ids in order."""
        order = []
        taken = self.take()
        while taken:
            order.append(taken.id)
            taken = self.complete(taken, handle(taken)) or self.take()
        return order

    def promote(self, ahead: int = 86_400_000) -> None:
        self.fcall("glidemq_promote", self.key("scheduled", "stream", "events"), self.now() + ahead)

    def revoke(self, job_id: str) -> str:
        keys = self.key(f"job:{job_id}", "stream", "scheduled", "failed", "events")
        answer: str = self.fcall("glidemq_revoke", keys, job_id, self.now(), "workers")
        return answer

    def children_values(self, job_id: str, anywhere: Any = None) -> dict[str, str]:
        """getChildrenValues: keyed by the member of the deps set. ``anywhere``: a client of all slots."""
        members = list(self.client.smembers(f"{self.prefix}:deps:{job_id}"))
        pipeline = (anywhere or self.client).pipeline(transaction=False)
        for base, _, child in (member.rpartition(":") for member in members):
            pipeline.hget(f"{base}:job:{child}", "returnvalue")
        found = zip(members, pipeline.execute(), strict=True)
        return {member: value for member, value in found if value is not None}

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


class PlainNode(Node):
    """A Node worker that ends jobs by the plain functions.

    Attributes:
        at: Its time in ms; 0: that of the server.
        entries: Of the jobs that were begun by their ids; '' for a job from a list.
    """

    def __init__(
        self, client: Any, queue: str = "etl", at: int = 0, consumer: str = "node-1", *, prefix: str = "glide"
    ) -> None:
        super().__init__(client, queue, prefix=prefix)
        self.consumer, self.at = consumer, at
        self.entries: dict[str, str] = {}
        if not client.function_list(library=GLIDEMQ):
            client.function_load(library(GLIDEMQ).source)
        self.open()

    def now(self) -> int:
        return self.at or super().now()

    @property
    def stream(self) -> str:
        return f"{self.prefix}:stream"

    def begin_next(self) -> tuple[str, str] | None:
        """Begin the job of the next entry of the stream, whatever the server says to that; job and entry."""
        place = self.read()
        if place is not None:
            self.activate(*place)
        return place

    def begin(self, job_id: str) -> str:
        """Begin the job of the next entry, which must be this one."""
        entry = self._next_entry_of(job_id)
        assert isinstance(self.activate(job_id, entry), Taken)
        return job_id

    def park(self, job_id: str) -> None:
        """Take a job that its ordering key holds back."""
        entry = self._next_entry_of(job_id)
        assert self.activate(job_id, entry) in ("GROUP_FULL", "GROUP_ORDERED")

    def _next_entry_of(self, job_id: str) -> str:
        place = self.read()
        assert place is not None
        assert place[0] == job_id
        self.entries[job_id] = place[1]
        return place[1]

    def begin_listed(self) -> str:
        """Begin the next job of the lists."""
        (job_id,) = self.pop()
        self.activate(job_id, "")
        self.entries[job_id] = ""
        return str(job_id)

    def end(self, job_id: str, entry: str | None = None, result: str = "1", *, remove: bool = False) -> None:
        keys = self.key("stream", "completed", "events", f"job:{job_id}", "metrics:completed")
        place = (job_id, self._entry(job_id, entry), result, self.now(), "workers")
        self.fcall("glidemq_complete", keys, *place, "true" if remove else "0", 0, 0, "", "", 0)

    def end_and_fetch(self, job_id: str, entry: str, result: str = "1") -> Any:
        keys = self.key("stream", "completed", "events", f"job:{job_id}", "metrics:completed")
        place = (job_id, entry, result, self.now(), "workers", self.consumer)
        return self.fcall("glidemq_completeAndFetchNext", keys, *place, "0", 0, 0, "", "")

    def end_as_failed(
        self, job_id: str, entry: str | None = None, reason: str = "boom", attempts: int = 0
    ) -> str:
        keys = self.key("stream", "failed", "scheduled", "events", f"job:{job_id}", "metrics:failed")
        place = (job_id, self._entry(job_id, entry), reason, self.now(), attempts, 10, "workers")
        return str(self.fcall("glidemq_fail", keys, *place, "0", 0, 0, 0))

    def _entry(self, job_id: str, given: str | None) -> str:
        return self.entries.get(job_id, "") if given is None else given

    def suspend(self, job_id: str, reason: str = "", timeout: int = 0) -> None:
        keys = self.key(f"job:{job_id}", "stream", "events", "suspended")
        words = (job_id, self.entries[job_id], "workers", self.now(), reason, timeout)
        assert self.fcall("glidemq_suspend", keys, *words) == "ok"

    def remove(self, job_id: str) -> int:
        names = (f"job:{job_id}", "stream", "scheduled", "completed", "failed", "events", f"log:{job_id}")
        return int(self.fcall("glidemq_removeJob", self.key(*names), job_id))

    def run_all(self, *broken: str) -> list[str]:
        """Run whatever is there; jobs whose id ends in one of ``broken`` fail."""
        ended = []
        while (place := self.begin_next()) is not None:
            if place[0].endswith(broken or ("\n",)):
                self.end_as_failed(*place)
            else:
                self.end(*place, f'"{place[0]}"')
            ended.append(place[0])
        return ended

    def flow(self, parent: str, children: list[str], queue: str = "") -> None:
        """A parent that waits for children in ``queue``, or in its own."""
        keys = self.key("id", "stream", "scheduled", "events")
        words: list[Any] = [parent, "{}", "{}", self.now(), 0, 0, 0, len(children), ""]
        for child in children:
            place = PlainNode(self.client, queue or self.name)
            keys += place.key("id", "stream", "scheduled", "events")
            words += [child, "{}", "{}", 0, 0, 0, place.prefix, self.name, ""]
        self.fcall("glidemq_addFlow", keys, *words, 0)
