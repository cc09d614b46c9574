"""What the processes of a round do. Each of them may be killed at any moment and is started again.

A process that is started again reads in the ledger what it has done, and repeats what it may not have done.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, TypeVar

from glidemq_orchestrate import (
    Flow,
    FlowProducer,
    Handlers,
    JobOptions,
    JobTemplate,
    Ordering,
    Owner,
    Queue,
    Schedule,
    Worker,
)
from glidemq_orchestrate.chasquimq import ChasquiWorker
from glidemq_orchestrate.clients import Schedules
from glidemq_orchestrate.errors import (
    FlowConflict,
    FlowEnded,
    FlowIncomplete,
    FlowNotFound,
    InvalidJob,
    LibraryVersionMismatch,
    NodeNotEnded,
    StateError,
    Superseded,
    TransportError,
    WaitTimeout,
)
from glidemq_orchestrate.testing.chaos.ledger import Ledger, LedgerReader
from glidemq_orchestrate.worker.services.service import Service
from glidemq_orchestrate.worker.services.worker_process import Limits
from glidemq_orchestrate.worker.services.worker_processes import WorkerProcesses
from tests.chaos.array_flows import array_flows
from tests.chaos.bridged_flows import REMOTE_QUEUE, over_the_bridge
from tests.chaos.bridged_steps import Bridge, RemoteRecorder, RemoteSteps
from tests.chaos.forgotten import Forgotten
from tests.chaos.handlers import ResultRecorder, Steps
from tests.chaos.in_process import FOLDER, cures_of, ledger_of, write_child
from tests.chaos.mutations import BY_NAME as DEFECTS
from tests.chaos.mutations import VARIABLE
from tests.chaos.node_worker import node_worker
from tests.chaos.plan import BY_TWO, FlowPlan, Plan, has_history, plan
from tests.chaos.spark_flows import QUEUE as SPARK_QUEUE
from tests.chaos.spark_flows import spark_flows
from tests.chaos.spark_steps import WORKER
from tests.chaos.versions import NEWER, OLDER, playing

T = TypeVar("T")

CONCURRENCY: Final = 8
LEASE: Final = timedelta(seconds=2)
STOP: Final = timedelta(seconds=1)
"""How long a worker that is asked to stop waits for what it runs."""
JOBS_OF_A_PROCESS: Final = 150
ORPHAN_SECONDS: Final = 30.0
"""How long a worker process whose parent was killed may take to drain, also while the server is away."""
SPARK_STEPS: Final = 3
SPARK_ENVIRONMENT: Final = {
    "GLIDEMQ_SPARK_MASTER": "local[1]",
    "GLIDEMQ_SPARK_DRIVER_PATIENCE": "10",
    "GLIDEMQ_SPARK_CONF": '{"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": 1}',
}
NOT_STARTED: Final = 75
REFUSED: Final = 76
"""The exit code of a process that found another version of a library than its own on the server."""
TICK: Final = timedelta(milliseconds=500)


@dataclass(frozen=True)
class World:
    """What every process of a round knows.

    Attributes:
        url: The way to the server for half of the processes; ``proxied`` for the others.
        folder: Of the round: its ledger, and what else its processes share.
        seconds: The time over which the submitters spread their work.
        may_grow: Flows over several queues may grow: not where these may be in several slots.
        parts: How many processes share each of the roles but the workers.
        defect: The name of a defect that all have; none by default.
        longs: The share of jobs without a flow that run for longer than a lease.
        giant: Nodes of one fan-out that is much wider than the others; 0: there is none.
        spark: Flows with steps of Spark.
        bridged: The share of the nodes of random flows that run behind the bridge to ChasquiMQ.
        arrays: Flows with arrays.
    """

    url: str
    proxied: str
    folder: Path
    seed: int
    flows: int
    queues: tuple[str, ...]
    seconds: float
    widest: int = 200
    may_grow: bool = True
    parts: int = 2
    defect: str = ""
    longs: float = 0.0
    giant: int = 0
    spark: int = 0
    bridged: float = 0.0
    arrays: int = 0

    @cached_property
    def plan(self) -> Plan:
        """What they do."""
        more = (
            *spark_flows(self.seed, self.spark, self.queues),
            *array_flows(self.seed, self.arrays, self.queues),
        )
        made = plan(
            self.seed, self.flows, self.queues, widest=self.widest, may_grow=self.may_grow, longs=self.longs,
            giant=self.giant, more=more,
        )  # fmt: skip
        return over_the_bridge(made, self.bridged, may_grow=self.may_grow)

    @property
    def ledger(self) -> Path:
        """The file of the ledger."""
        return ledger_of(self.folder)

    @property
    def cures(self) -> Path:
        """A folder with a file for each flow that was retried."""
        return cures_of(self.folder)

    def url_for(self, number: int) -> str:
        """The way to the server for the process of this number."""
        return self.url if number % 2 else self.proxied

    def to_json(self) -> str:
        """For another process."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> World:
        """From another process."""
        fields = json.loads(text)
        return cls(**fields | {"folder": Path(fields["folder"]), "queues": tuple(fields["queues"])})


