"""A worker of glide-mq in Node, as a process of a round: it shares the queues, and calls only glide-mq.

It knows no token: glide-mq accepts what it reports about a job that another worker has taken over. Whether
that was so is read in the transaction of the report, for the ledger; the worker ignores it, as one in Node
does. Its clock is the server's: glide-mq relies on the clocks of its workers. What such a worker cannot run
it returns, as with glide-mq's ``DelayedError``.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from redis import Redis, RedisCluster, RedisError
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.retry import Retry

from glidemq_orchestrate import Unrecoverable
from glidemq_orchestrate._lua import GLIDEMQ, library
from glidemq_orchestrate.testing.chaos.ledger import Ledger
from tests.chaos.handlers import runs_of
from tests.chaos.in_process import Told, decide, decide_element
from tests.chaos.plan import fate_of
from tests.chaos.unfenced import RETURNED
from tests.node import Node, Taken

if TYPE_CHECKING:
    from tests.chaos.roles import World

PLACES: Final = 2
LEASE_MS: Final = 2_000
BLOCK_MS: Final = 500
TICK_SECONDS: Final = 0.5
STALLED_TICKS: Final = 4
HEAL_TICKS: Final = 10
REQUEST_SECONDS: Final = 0.5
"""As long as a Node client waits for a reply; then it connects again."""

REST_SECONDS: Final = 0.2
RETURN_MS: Final = 50
MAX_STALLED: Final = 1_000_000
BEGIN: Final = "glidemq_moveToActive"
REVOKED: Final = "revoked"
ELEMENT: Final = re.compile(r"(.+)\{(\d+)\.\d+\}\Z")
"""The id of a job that is an element of an array: the id of the array's job, and the position."""
NOTED: Final = {BEGIN, "glidemq_completeAndFetchNext", "glidemq_fail", "glidemq_moveActiveToDelayed"}


class Reporter(Node):
    """A Node client that notes what it meets: see ``unfenced.py``.

    Attributes:
        was: The state of the job before it was begun; of one in the reply to a report is known whether it had
            ended.
        begun: When the attempt was activated whose end is reported next.
        is_refusal: What is reported next is the end of a job that was met revoked.
        is_late: The attempt whose end was reported last was no longer its own.
        anywhere: The way to jobs in other slots.
    """

    was = "waiting"
    begun = ""
    is_refusal = False
    is_late = False
    anywhere: Any = None

    def report(self, taken: Taken, error: str, result: str) -> list[str]:
        """Report the end of an attempt; the reply, if it has the next job."""
        self.begun = taken.fields["processedOn"]
        if not error:
            return self.finish(taken, result)
        if error == RETURNED:
            self.postpone(taken, RETURN_MS)
            return []
        backoff = json.loads(taken.fields["opts"]).get("backoff", {}).get("delay", 0)
        self.fail(taken, error, backoff, attempts=0 if error == Unrecoverable.__name__ else None)
        return []

    def fetched(self, reply: list[str]) -> Taken | None:
        """The job in the reply to a report."""
        taken = super().fetched(reply)
        self.was = "ended" if taken is not None and taken.fields.get("finishedOn") else "waiting"
        return taken

    def refuse(self, revoked: Taken) -> None:
        """End a job that was met revoked."""
        self.is_refusal = True
        try:
            self.fail(revoked, REVOKED, attempts=0)
        finally:
            self.is_refusal = False

    def fcall(self, name: str, keys: list[str], *args: Any) -> Any:
        """A call; begins and reports read the job in the same transaction."""
        if name not in NOTED:
            return super().fcall(name, keys, *args)
        pipeline = self.client.pipeline(transaction=True)
        pipeline.hmget(next(key for key in keys if ":job:" in key), "state", "processedOn", "revoked")
        pipeline.fcall(name, len(keys), *keys, *args)
        (state, begun, revoked), reply = pipeline.execute()
        if name == BEGIN:
            self.was = state
        elif self.is_refusal:
            self.is_late = not revoked  # its flow was cancelled, and is retried
        else:
            self.is_late = (state, begun) != ("active", self.begun)
        return reply


