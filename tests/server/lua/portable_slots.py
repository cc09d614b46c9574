"""A driver that sends each call to the server of its slot, and can stop after any of them."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from typing import Any

import redis
from redis.crc import key_slot

from glidemq_orchestrate import FlowSpec, FlowState
from glidemq_orchestrate.flows.backend import Reach
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.index import find_ref
from glidemq_orchestrate.flows.portable import advance, reading
from glidemq_orchestrate.flows.status import OnExisting
from glidemq_orchestrate.flows.submission import submit_flow
from glidemq_orchestrate.wire.call import Batch, Call, Op
from glidemq_orchestrate.wire.replies import error_from
from tests.builders import slot_node
from tests.node import PlainNode
from tests.profile import IS_LONG
from tests.server.lua.servers import owner_of

QUEUES = ("b", "c", "q")  # one for each primary


# a(b) -> m(c), n(q) -> end(b);  side(q)
FLOW = FlowSpec(
    "n",
    [
        slot_node("a"),
        slot_node("m", "a", queue="c"),
        slot_node("n", "a", queue="q"),
        slot_node("end", "m", "n"),
        slot_node("side", queue="q"),
    ],
)


def places(start: int = 0, step: int = 23) -> Iterator[int]:
    """The calls at which somebody dies or is overtaken: each ``step``-th, all in the long profile."""
    return itertools.count(start, 1 if IS_LONG else step)


class Slots:
    """Sends each call to the server that has its slot, and workers of Node on each."""

    def __init__(self, ports: list[int], reach: Reach) -> None:
        self.reach = reach
        self.clients: list[Any] = [
            redis.Redis(port=port, protocol=2, decode_responses=True, driver_info=None) for port in ports
        ]
        self.by_port = dict(zip(ports, self.clients, strict=True))
        self.ports, self.now = ports, 1_700_000_000_000
        for client in self.clients:
            client.flushall()

    def now_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> int:
        return self.now_ms()

    def client(self, key: str) -> Any:
        return self.by_port[owner_of(key_slot(key.encode()), self.ports)]

    def answer(self, call: Call[Any]) -> Any:
        words = call.words
        key = str(words[3] if words[0] == "FCALL" else words[1])
        if words[0] == "XREAD":
            key = str(words[words.index("STREAMS") + 1])
        try:
            connection = self.client(key).connection_pool.get_connection()
            connection.send_command(*words)
            return connection.read_response()
        except redis.ResponseError as exc:
            return error_from(str(exc))
        finally:
            self.client(key).connection_pool.release(connection)

    def steps(self, op: Op[Any]) -> Generator[None, None, Any]:
        """Send one call with each step; what the operation returns."""
        try:
            request = next(op)
            while True:
                answers = []
                for call in request.calls if isinstance(request, Batch) else (request,):
                    answers.append(self.answer(call))
                    yield
                if isinstance(request, Batch):
                    request = op.send(answers)
                elif isinstance(answers[0], Exception):
                    request = op.throw(answers[0])
                else:
                    request = op.send(answers[0])
        except StopIteration as stop:
            return stop.value

    def begun(self, op: Op[Any], place: int) -> tuple[Generator[None, None, Any], bool]:
        """Do so many steps of an operation; the rest of it, and whether nothing is left."""
        slow, is_over = self.steps(op), False
        for _ in range(place):
            is_over = is_over or next(slow, "over") == "over"
        return slow, is_over

    def trips(self, op: Op[Any]) -> Generator[None, None, None]:
        """Send one request with each step; a small batch arrives as a whole."""
        try:
            request = next(op)
            while True:
                calls = request.calls if isinstance(request, Batch) else (request,)
                answers = [self.answer(call) for call in calls]
                yield
                request = op.send(answers if isinstance(request, Batch) else answers[0])
        except StopIteration:
            return

    def run(self, op: Op[Any], calls: int | None = None) -> tuple[Any, int]:
        """What the operation returns and how many calls it sent; stopped after ``calls`` as by a kill."""
        steps, sent = self.steps(op), 0
        try:
            while sent != calls:
                next(steps)
                sent += 1
        except StopIteration as stop:
            return stop.value, sent
        steps.close()
        op.close()
        return None, sent

    def submit(self, spec: FlowSpec = FLOW, flow_id: str = "f", calls: int | None = None) -> Any:
        return self.run(self.submission(spec, flow_id), calls)

    def submission(
        self, spec: FlowSpec = FLOW, flow_id: str = "f", on_existing: OnExisting = "attach"
    ) -> Op[FlowRef]:
        return submit_flow("glide", check_flow(spec), flow_id, on_existing, self, reach=self.reach)

    def ref(self) -> FlowRef:
        ref, _ = self.run(find_ref("glide", "f"))
        assert isinstance(ref, FlowRef)
        assert ref.path == "portable"
        return ref

    def advance(self) -> FlowState:
        return FlowState(self.run(advance.advance(self.ref(), self))[0])

    def run_jobs(self, *broken: str) -> list[str]:
        """Run and advance until nothing is left; names in the order of their ends."""
        order: list[str] = []
        workers = [PlainNode(self.client(f"{{{name}}}"), name, self.now) for name in QUEUES]
        while ended := [job_id for worker in workers for job_id in worker.run_all(*broken)]:
            order += [job_id.partition("~")[2] for job_id in ended]
            self.advance()
        return order

    def status(self) -> tuple[str, int, int]:
        found, _ = self.run(reading.status(self.ref()))
        return found.state.value, found.completed, found.failed

    def stored(self) -> set[str]:
        return {
            str(key) for client in self.clients for key in client.keys("*") if not key.endswith(":events")
        }