def worker(world: World, ledger: Ledger, number: int, run: Callable[[Any], None] = Service.run) -> None:
    """Run jobs until killed, or asked to stop."""
    os.environ[FOLDER] = str(world.folder)
    vars(sys.modules["__main__"]).update(__spec__=None, __file__=None)  # else its children would load all
    handlers = Steps(world.plan, world.cures).registry()
    prefetch = None if world.plan.may_prefetch else 0
    more: dict[str, Any] = {"concurrency": CONCURRENCY, "prefetch": prefetch}
    _serve(world, ledger, number, world.plan.queues, handlers, run=run, **more)


def worker_processes(world: World, _ledger: Ledger, number: int) -> None:
    """Run jobs in two processes until killed, or asked to stop; each is replaced after some jobs."""
    targets = [partial(_worker_process, world, number, part) for part in (1, 2)]
    sys.exit(WorkerProcesses(targets, limits=Limits(jobs=JOBS_OF_A_PROCESS), method="fork").run())


def _worker_process(world: World, number: int, part: int, run: Callable[[Any], None]) -> None:
    ledger = Ledger(world.ledger, f"worker_processes{number}.{part}")
    write_child(ledger, "worker_process", os.getpid(), [os.getppid()], grace=ORPHAN_SECONDS)
    try:
        worker(world, ledger, number, run)
    except LibraryVersionMismatch:
        ledger.write("refused")
        sys.exit(REFUSED)


def spark_worker(world: World, ledger: Ledger, number: int) -> None:
    """Run steps of Spark until killed, or asked to stop."""
    from glidemq_orchestrate.spark.handler import handlers  # noqa: PLC0415  after the fork: few processes need it

    name, _, value = spark_mark(world).partition("=")
    os.environ |= {FOLDER: str(world.folder), WORKER: str(os.getpid()), name: value, **SPARK_ENVIRONMENT}
    os.environ[VARIABLE] = world.defect
    packages = ["tests.chaos"]
    _serve(world, ledger, number, [SPARK_QUEUE], handlers, concurrency=SPARK_STEPS, allow_import=packages)


def spark_mark(world: World) -> str:
    """What everything that Spark workers of a round start has in its environment."""
    return f"GLIDEMQ_CHAOS_SPARK={world.folder}"


def _serve(
    world: World,
    ledger: Ledger,
    number: int,
    queues: Sequence[str],
    handlers: Handlers,
    *,
    run: Callable[[Any], None] = Service.run,
    **more: Any,
) -> None:
    worker = Worker(
        world.url_for(number), queues=queues, lease=LEASE, max_stalled=1_000_000, shutdown_timeout=STOP,
        middleware=[ResultRecorder(ledger)], handlers=handlers, **more,
    )  # fmt: skip
    _run(worker, ledger, run)


def bridge(world: World, ledger: Ledger, number: int) -> None:
    """Hand jobs over to ChasquiMQ until killed, or asked to stop."""
    _run(Bridge(world.url_for(number), ledger, lease=LEASE, shutdown_timeout=STOP), ledger)


