"""From the end of a flow to the event of its trigger, with thousands in one triggerer.

``python -m benchmarks.airflow_triggers --triggers 5000``: so many flows of five nodes run on one worker
process, and end spread over a minute; as many triggers watch them on one event loop, as in an Airflow
triggerer. Shown are the times from the end of a flow, as the server noted it, to the event of its trigger;
and what watching costs: connections, memory, processor, and calls to the server.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from typing import Annotated, Any, Final

import psutil
import redis
import typer
from rich.console import Console

from benchmarks.report import machine_now
from glidemq_orchestrate import EmbeddedServer, FlowNode, FlowProducer, FlowSpec, JobOptions, Worker
from glidemq_orchestrate.cli.shell import summary_table

QUEUE: Final = "work"
CONNECTION: Final = "AIRFLOW_CONN_GLIDEMQ_DEFAULT"
PATIENCE_SECONDS: Final = 120


def main(
    triggers: Annotated[list[int] | None, typer.Option(help="How many; repeatable.", min=1)] = None,
    seconds: Annotated[float, typer.Option(help="Over how long the flows end.", min=1)] = 60,
    *,
    quick: Annotated[bool, typer.Option(help="100 triggers, 5 s.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure how soon triggers fire."""
    counts, seconds = ([100], 5.0) if quick else (triggers or [100, 1_000, 5_000], seconds)
    with tempfile.TemporaryDirectory(prefix="glidemq-airflow-", ignore_cleanup_errors=True) as home:
        os.environ.setdefault("AIRFLOW_HOME", home)
        os.environ.setdefault("AIRFLOW__LOGGING__LOGGING_LEVEL", "ERROR")
        rows, machine = [], ""
        for count in counts:
            Console(stderr=True).print(f"{count:,} triggers", style="dim")
            machine, found = run(count, seconds)
            rows.append(found)
    if as_json:
        json.dump({"machine": machine, "seconds": seconds, "rows": rows}, sys.stdout)
        return
    out = Console(width=None if sys.stdout.isatty() else 160)
    out.print(f"\n{machine}\nflows of five nodes that end within {seconds:g} s")
    texts = [{name: f"{value:,}" for name, value in row.items()} for row in rows]
    out.print("\n", summary_table("From the end of a flow to the event of its trigger", texts))


def run(count: int, seconds: float) -> tuple[str, dict[str, float]]:
    """One server, one worker process, and so many triggers here."""
    with EmbeddedServer() as server:
        port = int(server.url.rsplit(":", 1)[1])
        os.environ[CONNECTION] = json.dumps({"conn_type": "glidemq", "host": "127.0.0.1", "port": port})
        context = multiprocessing.get_context("spawn")
        worker = context.Process(target=work, args=(server.url,), daemon=True)
        worker.start()
        with redis.Redis.from_url(server.url.replace("valkey", "redis"), decode_responses=True) as client:
            machine = machine_now(client)
            begin = submit(server.url, count, seconds)
            try:
                figures = asyncio.run(watch(count, client, begin))
            finally:
                worker.terminate()
                worker.join()
        return machine, {"triggers": count, **figures}


def submit(url: str, count: int, seconds: float) -> float:
    """Submit the flows; their first nodes begin when the triggers are ready, spread over the time."""
    ready = 3 + count / 150  # seconds to submit them and to start the triggers
    begin = time.time() + ready
    spread = random.Random(count)
    with FlowProducer(url) as flows:
        for number in range(count):
            delay = begin + spread.random() * seconds - time.time()
            options = JobOptions(delay=timedelta(seconds=max(delay, 0.001)))
            nodes = [FlowNode("n0", queue=QUEUE, job="nothing", options=options)]
            nodes += [
                FlowNode(f"n{at}", queue=QUEUE, job="nothing", after=[f"n{at - 1}"]) for at in range(1, 5)
            ]
            flows.submit(FlowSpec("five", nodes), flow_id=f"f{number}")
    return begin


async def watch(count: int, client: Any, begin: float) -> dict[str, float]:
    """Run the triggers; returns the times and what they cost."""
    from airflow_provider_glidemq.triggers.glidemq import GlideMQFlowTrigger  # noqa: PLC0415  Airflow is slow

    fired: dict[str, float] = {}

    async def wait_for(flow_id: str) -> None:
        async for event in GlideMQFlowTrigger(flow_id=flow_id).run():
            fired[flow_id] = time.time()
            assert event.payload["status"] == "completed", event

    async with asyncio.timeout(PATIENCE_SECONDS + count / 20):
        waiting = [asyncio.create_task(wait_for(f"f{number}")) for number in range(count)]
        await asyncio.sleep(max(begin - time.time(), 0))
        is_late = len(fired) / count
        process = psutil.Process()
        client.config_resetstat()
        used, at = process.cpu_times(), time.monotonic()
        connections = len(process.net_connections())
        await asyncio.gather(*waiting)
    took, now = time.monotonic() - at, process.cpu_times()
    calls = sum(
        stat["calls"]
        for name, stat in client.info("commandstats").items()
        if "hgetall" in name or "fcall" in name
    )
    ends = sorted(1000 * (at - ended(client, flow_id)) for flow_id, at in fired.items())
    return {
        "p50, ms": round(statistics.median(ends), 1),
        "p99, ms": round(ends[int(len(ends) * 0.99)], 1),
        "max, ms": round(ends[-1], 1),
        "ended too early, %": round(100 * is_late, 1),
        "connections": connections,
        "memory, MiB": round(process.memory_info().rss / 2**20),
        "processor, %": round(100 * (now.user + now.system - used.user - used.system) / took),
        "calls": calls,
    }


def ended(client: Any, flow_id: str) -> float:
    """When a flow has ended, in seconds since the epoch."""
    return int(client.hget(f"glide:{{{QUEUE}}}:gmo:flow:{flow_id}", "finished_at")) / 1000


def work(url: str) -> None:
    """Serve the queue in a process of its own."""
    worker = Worker(url=url, queues=[QUEUE], concurrency=50)
    worker.handler("nothing")(_nothing)
    worker.run()


async def _nothing(_: Any) -> None:
    return None


if __name__ == "__main__":
    typer.run(main)
