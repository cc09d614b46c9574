"""The cost of one call of each hot server function at 1, 1,000 and 100,000 waiting jobs.

Two figures per call: the microseconds that the server reports (``INFO commandstats``), and the time per call
of a pipeline seen from the client, which adds reading the request and writing the reply. Each is also
given as a multiple of a call that does nothing, measured in the same rounds, since machines differ and are
noisy. ``python -m benchmarks.library [--json]``.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import redis
from redis.connection import Connection
from rich.console import Console

from glidemq_orchestrate import EmbeddedServer
from glidemq_orchestrate.cli.shell import summary_table
from glidemq_orchestrate.io.sync import SyncDriver
from glidemq_orchestrate.server.libraries import ensure_libraries
from glidemq_orchestrate.settings import ConnectionSettings

SIZES: Final = (1, 1_000, 100_000)
ROUNDS: Final = 5
CALLS: Final = 200
FEW: Final = 5  # for calls that may take long
T: Final = 1_700_000_000_000
P: Final = "glide:{bench}:"
DATA: Final = json.dumps({"to": "someone@example.com", "lines": list(range(20))})

Words = tuple[Any, ...]


def fcall(name: str, keys: str, *args: Any) -> Words:
    """One call of a function; keys are the parts after the queue's prefix."""
    named = [P + key for key in keys.split()]
    return ("FCALL", name if name.startswith("gmo_") else f"glidemq_{name}", len(named), *named, *args)


class Bench:
    """A queue with many waiting jobs, and the helpers of the cases."""

    def __init__(self, client: redis.Redis) -> None:
        self.client: Any = client
        self._packer: Any = Connection()  # type: ignore[no-untyped-call]
        where = client.get_connection_kwargs()
        self._socket = socket.create_connection((where["host"], where["port"]))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._marks = 0
        self.now = T

    def fill(self, size: int) -> None:
        """Empty the server; then ``size`` jobs wait in the stream, and as many are delayed far ahead."""
        self.client.flushall()
        self.client.xgroup_create(f"{P}stream", "workers", "0", mkstream=True)
        for first in range(0, size, 2_000):
            calls = [job_call() for _ in range(min(2_000, size - first))]
            calls += [job_call(delay=10**9) for _ in calls]
            self.send(calls)
        self.now = T

    def forget_delivered(self) -> None:
        """Skip the jobs that wait now and forget pending ones, so that a case reads only its own jobs."""
        self.client.xgroup_destroy(f"{P}stream", "workers")
        self.client.xgroup_create(f"{P}stream", "workers", "$")

    def send(self, calls: Sequence[Words]) -> float:
        """Seconds that a pipeline took until its last reply; replies are discarded."""
        self._marks += 1
        mark = f"end-of-pipeline-{self._marks}".encode()
        request = b"".join(self._packer.pack_commands([*calls, ("ECHO", mark)]))
        begun = time.perf_counter()
        self._socket.sendall(request)
        tail = b""
        while not tail.endswith(mark + b"\r\n"):
            tail = (tail + self._socket.recv(1 << 18))[-64:]
        return time.perf_counter() - begun

    def add(self, count: int = CALLS, **given: Any) -> list[str]:
        """Add jobs; returns their ids."""
        pipe = self.client.pipeline(transaction=False)
        for _ in range(count):
            pipe.execute_command(*job_call(**given))
        return [str(job_id) for job_id in pipe.execute()]

    def read(self, count: int = CALLS) -> list[tuple[str, str]]:
        """Read jobs without activating them; returns entry and job ids."""
        reply = self.client.xreadgroup("workers", "c", {f"{P}stream": ">"}, count=count)
        return [(entry_id, fields["jobId"]) for entry_id, fields in reply[0][1]]

    def active(self, count: int = CALLS) -> list[tuple[str, str]]:
        """Add and activate jobs; returns entry and job ids."""
        self.add(count)
        jobs = self.read(count)
        self.send([activation(job_id, entry_id) for entry_id, job_id in jobs])
        return jobs


Case = Callable[[Bench], list[Words]]


