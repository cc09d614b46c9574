"""A Node worker as raw calls: what it sends, with the arguments that it sends."""

from __future__ import annotations

import time
from typing import Any

P = "glide:{etl}:"


def keys(*names: str) -> list[str]:
    return [P + name for name in names]


class Node:
    """One worker of queue ``etl``; knows the entry of each job it holds."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.entries: dict[str, str] = {}
        if not client.exists(P + "stream"):
            client.xgroup_create(P + "stream", "workers", "0", mkstream=True)

    def call(self, name: str, names: list[str], *args: Any) -> Any:
        return self.client.fcall(f"glidemq_{name}", len(names), *names, *args)

    @staticmethod
    def now() -> int:
        return time.time_ns() // 1_000_000

    def take(self) -> str:
        """Take the next entry; returns its job."""
        ((_, ((entry_id, fields),)),) = self.client.xreadgroup(
            "workers", "node", {P + "stream": ">"}, count=1
        )
        self.entries[fields["jobId"]] = entry_id
        return str(fields["jobId"])

    def begin(self, job_id: str) -> str:
        """Take the next entry, which must be this job's, and begin it."""
        taken = self.take()
        assert taken == job_id
        reply = self.call(
            "moveToActive", keys(f"job:{taken}", "stream"), self.now(), self.entries[taken], "workers", taken
        )
        assert isinstance(reply, list), reply
        return taken

    def park(self, job_id: str) -> None:
        """Take a job that its ordering key holds back."""
        assert self.take() == job_id
        names = keys(f"job:{job_id}", "stream")
        entry_id = self.entries[job_id]
        reply = self.call("moveToActive", names, self.now(), entry_id, "workers", job_id)
        assert reply in ("GROUP_FULL", "GROUP_ORDERED")

    def begin_listed(self) -> str:
        """Begin the next job of the lists."""
        (job_id,) = self.call("popLists", keys("priority", "lifo"), 1)
        self.client.incrby(P + "list-active", 1)
        self.call("moveToActive", keys(f"job:{job_id}", "stream"), self.now(), "", "workers", job_id)
        self.entries[job_id] = ""
        return str(job_id)

    def finish(self, job_id: str, result: str = "null") -> None:
        names = keys("stream", "completed", "events", f"job:{job_id}", "metrics:completed")
        args = (job_id, self.entries.get(job_id, ""), result, self.now(), "workers", "0", 0, 0, "", "")
        self.call("complete", names, *args)

    def fail(self, job_id: str, reason: str = "boom") -> None:
        names = keys("stream", "failed", "scheduled", "events", f"job:{job_id}", "metrics:failed")
        args = (job_id, self.entries.get(job_id, ""), reason, self.now(), 0, 0, "workers", "0", 0, 0)
        self.call("fail", names, *args)

    def suspend(self, job_id: str, reason: str = "", timeout: int = 0) -> None:
        names = keys(f"job:{job_id}", "stream", "events", "suspended")
        args = (job_id, self.entries[job_id], "workers", self.now(), reason, timeout)
        assert self.call("suspend", names, *args) == "ok"

    def flow(self, parent: str, children: list[str], queue: str = "etl") -> None:
        """A parent in ``etl`` that waits for children in ``queue``."""
        names = keys("id", "stream", "scheduled", "events")
        args: list[Any] = [parent, "{}", "{}", self.now(), 0, 0, 0, len(children), ""]
        for child in children:
            base = f"glide:{{{queue}}}"
            names += [f"{base}:{name}" for name in ("id", "stream", "scheduled", "events")]
            args += [child, "{}", "{}", 0, 0, 0, base, "etl", ""]
        self.call("addFlow", names, *args, 0)

    def promote(self) -> None:
        self.call("promote", keys("scheduled", "stream", "events"), self.now())
