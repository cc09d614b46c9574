"""One round from its seed to its outcome."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from glidemq_orchestrate import FlowProducer, FlowState, JobOptions, JobState, Queue
from glidemq_orchestrate.chasquimq import ChasquiQueue
from glidemq_orchestrate.clients import Schedules
from glidemq_orchestrate.errors import FlowNotFound, TransportError
from tests.chaos.bridged_flows import REMOTE_QUEUE
from tests.chaos.checker import Checker
from tests.chaos.faults import BY_NAME
from tests.chaos.leftovers import late_ends, leftovers, open_work
from tests.chaos.roles import CONCURRENCY, again
from tests.chaos.round import WORKERS, Round
from tests.chaos.size import Size

PROBE_SECONDS: Final = 30.0
MAX_SURPRISES: Final = 10


def outcome_of(
    seed: int,
    folder: Path,
    size: Size,
    *,
    ground: str = "one",
    defect: str = "",
    only: str = "",
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Play a round and check it.

    Args:
        seed: Decides what happens.
        folder: For its files; the ledger stays there.
        size: How much happens.
        ground: The name of its servers.
        defect: The name of a defect that all processes have; none by default.
        only: The names of the faults, comma-separated; all by default.
        progress: Called with what goes on.
    """
    faults = [BY_NAME[name] for name in filter(None, only.split(","))] or BY_NAME.values()
    with Round(seed, folder, size, faults, ground, defect=defect) as played:
        played.harm(progress)
        progress("settling")
        begun = time.monotonic()
        has_ended = played.settle(lambda: has_settled(played), size.settle)
        took = time.monotonic() - begun
        progress("checking")
        with Schedules(played.world.queues[0], played.world.url) as schedulers:
            again(partial(schedulers.remove, "tick"))
        has_ended = has_ended and played.settle(lambda: has_settled(played), size.settle)
        violations = list(played.surprises)
        if (
            has_ended and not played.world.plan.may_prefetch
        ):  # a worker that holds a job for later has no place for it now
            violations += _probe(played, size.workers)
        played.entries += played.reader.new()
        checker = Checker(
            played.world.url, played.world.plan, played.entries,
            may_lose=played.ground.may_lose, keeps_leases=played.ground.keeps_leases,
        )  # fmt: skip
        violations += checker.violations()
        for server in played.primaries():
            violations += leftovers(server.client, played.members())
        violations += played.left_by_spark()
        if not has_ended:
            violations.append(f"not everything has ended within {size.settle:g} s")
        kinds = Counter(entry["kind"] for entry in played.entries)
        return {
            "seed": seed, "ground": ground, "kills": {**played.kills, "child": played.children.killed},
            "faults": dict(played.done),
            "flows": len(played.world.plan.flows),
            "nodes": checker.nodes, "runs": kinds["begin"], "accepted": kinds["completed"],
            "settled_seconds": round(took, 2), "acknowledged": _acknowledged(played),
            "losses": dict(checker.losses), "violations": violations,
        }  # fmt: skip


@contextmanager
def undisturbed(seed: int, folder: Path, size: Size) -> Iterator[Round]:
    """A round in which nothing goes wrong, once all has ended and everything is in its ledger."""
    with Round(seed, folder, size, faults=()) as done:
        done.harm()
        assert done.settle(lambda: has_settled(done), 120)
        with Schedules(done.world.queues[0], done.world.url) as schedulers:
            schedulers.remove("tick")
        assert done.settle(lambda: has_settled(done), 120)
        done.entries += done.reader.new()
        yield done


def has_settled(played: Round) -> bool:
    """Whether everybody but the workers has done its part, and every flow has ended."""
    if len(played.surprises) > MAX_SURPRISES:
        return True
    try:
        states = _states(played)
        counts = [_counts(name, played.world.url) for name in played.world.plan.all_queues]
        counts += [_remote_counts(played.world.url)] if played.world.bridged else []
    except (FlowNotFound, TransportError):
        return False
    is_over = all(process.is_over for process in played.processes if process.role not in WORKERS)
    has_ended = is_over and all(state.is_terminal for state in states) and not any(counts)
    return has_ended and not any(
        late_ends(server.client) or open_work(server.client) for server in played.primaries()
    )


def _states(played: Round) -> list[FlowState]:
    """The states of all flows; on servers that may lose, those that are lost are written to the ledger."""
    gone, states = played.forgotten.flows(), []
    with FlowProducer(played.world.url) as flows:
        for flow_id in [flow.flow_id for flow in played.world.plan.flows if flow.flow_id not in gone]:
            try:
                states.append(flows.get(flow_id).status().state)
            except FlowNotFound:
                if not played.ground.may_lose or flow_id not in played.forgotten.accepted:
                    raise
                played.ledger.write("gone", flow=flow_id)
    return states


def _acknowledged(played: Round) -> dict[str, int]:
    """What the servers have acknowledged: flows and jobs once, and every result."""
    flows = {entry["flow"] for entry in played.entries if entry["kind"] == "submitted"}
    jobs = {entry["job"] for entry in played.entries if entry["kind"] == "added"}
    results = sum(entry["kind"] == "completed" for entry in played.entries)
    return {"flows": len(flows), "jobs": len(jobs), "results": results}


def _counts(name: str, url: str) -> int:
    """The jobs of a queue that have not ended, but for the next of its schedule."""
    with Queue(name, url) as queue:
        found = queue.counts(indexed_only=True)
    return sum(found.get(state, 0) for state in (JobState.ACTIVE, JobState.WAITING, JobState.PRIORITIZED))


def _remote_counts(url: str) -> int:
    """The jobs in the queue behind the bridge; those of nodes that were cancelled end there, too."""
    with ChasquiQueue(REMOTE_QUEUE, url) as queue:
        found = queue.counts()
    return found.waiting + found.active + found.delayed


def _probe(played: Round, workers: int) -> list[str]:
    """Whether every place of every worker is free: as many jobs as there are places run at once."""
    places, home = workers * CONCURRENCY, played.world.queues[0]
    data = {"places": places, "seconds": PROBE_SECONDS}
    with Queue(home, played.world.url) as queue:
        jobs = [
            queue.add(
                "barrier",
                data,
                options=JobOptions(job_id=f"barrier{n}", ttl=timedelta(seconds=PROBE_SECONDS)),
            )
            for n in range(places)
        ]
        played.settle(lambda: all(queue.get_job(job).state.is_terminal for job in jobs), PROBE_SECONDS * 2)
        bad = [job for job in jobs if queue.get_job(job).state != "completed"]
    return [f"{len(bad)} of {places} places of the workers were not given"] if bad else []