def job_call(**given: Any) -> Words:
    """An addJob call with typical data."""
    fields: dict[str, Any] = {"delay": 0, "priority": 0, "group": "", "concurrency": 0, "lifo": 0} | given
    now = given.get("at", time.time_ns() // 1_000_000)
    args = ["send", DATA, '{"attempts":3}', now, fields["delay"], fields["priority"], "", 3, fields["group"]]
    args += [fields["concurrency"], 0, 0, 0, 0, 0, 0, "", fields["lifo"], "", "", ""]
    return fcall("addJob", "id stream scheduled events", *args)


def activation(job_id: str, entry_id: str) -> Words:
    """A moveToActive call."""
    return fcall("moveToActive", f"job:{job_id} stream", T, entry_id, "workers", job_id, "")


def dedup(_: Bench) -> list[Words]:
    """Deduplicated jobs, each the first of its id."""
    args = ["simple", "send", DATA, '{"attempts":3}', T, 0, 0, "", 3]
    names = "dedup id stream scheduled events"
    return [fcall("dedup", names, f"d{time.perf_counter_ns()}-{i}", 0, *args) for i in range(CALLS)]


def dedup_skipped(bench: Bench) -> list[Words]:
    """Deduplicated jobs, each a repeat."""
    calls = dedup(bench)
    bench.send(calls)
    return calls


def add_flow(_: Bench) -> list[Words]:
    """A parent with three children."""
    child = ["send", DATA, "{}", 0, 0, 3, P[:-1], "bench", ""]
    keys = "id stream scheduled events " * 4
    return [fcall("addFlow", keys, "all", "{}", "{}", T, 0, 0, 3, 3, "", *child * 3, 0)] * (CALLS // 4)


def promote(bench: Bench) -> list[Words]:
    """One due job per call."""
    for step in range(1, CALLS + 1):
        bench.client.execute_command(*job_call(at=T, delay=bench.now - T + step))
    bench.now += CALLS
    names = "scheduled stream events"
    return [fcall("promote", names, bench.now - CALLS + step) for step in range(1, CALLS + 1)]


def pop_lists(bench: Bench) -> list[Words]:
    """One LIFO job per call."""
    bench.add(lifo=1)
    return [fcall("popLists", "priority lifo", 1)] * CALLS


def move_to_active(bench: Bench) -> list[Words]:
    """Activate a job without a group."""
    bench.add()
    return [activation(job_id, entry_id) for entry_id, job_id in bench.read()]


def move_to_active_ordered(bench: Bench) -> list[Words]:
    """Activate a job of a group."""
    bench.add(group="g", concurrency=10**6)
    return [activation(job_id, entry_id) for entry_id, job_id in bench.read()]


def complete(bench: Bench) -> list[Words]:
    """Complete an active job, keep it."""
    names = "stream completed events job:{} metrics:completed"
    return [
        fcall(
            "complete",
            names.format(job_id),
            job_id,
            entry_id,
            '"ok"',
            T + 50,
            "workers",
            "0",
            0,
            0,
            "",
            "",
            "",
        )
        for entry_id, job_id in bench.active()
    ]


def complete_and_fetch(bench: Bench) -> list[Words]:
    """Complete an active job and activate the next of the stream, one after the other."""
    entry_id, job_id = bench.active(1)[0]
    bench.add()
    waiting = bench.client.xrange(f"{P}stream", min=_after_delivered(bench), count=CALLS - 1)
    chain = [(entry_id, job_id), *((entry, fields["jobId"]) for entry, fields in waiting)]
    names = "stream completed events job:{} metrics:completed"
    tail = ("0", 0, 0, "", "", "", "", "", "", "", "", "", "")
    return [
        fcall("completeAndFetchNext", names.format(job), job, entry, '"ok"', T + 50, "workers", "c", *tail)
        for entry, job in chain
    ]


def _after_delivered(bench: Bench) -> str:
    return f"({bench.client.xinfo_groups(f'{P}stream')[0]['last-delivered-id']}"


def _failures(bench: Bench, attempts: int) -> list[Words]:
    names = "stream failed scheduled events job:{} metrics:failed"
    how = (attempts, 10**9, "workers", "0", 0, 0, "")
    return [
        fcall("fail", names.format(job_id), job_id, entry_id, "boom", T + 50, *how)
        for entry_id, job_id in bench.active()
    ]


def revoke_oldest(bench: Bench) -> list[Words]:
    """Revoke the job that has waited longest."""
    bench.add()
    entries = bench.client.xrange(f"{P}stream", count=CALLS)
    return [_revocation(fields["jobId"]) for _, fields in entries]


def revoke_newest(bench: Bench) -> list[Words]:
    """Revoke the job added last: the worst case of a search."""
    return [_revocation(job_id) for job_id in bench.add(FEW)]


def _revocation(job_id: str) -> Words:
    return fcall("revoke", f"job:{job_id} stream scheduled failed events", job_id, T, "workers")


def change_priority_newest(bench: Bench) -> list[Words]:
    """Give the waiting job added last a priority."""
    names = "job:{} stream scheduled events"
    return [fcall("changePriority", names.format(i), i, 3, "workers") for i in bench.add(FEW)]


def change_priority_prioritized(bench: Bench) -> list[Words]:
    """Change the priority of a prioritised job."""
    names = "job:{} stream scheduled events"
    return [fcall("changePriority", names.format(i), i, 3, "workers") for i in bench.add(priority=5)]


def change_delay_newest(bench: Bench) -> list[Words]:
    """Delay the waiting job added last."""
    names = "job:{} stream scheduled events"
    return [fcall("changeDelay", names.format(i), i, 10**9, T, "workers") for i in bench.add(FEW)]


def change_delay_delayed(bench: Bench) -> list[Words]:
    """Change the delay of a delayed job."""
    names = "job:{} stream scheduled events"
    return [fcall("changeDelay", names.format(i), i, 10**9, T, "workers") for i in bench.add(delay=10**9)]


def remove_newest(bench: Bench) -> list[Words]:
    """Remove the waiting job added last; the search ends after 5,000 entries."""
    names = "job:{0} stream scheduled completed failed events log:{0}"
    return [fcall("removeJob", names.format(i), i) for i in bench.add(FEW)]


def reclaim_stalled(bench: Bench) -> list[Words]:
    """One stalled job per call."""
    bench.active(FEW)
    args = ("workers", "c2", 0, 1, T + 10**6, f"{P}failed", "", 1000)
    return [fcall("reclaimStalled", "stream events", *args)] * FEW


def _scans(name: str, keys: str, *args: Any) -> Case:
    def prepare(bench: Bench) -> list[Words]:
        bench.client.set(f"{P}list-active", 1)
        return [fcall(name, keys, *args)] * FEW

    return prepare


def exchange(*outcomes: Words, wanted: int = 0) -> Words:
    """One exchange of a worker."""
    words = [word for outcome in outcomes for word in outcome]
    return fcall("gmo_finish_and_fetch", "stream", T, "workers", "c", wanted, "t", "", 0, 0, *words)


def _begun(bench: Bench) -> list[Any]:
    """Job id, entry id and time of the start of attempts."""
    bench.add()
    return [
        row for _ in range(CALLS // 100) for row in bench.client.execute_command(*exchange(wanted=100))[2]
    ]


def begin(bench: Bench) -> list[Words]:
    """Start one attempt per call."""
    bench.add()
    return [exchange(wanted=1)] * CALLS


def heartbeats(bench: Bench) -> list[Words]:
    """Renew one lease per call."""
    return [fcall("gmo_heartbeats", "stream", T, job, "t", begun) for job, _, begun, *_ in _begun(bench)]


def _ends(kind: str, text: str, *numbers: int, many: int = 1) -> Case:
    def prepare(bench: Bench) -> list[Words]:
        outcomes = [
            (kind, job, entry, "t", begun, text, "", *numbers) for job, entry, begun, *_ in _begun(bench)
        ]
        return [exchange(*outcomes[at : at + many]) for at in range(0, len(outcomes), many)]

    return prepare


def _same(*call: Any, count: int = CALLS) -> Case:
    return lambda _: [fcall(*call)] * count


CASES: Final[dict[str, Case]] = {
    "no-op": lambda _: [("FCALL", "glidemq_version", 0)] * CALLS,
    "XADD": lambda _: [("XADD", "bench:plain", "*", "jobId", "1", "name", "send")] * CALLS,
    "addJob": lambda _: [job_call()] * CALLS,
    "addJob, delayed": lambda _: [job_call(delay=10**9)] * CALLS,
    "addJob, ordered": lambda _: [job_call(group="g", concurrency=10**6)] * CALLS,
    "dedup": dedup,
    "dedup, skipped": dedup_skipped,
    "addFlow, 3 children": add_flow,
    "promote, 1 due": promote,
    "promote, none due": _same("promote", "scheduled stream events", T),
    "nextDue": _same("nextDue", "scheduled ratelimited"),
    "popLists": pop_lists,
    "checkConcurrency": _same("checkConcurrency", "meta stream list-active", "workers"),
    "rateLimit": _same("rateLimit", "rate meta", 10**9, 1000, T),
    "moveToActive": move_to_active,
    "moveToActive, ordered": move_to_active_ordered,
    "complete": complete,
    "completeAndFetchNext": complete_and_fetch,
    "fail, retry": lambda bench: _failures(bench, 3),
    "fail, for good": lambda bench: _failures(bench, 0),
    "revoke, oldest": revoke_oldest,
    "revoke, newest": revoke_newest,
    "changePriority, newest": change_priority_newest,
    "changePriority, prioritized": change_priority_prioritized,
    "changeDelay, newest": change_delay_newest,
    "changeDelay, delayed": change_delay_delayed,
    "removeJob, newest": remove_newest,
    "reclaimStalled, 1 stalled": reclaim_stalled,
    "reclaimStalledListJobs": _scans("reclaimStalledListJobs", "stream events", 0, 1, T, f"{P}failed"),
    "healListActive": _scans("healListActive", "id"),
    "getActiveListJobIds": _scans("getActiveListJobIds", "id", 0, -1),
    "begin an attempt": begin,
    "keep a lease": heartbeats,
    "finish an attempt": _ends("done", '"ok"', 0, 0),
    "finish 20 attempts": _ends("done", '"ok"', 0, 0, many=20),
    "fail an attempt, retry": _ends("fail", "boom", 3, 10**9),
}


def measure(bench: Bench, calls: Sequence[Words]) -> tuple[float, float]:
    """Microseconds per call: reported by the server, and of a pipeline measured here."""
    bench.client.config_resetstat()
    seconds = bench.send(calls)
    stats: Any = bench.client.info("commandstats")
    reported = stats[f"cmdstat_{calls[0][0].lower()}"]
    assert reported["calls"] == len(calls), reported
    return reported["usec"] / len(calls), seconds * 1e6 / len(calls)


def rows_of(bench: Bench, size: int) -> list[dict[str, Any]]:
    """One row per function: the best of the interleaved rounds, since noise only ever adds."""
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES}
    bench.fill(size)
    for _ in range(ROUNDS):
        for name, prepare in CASES.items():
            if size <= 1_000:
                bench.fill(size)
            bench.forget_delivered()
            samples[name].append(measure(bench, prepare(bench)))
    best = {name: [min(column) for column in zip(*found, strict=True)] for name, found in samples.items()}
    noop_server, noop_client = best["no-op"]
    return [
        {
            "call": name,
            "waiting": size,
            "server_us": server,
            "server_noops": server / noop_server,
            "pipelined_us": client,
            "pipelined_noops": client / noop_client,
        }
        for name, (server, client) in best.items()
    ]


def main() -> None:
    """Measure and print."""
    with EmbeddedServer() as server:
        settings = ConnectionSettings.resolve(server.url)
        driver = SyncDriver(settings)
        driver.run(ensure_libraries())
        driver.close()
        client = redis.Redis.from_url(server.url.replace("valkey://", "redis://"), decode_responses=True)
        client.config_set("appendonly", "no")  # the cost of the disk is not measured here
        bench = Bench(client)
        rows = [row for size in SIZES for row in rows_of(bench, size)]
    rows.sort(key=lambda row: (list(CASES).index(row["call"]), row["waiting"]))
    if "--json" in sys.argv:
        print(json.dumps(rows, indent=2))
    else:
        Console().print(summary_table("Server functions", rows))


if __name__ == "__main__":
    main()