def chasqui_worker(world: World, ledger: Ledger, number: int) -> None:
    """Run what the bridge hands over until killed, or asked to stop."""
    worker = ChasquiWorker(
        REMOTE_QUEUE, world.url_for(number), handlers=RemoteSteps(world.folder).registry(),
        concurrency=CONCURRENCY, lease=LEASE, shutdown_timeout=STOP, middleware=[RemoteRecorder(ledger)],
    )  # fmt: skip
    _run(worker, ledger)


def _run(service: Service, ledger: Ledger, run: Callable[[Any], None] = Service.run) -> None:
    ledger.write("serves", worker=service.id)
    try:
        run(service)
    except TransportError:
        if service.ready.is_set():
            raise
        sys.exit(NOT_STARTED)  # the server cannot be used now, and a service manager starts it again


def submitter(world: World, ledger: Ledger, number: int) -> None:
    """Submit flows and add plain jobs, in the order of the plan, spread over time."""
    done = _done(world, "submitted")
    pause = world.seconds * world.parts / max(len(world.plan.flows), 1)
    with FlowProducer(world.url_for(number)) as flows, contextlib.ExitStack() as stack:
        queues = {name: stack.enter_context(Queue(name, world.url_for(number))) for name in world.plan.queues}
        if number == 0:
            schedulers = stack.enter_context(Schedules(world.queues[0], world.url))
            every = Schedule(every=TICK, logical_time=True)
            again(partial(schedulers.upsert, "tick", every, JobTemplate("tick")))
        for index, flow in _share(world, number):
            if flow.flow_id not in done:
                ledger.write("submitting", flow=flow.flow_id)
                with contextlib.suppress(*((FlowConflict,) if flow.mended else ())):  # it was mended before
                    again(partial(flows.submit, flow.spec(), flow_id=flow.flow_id, owner=flow.owner(number)))
                ledger.write("submitted", flow=flow.flow_id)
                time.sleep(pause * random.Random(flow.flow_id).uniform(0, 1.6))
            for job in world.plan.plain[index * 3 : index * 3 + 3]:
                options = JobOptions(
                    job_id=job.job_id, ordering=Ordering(job.key) if job.key else None, attempts=job.attempts,
                    history=has_history(job.job_id),
                )  # fmt: skip
                with contextlib.suppress(InvalidJob):  # it was added before
                    again(partial(queues[job.queue].add, job.handler, {"ms": job.ms}, options=options))
                ledger.write("added", queue=job.queue, job=job.job_id)


def waiter(world: World, ledger: Ledger, number: int) -> None:
    """Wait for every flow; write how it has ended."""
    done, forgotten = _done(world, "waited"), Forgotten(world.ledger)
    left = [flow for _, flow in _share(world, number) if flow.flow_id not in done]
    with FlowProducer(world.url_for(number)) as flows:
        while left := [flow for flow in left if flow.flow_id not in forgotten.flows()]:
            for flow in left[:]:
                # Superseded: it was restarted, and is waited for again.
                with contextlib.suppress(FlowNotFound, WaitTimeout, TransportError, Superseded):
                    owner = None if flow.action == "orphan" else flow.owner(number)
                    outcome = flows.get(flow.flow_id, owner=owner).wait(timeout=timedelta(seconds=0.5))
                    ledger.write("waited", flow=flow.flow_id, state=outcome.status.state)
                    left.remove(flow)
            time.sleep(0.1)


def steerer(world: World, ledger: Ledger, number: int) -> None:
    """Cancel, retry, restart, mend and extend flows, skip nodes of them, and run single nodes again.

    Two restart or mend the same flow, with the same request.
    """
    done, forgotten = _done(world, "steered"), Forgotten(world.ledger)
    mine = [flow for _, flow in _share(world, number) if flow.action != "none"]
    others = [flow for _, flow in _share(world, (number + 1) % world.parts) if flow.action in BY_TWO]
    left = [flow for flow in (*mine, *others) if flow.flow_id not in done]
    with FlowProducer(world.url_for(number)) as flows:
        while left := [flow for flow in left if flow.flow_id not in forgotten.flows()]:
            for flow in left[:]:
                # Superseded: a process that was killed had restarted it.
                with contextlib.suppress(FlowNotFound, TransportError, Superseded):
                    if (state := _steer(world, flows, flow, flow.owner(number))) is not None:
                        ledger.write("steered", flow=flow.flow_id, action=flow.action, state=state)
                        left.remove(flow)
            time.sleep(0.1)


