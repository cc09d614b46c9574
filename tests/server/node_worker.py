"""A worker of glide-mq in Node, as the server sees it: raw calls, no knowledge of flows."""

from __future__ import annotations

from typing import Any

from glidemq_orchestrate._lua import GLIDEMQ, library

GROUP = "workers"


class NodeWorker:
    """Takes jobs of one queue and ends them by the plain functions."""

    def __init__(
        self,
        client: Any,
        queue: str = "etl",
        now: int = 0,
        consumer: str = "node-1",
        *,
        prefix: str = "glide",
    ) -> None:
        self.client, self.base, self.consumer, self.now = client, f"{prefix}:{{{queue}}}:", consumer, now
        if not client.function_list(library=GLIDEMQ):
            client.function_load(library(GLIDEMQ).source)
        if "workers" not in [
            group["name"]
            for group in (
                client.xinfo_groups(self.key("stream")) if client.exists(self.key("stream")) else []
            )
        ]:
            client.xgroup_create(self.key("stream"), GROUP, id="0", mkstream=True)

    def key(self, name: str) -> str:
        return self.base + name

    def call(self, name: str, keys: list[str], *args: Any) -> Any:
        full = [self.key(key) for key in keys]
        return self.client.fcall(name, len(full), *full, *args)

    def take(self) -> tuple[str, str] | None:
        """Fetch and activate the next job: its id and its entry; None when there is none."""
        found = self.client.xreadgroup(GROUP, self.consumer, {self.key("stream"): ">"}, count=1)
        if not found:
            return None
        ((_, ((entry_id, fields),)),) = found
        self.call(
            "glidemq_moveToActive",
            [f"job:{fields['jobId']}", "stream"],
            self.now,
            entry_id,
            GROUP,
            fields["jobId"],
        )
        return fields["jobId"], entry_id

    def complete(self, job_id: str, entry_id: str, result: str = "1", *, remove: bool = False) -> None:
        keys = ["stream", "completed", "events", f"job:{job_id}", "metrics:completed"]
        mode = "true" if remove else "0"
        self.call("glidemq_complete", keys, job_id, entry_id, result, self.now, GROUP, mode, 0, 0, "", "", 0)

    def complete_and_fetch(self, job_id: str, entry_id: str, result: str = "1") -> Any:
        keys = ["stream", "completed", "events", f"job:{job_id}", "metrics:completed"]
        args = (job_id, entry_id, result, self.now, GROUP, self.consumer, "0", 0, 0, "", "")
        return self.call("glidemq_completeAndFetchNext", keys, *args)

    def fail(self, job_id: str, entry_id: str, reason: str = "boom", attempts: int = 0) -> str:
        keys = ["stream", "failed", "scheduled", "events", f"job:{job_id}", "metrics:failed"]
        args = (job_id, entry_id, reason, self.now, attempts, 10, GROUP, "0", 0, 0, 0)
        return str(self.call("glidemq_fail", keys, *args))

    def revoke(self, job_id: str) -> str:
        keys = [f"job:{job_id}", "stream", "scheduled", "failed", "events"]
        return str(self.call("glidemq_revoke", keys, job_id, self.now, GROUP))

    def remove(self, job_id: str) -> int:
        keys = [f"job:{job_id}", "stream", "scheduled", "completed", "failed", "events", f"log:{job_id}"]
        return int(self.call("glidemq_removeJob", keys, job_id))

    def run_all(self, *broken: str) -> list[str]:
        """Run whatever is there; jobs whose id ends in one of ``broken`` fail."""
        ended = []
        while (taken := self.take()) is not None:
            if taken[0].endswith(broken or ("\n",)):
                self.fail(*taken)
            else:
                self.complete(*taken, f'"{taken[0]}"')
            ended.append(taken[0])
        return ended
