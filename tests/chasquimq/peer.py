"""A program with the real package ``chasquimq``: reads calls from its input, and prints a reply for each.

It runs in an environment that has neither this project nor its dependencies.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from chasquimq import (
    BackoffSpec,
    MissedFiresPolicy,
    Queue,
    QueueEvents,
    RepeatPattern,
    UnrecoverableError,
    Worker,
)

MISSED = {
    None: None,
    "once": MissedFiresPolicy.fire_once(),
    "all": MissedFiresPolicy.fire_all(7),
}


class Peer:
    """The calls; each takes and returns JSON."""

    def __init__(self, url: str, name: str) -> None:
        self.url, self.name = url, name
        self.queue = Queue(name, redis_url=url)
        self.runs: list[Any] = []
        self.seen: list[Any] = []
        self.worker: Worker | None = None
        self.tasks: list[asyncio.Task[Any]] = []

    async def add(self, name: str, data: Any, backoff: Any = None, **options: Any) -> Any:
        if isinstance(backoff, list):
            backoff = getattr(BackoffSpec, backoff[0])(*backoff[1:2], **backoff[2])
        return (await self.queue.add(name, data, backoff=backoff, **options)).id

    async def add_and_wait(self, name: str, data: Any, seconds: float) -> Any:
        job = await self.queue.add(name, data)
        return await job.wait_for_result(timeout=seconds)

    async def cancel(self, job_id: str) -> Any:
        return await self.queue.cancel_delayed(job_id)

    async def peek(self) -> list[Any]:
        found = await self.queue.peek_dlq()
        return [{**one, "payload": one["payload"].hex()} for one in found]

    async def replay(self, limit: int) -> Any:
        return await self.queue.replay_dlq(limit)

    async def result(self, job_id: str) -> Any:
        return await self.queue.get_job_result(job_id)

    async def upsert(self, name: str, data: Any, missed: str | None = None, **options: Any) -> Any:
        every, cron, tz = (options.pop(key, None) for key in ("every_ms", "cron", "tz"))
        pattern = RepeatPattern.every(every) if every else RepeatPattern.cron(cron, tz=tz)
        made = await self.queue.upsert_repeatable_job(
            name, data, repeat=pattern, missed_fires=MISSED[missed], **options
        )
        return made.id

    async def schedules(self) -> list[Any]:
        return [repr(one) for one in await self.queue.get_repeatable_jobs()]

    async def remove_schedule(self, key: str) -> Any:
        return await self.queue.remove_repeatable_by_key(key)

    async def watch(self) -> None:
        self.tasks.append(asyncio.create_task(self._watch()))

    async def _watch(self) -> None:
        async for one in QueueEvents(self.name, redis_url=self.url, last_event_id="0-0", block_ms=200):
            self.seen.append([one.name, one.job_id, one.job_name, dict(one.fields)])

    async def work(self, **options: Any) -> None:
        self.worker = Worker(self.name, self._handle, redis_url=self.url, **options)
        self.tasks.append(asyncio.create_task(self.worker.run()))

    async def _handle(self, job: Any) -> Any:
        data = job.data
        self.runs.append([job.id, job.name, data.hex() if isinstance(data, bytes) else data, job.attempt])
        todo = data if isinstance(data, dict) else {}
        if "sleep" in todo:
            await asyncio.sleep(todo["sleep"])
        if "kill" in todo:
            os.kill(os.getpid(), 9)
        if "unrecoverable" in todo:
            raise UnrecoverableError(todo["unrecoverable"])
        if job.attempt < todo.get("fails", 0):
            raise ValueError("boom")
        return todo.get("returns")

    async def get_runs(self) -> list[Any]:
        return self.runs

    async def get_seen(self) -> list[Any]:
        return self.seen

    async def close(self) -> None:
        if self.worker is not None:
            self.worker.close()
            await self.tasks[-1]


async def main() -> None:
    """Answer the calls until the input ends."""
    peer, loop = Peer(*sys.argv[1:3]), asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        name, options = json.loads(line)
        try:
            reply = {"value": await getattr(peer, name)(**options)}
        except Exception as exc:  # noqa: BLE001  what the package raises is a reply
            reply = {"error": f"{type(exc).__name__}: {exc}"}
        print(json.dumps(reply), flush=True)  # noqa: T201  a program
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