ROLES: Final[dict[str, Callable[[World, Ledger, int], None]]] = {
    "worker": worker, "submitter": submitter, "waiter": waiter, "steerer": steerer,
    "worker_processes": worker_processes, "node_worker": node_worker, "spark_worker": spark_worker,
    "bridge": bridge, "chasqui_worker": chasqui_worker,
    "older_worker": playing(OLDER, worker), "newer_worker": playing(NEWER, worker),
}  # fmt: skip


def play(world: World, role: str, number: int) -> None:
    """Be one of the processes of a round; in a process of its own."""
    _wander(random.Random(f"{world.seed} {role} {number}"))
    ledger = Ledger(world.ledger, f"{role}{number}")
    ledger.write("started")
    if world.defect:
        DEFECTS[world.defect].begin()
    try:
        ROLES[role](world, ledger, number)
    except LibraryVersionMismatch:
        ledger.write("refused")
        sys.exit(REFUSED)
    ledger.write("finished")


def again(act: Callable[[], T]) -> T:
    """Repeat until the server can be reached."""
    while True:
        try:
            return act()
        except TransportError:
            time.sleep(0.05)


def _steer(world: World, flows: FlowProducer, flow: FlowPlan, owner: Owner) -> str | None:
    """Act on a flow; the state that the call returned, or None when it is not time yet."""
    found = flows.get(flow.flow_id)
    if flow.action in AT_ANY_MOMENT:
        time.sleep(flow.delay_ms / 1000)
    if flow.action in NODES:
        return NODES[flow.action](found, flow)
    if flow.action == "cancel":
        return found.cancel("by the plan")
    is_early = flow.action in BY_TWO and not flow.waits
    if not is_early and not found.status().state.is_terminal:
        return None
    if is_early:
        time.sleep(flow.delay_ms / 1000)
    if flow.action == "mend":
        mended = flow.after_mending().spec()
        again = flows.submit(
            mended, flow_id=flow.flow_id, on_existing="retry_failed", idempotency_key="the plan", owner=owner
        )
        return f"generation {again.generation}"
    if flow.action in ("restart", "anew"):
        nodes = [flow.again] if flow.action == "anew" else None
        return found.restart(nodes=nodes, idempotency_key="the plan")
    (world.cures / flow.flow_id).touch()
    return found.retry_failed()


def _extend(found: Flow, flow: FlowPlan) -> str:
    try:
        return found.extend([step.node(flow.flow_id) for step in flow.added])
    except FlowEnded:
        return "refused"


def _rerun(found: Flow, flow: FlowPlan) -> str | None:
    try:
        found.rerun(flow.again, idempotency_key="the plan")
    except (NodeNotEnded, FlowIncomplete):
        return None
    except FlowNotFound:
        raise
    except StateError:  # a node that has added nodes does not run again
        return "refused"
    return "rerun"


def _skip(found: Flow, flow: FlowPlan) -> str | None:
    try:
        found.skip_node(nodes=flow.by_hand)
    except FlowIncomplete:
        return None
    except FlowNotFound:
        raise
    except StateError:  # one that follows has added nodes
        return "refused"
    return "skipped"


NODES: Final = {"extend": _extend, "rerun": _rerun, "skip": _skip}
AT_ANY_MOMENT: Final = ("cancel", "extend", "skip")


def _share(world: World, number: int) -> Iterator[tuple[int, FlowPlan]]:
    return ((at, flow) for at, flow in enumerate(world.plan.flows) if at % world.parts == number)


def _done(world: World, kind: str) -> set[str]:
    return {entry["flow"] for entry in LedgerReader(world.ledger).new() if entry["kind"] == kind}


def _wander(chance: random.Random) -> None:
    """Set the wall clock of this process wrong, and again at each SIGUSR1. Monotonic time is right."""
    real, real_ns, off = time.time, time.time_ns, [0.0]

    def step(*_: Any) -> None:
        off[0] = chance.uniform(-90_000, 90_000)

    step()
    time.time = lambda: real() + off[0]
    time.time_ns = lambda: real_ns() + int(off[0] * 1e9)
    signal.signal(signal.SIGUSR1, step)
