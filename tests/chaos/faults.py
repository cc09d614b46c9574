"""What goes wrong in a round: each fault is a function of the round and of the random numbers of its seed."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from redis.crc import key_slot

from glidemq_orchestrate import JobState, Queue
from glidemq_orchestrate.errors import GlideMQError, StateError
from glidemq_orchestrate.lifeline.guard import processes
from tests.chaos.key_moves import KeyMove, begin_move
from tests.chaos.versions import newer_library, newer_worker, older_library, older_worker, other_glidemq

if TYPE_CHECKING:
    from tests.chaos.round import Round

Fault = Callable[["Round", random.Random], None]

FOREIGN: Final = (
    "#!lua name=glidemq_orchestrate\nredis.register_function('gmo_version', function() return {'0', ''} end)"
)


def kill_worker(at: Round, chance: random.Random) -> None:
    """SIGKILL one worker."""
    at.kill(chance.choice(at.alive("worker")))


def kill_workers(at: Round, chance: random.Random) -> None:
    """SIGKILL every worker at once."""
    for process in at.alive("worker"):
        at.kill(process)


def kill_parent(at: Round, chance: random.Random) -> None:
    """SIGKILL the parent of worker processes: they drain."""
    if parents := at.alive("worker_processes"):
        at.kill(chance.choice(parents))


def stop_parent(at: Round, chance: random.Random) -> None:
    """SIGTERM the parent of worker processes: they return their jobs, and all end."""
    if parents := at.alive("worker_processes"):
        at.signal(chance.choice(parents), signal.SIGTERM, is_end=True)


def kill_worker_process(at: Round, chance: random.Random) -> None:
    """SIGKILL one of the worker processes of a parent, which replaces it."""
    at.children.kill_one(chance, "worker_process")


def kill_node_worker(at: Round, chance: random.Random) -> None:
    """SIGKILL one Node worker."""
    if processes := at.alive("node_worker"):
        at.kill(chance.choice(processes))


def pause_node_worker(at: Round, chance: random.Random) -> None:
    """Stop a Node worker for a while, often beyond its lease; then it reports what glide-mq accepts."""
    if at.alive("node_worker"):
        _pause(at, chance, "node_worker")


def kill_supervising(at: Round, chance: random.Random) -> None:
    """SIGKILL the worker that leads the supervision of a queue."""
    if (process := at.leader(chance.choice(at.world.queues))) is not None:
        at.kill(process)


def kill_child(at: Round, chance: random.Random) -> None:
    """SIGKILL a process in which a worker runs handlers."""
    if chance.random() < 0.5:
        at.children.kill_one(chance)
    else:
        at.children.kill_next()


def kill_renewer(at: Round, chance: random.Random) -> None:
    """SIGKILL, or stop for a while, the process that renews the leases of a worker which cannot."""
    workers = {process.pid for role in RENEWED for process in at.alive(role)}
    table = processes()
    if pids := sorted(pid for pid, entry in table.items() if entry.parent in workers and _is_renewer(pid)):
        pid = chance.choice(pids)
        if chance.random() < 0.7:
            _send(pid, signal.SIGKILL)
        else:
            _send(pid, signal.SIGSTOP)
            at.later(chance.uniform(1, 5), partial(_send, pid, signal.SIGCONT))


def _is_renewer(pid: int) -> bool:
    with suppress(OSError):  # it has ended
        return b"/renewing_process.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(OSError):
        os.kill(pid, number)


def kill_submitter(at: Round, chance: random.Random) -> None:
    """SIGKILL a submitter."""
    at.kill(chance.choice(at.alive("submitter")))


def kill_waiter(at: Round, chance: random.Random) -> None:
    """SIGKILL a process that waits for flows."""
    at.kill(chance.choice(at.alive("waiter")))


def kill_steerer(at: Round, chance: random.Random) -> None:
    """SIGKILL a process that cancels, retries, restarts and extends."""
    at.kill(chance.choice(at.alive("steerer")))


def stop_worker(at: Round, chance: random.Random) -> None:
    """SIGTERM one worker: it returns its jobs and ends."""
    at.signal(chance.choice(at.alive("worker")), signal.SIGTERM, is_end=True)


def pause_worker(at: Round, chance: random.Random) -> None:
    """Stop a worker for a while, often beyond its lease; then it goes on."""
    _pause(at, chance, "worker")


def kill_spark_worker(at: Round, chance: random.Random) -> None:
    """SIGKILL one Spark worker."""
    at.kill(chance.choice(at.alive("spark_worker")))


def kill_host(at: Round, chance: random.Random) -> None:
    """SIGKILL a session host, the process in which steps of Spark run."""
    at.children.kill_one(chance, "host")


def kill_jvm(at: Round, chance: random.Random) -> None:
    """SIGKILL the JVM of a session."""
    at.children.kill_one(chance, "jvm")


def kill_driver(at: Round, chance: random.Random) -> None:
    """SIGKILL the program of a step that has a driver of its own."""
    at.children.kill_one(chance, "driver")


def kill_keeper(at: Round, chance: random.Random) -> None:
    """SIGKILL the process that keeps a driver."""
    at.children.kill_one(chance, "keeper")


def pause_spark_worker(at: Round, chance: random.Random) -> None:
    """Stop a Spark worker for a while, often beyond its lease; its steps go on meanwhile."""
    _pause(at, chance, "spark_worker")


def stop_spark_worker(at: Round, chance: random.Random) -> None:
    """SIGTERM one Spark worker: it returns its jobs, and ends with its sessions."""
    at.signal(chance.choice(at.alive("spark_worker")), signal.SIGTERM, is_end=True)


def kill_bridge(at: Round, chance: random.Random) -> None:
    """SIGKILL one bridge to ChasquiMQ."""
    at.kill(chance.choice(at.alive("bridge")))


def kill_chasqui_worker(at: Round, chance: random.Random) -> None:
    """SIGKILL one worker behind the bridge."""
    at.kill(chance.choice(at.alive("chasqui_worker")))


def pause_bridge(at: Round, chance: random.Random) -> None:
    """Stop a bridge for a while, often beyond its lease; then it goes on."""
    _pause(at, chance, "bridge")


def pause_chasqui_worker(at: Round, chance: random.Random) -> None:
    """Stop a worker behind the bridge for a while, often beyond its lease; then it goes on."""
    _pause(at, chance, "chasqui_worker")


def stop_bridge(at: Round, chance: random.Random) -> None:
    """SIGTERM one bridge: it returns its jobs, and what it has added goes on."""
    at.signal(chance.choice(at.alive("bridge")), signal.SIGTERM, is_end=True)


def stop_chasqui_worker(at: Round, chance: random.Random) -> None:
    """SIGTERM one worker behind the bridge: it hands back what it runs."""
    at.signal(chance.choice(at.alive("chasqui_worker")), signal.SIGTERM, is_end=True)


def pause_client(at: Round, chance: random.Random) -> None:
    """Stop a submitter or steerer for a while."""
    _pause(at, chance, chance.choice(("submitter", "steerer")))


def step_clocks(at: Round, chance: random.Random) -> None:
    """Set the wall clocks of some processes."""
    for process in at.alive():
        if chance.random() < 0.5:
            at.signal(process, signal.SIGUSR1)


def kill_server(at: Round, chance: random.Random) -> None:
    """SIGKILL a server; it comes back with its append-only file."""
    server = chance.choice(at.servers)
    assert server.process is not None
    if server.process.poll() is None:  # else it is down already
        server.kill()
        at.later(chance.uniform(0, at.down_seconds), server.start)


def lose_power(at: Round, chance: random.Random) -> None:
    """A server and the end of its append-only file are gone: what was not yet on the disk.

    With ``appendfsync everysec`` that is what was written in about the last second, and a bit more on a busy
    disk; here always up to a second.
    """
    server = chance.choice(at.servers)
    sizes = {path: path.stat().st_size for path in server.directory.glob("appendonlydir/*.incr.aof")}

    def fail() -> None:
        assert server.process is not None
        if server.process.poll() is None:
            server.kill()
            for path, size in sizes.items():
                os.truncate(path, min(size, path.stat().st_size))
            at.later(chance.uniform(0, at.down_seconds), server.start)

    at.later(chance.uniform(0, 1), fail)


def fail_over(at: Round, chance: random.Random) -> None:
    """A replica of a cluster takes over: with its primary, without asking it, or without asking anyone."""
    roles = {server: at.ask(server, "ROLE") for server in at.servers}
    if replicas := [server for server, role in roles.items() if role and role[0] == "slave"]:
        at.ask(
            chance.choice(replicas), "CLUSTER", "FAILOVER", *chance.choice(((), ("FORCE",), ("TAKEOVER",)))
        )


def move_slot(at: Round, chance: random.Random) -> None:
    """The slot of a queue moves to another primary, at once."""
    slot = str(key_slot(chance.choice(at.world.queues).encode()))
    target = at.ask(chance.choice(at.servers), "CLUSTER", "MYID")
    if slot not in at.moving:
        for server in at.servers:  # all but its owner refuse
            at.ask(server, "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", str(target))


def move_keys(at: Round, chance: random.Random) -> None:
    """The slot of a queue moves to another primary, key by key; meanwhile no function of it begins."""
    queue = chance.choice(at.world.queues)
    slot, owner = str(key_slot(queue.encode())), at.owner(queue)
    target = chance.choice(at.servers)
    if owner in (None, target) or slot in at.moving:
        return
    begin_move(at, KeyMove(slot, owner, target, chance.randint(2, 20), chance.uniform(0, 0.2)))


def freeze_server(at: Round, chance: random.Random) -> None:
    """Stop a server for a while: connections stay open, and nothing is answered."""
    process = chance.choice(at.servers).process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    at.later(chance.uniform(0.1, 3), lambda: process.send_signal(signal.SIGCONT))


def fill_memory(at: Round, chance: random.Random) -> None:
    """A server refuses writes that add data."""
    server = chance.choice(at.servers)
    at.ask(server, "CONFIG", "SET", "maxmemory", "1mb")
    at.later(chance.uniform(0.2, 2), lambda: at.insist(server, "CONFIG", "SET", "maxmemory", "0"))


def empty_server(at: Round, chance: random.Random) -> None:
    """Everything on a server is gone: what was accepted is forgotten, and what comes afterwards is not."""
    server = chance.choice(at.servers)
    if at.ask(server, "FLUSHALL", "SYNC"):
        at.ledger.write("emptied")


def cut_replies(at: Round, chance: random.Random) -> None:
    """Cut connections in the middle of replies."""
    for _ in range(chance.randint(1, 5)):
        at.proxy.cut("reply", chance.choice((0, 1, chance.randint(2, 200), chance.randint(2, 20_000))))


def cut_requests(at: Round, chance: random.Random) -> None:
    """Cut connections in the middle of requests."""
    for _ in range(chance.randint(1, 5)):
        at.proxy.cut("request", chance.choice((0, 1, chance.randint(2, 200), chance.randint(2, 20_000))))


def drop_clients(at: Round, chance: random.Random) -> None:
    """The server closes every connection."""
    at.ask(chance.choice(at.servers), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def flush_functions(at: Round, chance: random.Random) -> None:
    """The functions of the server are gone."""
    at.ask(chance.choice(at.servers), "FUNCTION", "FLUSH", "SYNC")


def delete_library(at: Round, chance: random.Random) -> None:
    """One of the two libraries is gone."""
    at.ask(chance.choice(at.servers), "FUNCTION", "DELETE", chance.choice(("glidemq", "glidemq_orchestrate")))


def replace_library(at: Round, chance: random.Random) -> None:
    """Another library stands under the name of ours, and has none of its functions."""
    at.ask(chance.choice(at.servers), "FUNCTION", "LOAD", "REPLACE", FOREIGN)


def take_jobs_back(at: Round, chance: random.Random) -> None:
    """Running jobs are taken from their workers, which learn of it later, or may end them first."""
    name, grace = chance.choice(at.world.plan.queues), chance.choice((0, 0, 0.5, 3))
    with suppress(GlideMQError), Queue(name, at.ground.url) as queue:
        for job in queue.get_jobs(JobState.ACTIVE, limit=3, exclude_data=True):
            at.ledger.write("take-back", queue=name, job=job.id)
            with suppress(StateError):
                queue.take_back(job.id, grace=grace)
                at.ledger.write("asked" if grace else "taken-back", queue=name, job=job.id)


PROCESSES: Final[Mapping[Fault, int]] = {
    kill_worker: 40, kill_workers: 4, kill_supervising: 10, kill_child: 12, kill_renewer: 12,
    kill_submitter: 12, kill_waiter: 6, kill_steerer: 10, stop_worker: 3, pause_worker: 12, pause_client: 3,
    kill_node_worker: 12, pause_node_worker: 8, kill_parent: 6, stop_parent: 3, kill_worker_process: 10,
}  # fmt: skip
"""What happens to processes all the time, with weights."""

SPARK: Final[Mapping[Fault, int]] = {
    kill_spark_worker: 3, kill_jvm: 3, kill_host: 2, kill_driver: 2, kill_keeper: 1, pause_spark_worker: 2,
    stop_spark_worker: 1,
}  # fmt: skip
"""What happens to Spark workers and what they start, with weights: less often, as a session takes seconds."""

BRIDGE: Final[Mapping[Fault, int]] = {
    kill_bridge: 4, kill_chasqui_worker: 3, pause_bridge: 2, pause_chasqui_worker: 2, stop_bridge: 1,
    stop_chasqui_worker: 1,
}  # fmt: skip
"""What happens to bridges to ChasquiMQ and the workers behind them, with weights."""

RENEWED: Final = ("worker", "bridge", "chasqui_worker")
"""Roles whose processes have another one that renews their leases when they cannot."""

VERSIONS: Final = (older_library, newer_library, other_glidemq, older_worker, newer_worker)

AROUND: Final[Mapping[Fault, int]] = {
    step_clocks: 3, kill_server: 3, freeze_server: 2, fill_memory: 2, cut_replies: 6, cut_requests: 4,
    drop_clients: 2, flush_functions: 2, delete_library: 1, replace_library: 1, empty_server: 2,
    fail_over: 3, move_slot: 3, move_keys: 3, lose_power: 3, take_jobs_back: 4, **dict.fromkeys(VERSIONS, 1),
}  # fmt: skip
"""What happens to everything around them, less often, with weights."""

BEHIND_A_PROXY: Final = frozenset({cut_replies, cut_requests})
"""Faults that need a proxy, which a cluster does not have: its clients connect to the servers it names."""

IN_A_CLUSTER: Final = frozenset({fail_over, move_slot, move_keys})
"""Faults that need a cluster."""

BY_NAME: Final = {fault.__name__: fault for fault in (*PROCESSES, *SPARK, *BRIDGE, *AROUND)}


def _pause(at: Round, chance: random.Random, role: str) -> None:
    process = chance.choice(at.alive(role))
    at.signal(process, signal.SIGSTOP)
    at.later(chance.choice((0.3, 3, 5, 8)), lambda: at.signal(process, signal.SIGCONT))