@contextmanager
def connected(url: str, queue: str, consumer: str, *, seconds: float = REQUEST_SECONDS) -> Iterator[Reporter]:
    """A client as it is after each connect: the library is that of the client, and the group is there.

    Args:
        seconds: How long a reply may take.
    """
    options: dict[str, Any] = {"decode_responses": True, "retry": Retry(NoBackoff(), 0)}
    scheme, _, rest = url.partition("://")
    with ExitStack() as stack:
        anywhere = None
        if scheme.endswith("+cluster"):
            hosts = [place.rpartition(":") for place in rest.split(",")]
            nodes = [ClusterNode(host, int(port)) for host, _, port in hosts]  # type: ignore[no-untyped-call]
            anywhere = stack.enter_context(
                RedisCluster(startup_nodes=nodes, decode_responses=True, socket_timeout=seconds)
            )
            rest = anywhere.get_node_from_key(f"{{{queue}}}").name
        client = stack.enter_context(Redis.from_url(f"redis://{rest}", socket_timeout=seconds, **options))
        patience = seconds + BLOCK_MS / 1000
        reader = stack.enter_context(Redis.from_url(f"redis://{rest}", socket_timeout=patience, **options))
        ours = library(GLIDEMQ)
        loaded = client.function_list(library=GLIDEMQ)
        if not loaded or client.fcall("glidemq_version", 0) != ours.version:
            client.function_load(ours.source, replace=True)
        node = Reporter(client, queue, reader=reader)
        node.consumer, node.anywhere = consumer, anywhere
        node.open()
        yield node


