"""Producers of another language, written as glide-mq writes: their jobs are served like ours."""

from __future__ import annotations

import json
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from glidemq_orchestrate import (
    JobState,
    Queue,
)
from glidemq_orchestrate._lua import GLIDEMQ, library
from tests.builders import NEAR

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker

STREAM = "glide:{etl}:stream"


class Node:
    """A producer that speaks to the server as glide-mq's own client does."""

    def __init__(self, redis_client: Any) -> None:
        self.client = redis_client
        if not redis_client.function_list(library=GLIDEMQ):
            redis_client.function_load(library(GLIDEMQ).source)

    def add(self, name: str, data: Any, queue: str = "etl", opts: Any = None, **kw: Any) -> str:
        base = f"glide:{{{queue}}}:"
        keys = [base + part for part in ("id", "stream", "scheduled", "events")]
        if "parent" in kw and kw.get("parent_queue", queue) == queue:
            keys.append(f"{base}deps:{kw['parent']}")
        wire = json.dumps(opts or {})
        first = [name, json.dumps(data), wire, 1_700_000_000_000, kw.get("delay", 0), kw.get("priority", 0)]
        rest = [kw.get("parent", ""), kw.get("attempts", 0), "", 0, 0, 0, 0, 0, 0, 0, kw.get("id", ""), 0]
        parent_queue = kw.get("parent_queue", queue) if "parent" in kw else ""
        return str(self.client.fcall("glidemq_addJob", len(keys), *keys, *first, *rest, parent_queue))

    def add_flow(self, name: str, children: int) -> tuple[str, list[str]]:
        """A parent that waits for its children, as the plain functions make it."""
        base = "glide:{etl}:"
        keys = [base + part for part in ("id", "stream", "scheduled", "events")]
        reply = self.client.fcall("glidemq_addFlow", 4, *keys, name, "null", "{}", 1, 0, 0, 0, 0, "", 0)
        parent = str(json.loads(reply)[0])
        self.client.sadd(base + f"deps:{parent}", *(f"glide:{{etl}}:c{n}" for n in range(children)))
        return parent, [self.add("child", n, id=f"c{n}", parent=parent) for n in range(children)]


class TestProducersOfAnotherLanguage:
    def test_their_jobs_run_with_their_options(
        self, queue: Queue, run_worker: RunWorker, redis_client: Any, eventually: Eventually
    ) -> None:
        node, tries = Node(redis_client), Counter[str]()

        def work(ctx: Any) -> Any:
            tries[ctx.job_id] += 1
            if ctx.data == "fail":
                raise ValueError("boom")
            return ctx.data

        run_worker(["etl"], {"work": work})
        plain = node.add("work", {"a": [1, None]})
        packed = node.add(
            "work", "fail", opts={"attempts": 3, "backoff": {"type": "fixed", "delay": 20}}, attempts=3
        )
        delayed = node.add("work", 1, delay=100)
        eventually(lambda: queue.get_job(plain).state is JobState.COMPLETED)
        assert queue.get_job(plain).result == {"a": [1, None]}
        eventually(lambda: queue.get_job(packed).state is JobState.FAILED)
        assert (queue.get_job(packed).failed_reason, tries[packed]) == ("ValueError: boom", 3)
        eventually(lambda: queue.get_job(delayed).state is JobState.COMPLETED)
        assert redis_client.hget(f"glide:{{etl}}:job:{plain}", "returnvalue") == '{"a":[1,null]}'

    def test_their_parents_wait_for_their_children(
        self, queue: Queue, run_worker: RunWorker, redis_client: Any, eventually: Eventually
    ) -> None:
        ended: list[str] = []
        parent, children = Node(redis_client).add_flow("parent", 3)
        assert queue.get_job(parent).state is JobState.WAITING_CHILDREN
        run_worker(
            ["etl"],
            {"child": lambda ctx: ended.append("child"), "parent": lambda ctx: ended.append("parent")},
        )
        eventually(lambda: queue.get_job(parent).state is JobState.COMPLETED)
        assert ended == ["child"] * 3 + ["parent"]
        assert {queue.get_job(child).state for child in children} == {JobState.COMPLETED}

    def test_their_parents_in_another_queue_wait_too(
        self, queue: Queue, run_worker: RunWorker, redis_client: Any, eventually: Eventually
    ) -> None:
        node = Node(redis_client)
        parent, _ = node.add_flow("parent", 1)
        child = node.add("child", 1, queue=NEAR, parent=parent, parent_queue="etl")
        redis_client.sadd(f"glide:{{etl}}:deps:{parent}", f"glide:{{{NEAR}}}:{child}")
        run_worker(["etl"], {"child": lambda ctx: 1, "parent": lambda ctx: 2})
        eventually(lambda: queue.get_job("c0").state is JobState.COMPLETED)
        assert queue.get_job(parent).state is JobState.WAITING_CHILDREN
        run_worker([NEAR], {"child": lambda ctx: 1})
        eventually(lambda: queue.get_job(parent).state is JobState.COMPLETED)

    def test_their_retention_is_obeyed(
        self, queue: Queue, run_worker: RunWorker, redis_client: Any, eventually: Eventually
    ) -> None:
        node = Node(redis_client)
        run_worker(["etl"], {"work": lambda ctx: 1})
        gone = node.add("work", 1, opts={"removeOnComplete": True})
        eventually(lambda: not redis_client.exists(f"glide:{{etl}}:job:{gone}"))
        kept = [node.add("work", n, opts={"removeOnComplete": {"count": 2}}) for n in range(5)]
        eventually(lambda: redis_client.zcard("glide:{etl}:completed") == 2 and not redis_client.xlen(STREAM))
        assert sum(redis_client.exists(f"glide:{{etl}}:job:{job_id}") for job_id in kept) == 2

    def test_a_revoked_job_does_not_run(
        self, queue: Queue, run_worker: RunWorker, redis_client: Any, eventually: Eventually
    ) -> None:
        job_id = Node(redis_client).add("work", 1)
        redis_client.hset(f"glide:{{etl}}:job:{job_id}", "revoked", "1")
        run_worker(["etl"], {"work": lambda ctx: 1})
        eventually(lambda: queue.get_job(job_id).state is JobState.FAILED)
        assert queue.get_job(job_id).failed_reason == "revoked"

    def test_a_revoked_run_is_asked_to_stop(
        self, queue: Queue, run_worker: RunWorker, redis_client: Any, eventually: Eventually
    ) -> None:
        stopped = threading.Event()
        run_worker(["etl"], {"work": lambda ctx: stopped.set() if ctx.cancelled.wait(20) else None})
        job_id = Node(redis_client).add("work", 1)
        eventually(lambda: queue.get_job(job_id).state is JobState.ACTIVE)
        redis_client.hset(f"glide:{{etl}}:job:{job_id}", "revoked", "1")
        assert stopped.wait(20)

    def test_entries_of_missing_jobs_do_no_harm(
        self, queue: Queue, run_worker: RunWorker, redis_client: Any, eventually: Eventually
    ) -> None:
        redis_client.xadd(STREAM, {"jobId": "ghost", "name": "work"})
        redis_client.xadd(STREAM, {"other": "field"})
        run_worker(["etl"], {"work": lambda ctx: 1})
        job_id = queue.add("work")
        eventually(lambda: queue.get_job(job_id).state is JobState.COMPLETED)
        assert not redis_client.exists("glide:{etl}:job:ghost")