class NodeWorker:
    """A worker of one queue.

    Args:
        world: The round.
        ledger: Where it writes what it does.
        number: Of the process.
    """

    def __init__(self, world: World, ledger: Ledger, number: int) -> None:
        self._world, self._ledger = world, ledger
        self._url, self._queue = world.url_for(number), world.queues[number % len(world.queues)]
        self._consumer = f"worker-{time.monotonic_ns() // 1_000_000}-{secrets.token_hex(4)}"
        self._running: set[str] = set()

    def serve(self) -> None:
        """Work until the process is killed."""
        for act in (self._work,) * PLACES + (self._tick, self._beat):
            threading.Thread(target=self._for_ever, args=(act,), daemon=True).start()
        threading.Event().wait()

    def _for_ever(self, act: Any) -> None:
        """Connect again after every error."""
        while True:
            with (
                suppress(RedisError, OSError),
                connected(self._url, self._queue, self._consumer) as node,
            ):
                while True:
                    act(node)
            time.sleep(REST_SECONDS)

    # --- what goes on beside the jobs ---

    def _beat(self, node: Reporter) -> None:
        """Keep the leases of what runs."""
        time.sleep(LEASE_MS / 2_000)
        for job_id in list(self._running):
            node.beat(job_id)

    def _tick(self, node: Reporter) -> None:
        """What each worker does for its queue."""
        registration = {"addr": "node", "pid": os.getpid(), "startedAt": 1, "activeJobs": len(self._running)}
        node.client.set(f"{node.prefix}:w:{self._consumer}", json.dumps(registration), px=LEASE_MS)
        for number in range(HEAL_TICKS):
            node.promote(0)
            if number % STALLED_TICKS == 0:
                node.reclaim(LEASE_MS, LEASE_MS, MAX_STALLED)
            time.sleep(TICK_SECONDS)
        node.heal()

    # --- jobs ---

    def _work(self, node: Reporter) -> None:
        """One turn: take a job, and run it and those that come in the replies."""
        place = node.place(BLOCK_MS)
        taken = self._begin(node, *place) if place else None
        while taken is not None:
            taken = self._next(node, self._run(node, taken))

    def _begin(self, node: Reporter, job_id: str, entry: str) -> Taken | None:
        begun = node.activate(job_id, entry)
        if isinstance(begun, Taken):
            return begun
        nothing = Taken(job_id, entry, {"processedOn": "", "opts": "{}"})
        if not begun:
            node.finish(nothing, "null")
        elif begun == "REVOKED":
            self._refuse(node, nothing)
        elif not entry:
            node.client.decrby(f"{node.prefix}:list-active", 1)
        return None

    def _refuse(self, node: Reporter, revoked: Taken) -> None:
        """End a job that was met revoked."""
        about = {"run": self._new_run(revoked), "queue": self._queue, "job": named(revoked.id)}
        about["error"] = REVOKED
        self._ledger.write("reporting", **about)
        node.refuse(revoked)
        self._ledger.write("reported", **about, late=node.is_late)

    def _new_run(self, taken: Taken) -> str:
        return f"{self._consumer}-{secrets.token_hex(4)}:{named(taken.id)}"

    def _next(self, node: Reporter, reply: list[str]) -> Taken | None:
        """The job in the reply to a report."""
        if reply[:1] == ["NEXT_REVOKED"]:
            self._refuse(node, Taken(reply[2], reply[3], {"opts": "{}"}))
        return node.fetched(reply)

    def _run(self, node: Reporter, taken: Taken) -> list[str]:
        """Run a job and report its end; the reply."""
        data = json.loads(taken.fields["data"])
        run = self._new_run(taken)
        about = {"run": run, "queue": self._queue, "job": named(taken.id)}
        error, value = RETURNED, None
        if not self._is_for_others(taken, data):
            self._running.add(taken.id)
            try:
                error, value = self._handle(node, taken, data, about)
            finally:
                self._running.discard(taken.id)
        self._ledger.write("reporting", **about, error=error, was=node.was)
        reply = node.report(taken, error, json.dumps({"run": run, "value": value, "node": data.get("node")}))
        self._ledger.write("reported", **about, error=error, late=node.is_late)
        return reply

    def _handle(
        self, node: Reporter, taken: Taken, data: dict[str, Any], about: dict[str, str]
    ) -> tuple[str, int | None]:
        """Run the handler; the name of its error and its result."""
        element, attempt = ELEMENT.match(taken.id), int(taken.fields["attemptsMade"]) + 1
        inputs = self._inputs(node, element[1] if element else taken.id)
        given = runs_of(inputs)
        self._ledger.write(
            "begin", **about, flow=data.get("flow"), node=data.get("node"), attempt=attempt, inputs=given,
            slot=data.get("logicalTime"), activated=int(taken.fields["processedOn"]), was=node.was,
        )  # fmt: skip
        time.sleep(data.get("ms", 0) / 1000)
        error, value = "", None
        try:
            told = Told(data, attempt, data.get("node"), inputs, int(element[2]) if element else None)
            act = decide_element if element else decide
            value = act(told, self._world.cures) if told.node else 1
        except (RuntimeError, Unrecoverable) as exc:
            error = type(exc).__name__
        self._ledger.write("end", **about, error=error, value=value)
        return error, value

    def _is_for_others(self, taken: Taken, data: dict[str, Any]) -> bool:
        """Whether a Node worker cannot run a job.

        It skips, is a check that has to pass, writes messages, adds nodes, or waits for other places of ours.
        """
        if element := ELEMENT.match(taken.id):
            return fate_of(data, int(element[2])) == "skip"
        is_special = data.get("ends") in ("skip", "refuse") or data.get("says")
        if taken.fields["name"] == "barrier" or is_special:
            return True
        return "flow" in data and bool(self._world.plan.by_id[data["flow"]].all_steps[data["node"]].grows)

    def _inputs(self, node: Reporter, job_id: str) -> dict[str, Any]:
        """The results of the dependencies by the names of their nodes."""
        while True:
            try:
                texts = node.children_values(job_id, node.anywhere)
            except (RedisError, OSError):
                time.sleep(REST_SECONDS)  # else the job would fail
            else:
                values = [value for text in texts.values() if (value := json.loads(text))]
                return {
                    value["node"]: value for value in values if "node" in value
                }  # that of an array has none


def named(job_id: str) -> str:
    """A job in the ledger; the element of an array counts as one."""
    return ELEMENT.sub(r"\1[\2]", job_id)


def node_worker(world: World, ledger: Ledger, number: int) -> None:
    """Run jobs as a worker in Node does, until killed."""
    NodeWorker(world, ledger, number).serve()
