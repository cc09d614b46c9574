"""All small flows: every shape, rule, policy and end of up to three nodes, and the widest of four."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from glidemq_orchestrate import Dependency, FlowNode, FlowSpec, Rule
from glidemq_orchestrate.attempts import workers
from glidemq_orchestrate.attempts.exchange import MAX_NODES, Kind, Outcome, Request, carry, exchange
from glidemq_orchestrate.flows import backend
from glidemq_orchestrate.flows.backend import Reach
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.dependencies import OnFailure
from glidemq_orchestrate.flows.portable import upkeep
from glidemq_orchestrate.flows.submission import submit_flow
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.properties.simulation.ledger import PREFIX
from tests.properties.simulation.oracle import flow_state, outcomes
from tests.properties.simulation.plan import QUEUES, Path
from tests.properties.simulation.scheduler import START_MS
from tests.properties.simulation.store import Store

ENDS: Final = ("completed", "failed", "skipped")
_POLICIES: Final = tuple(OnFailure)
_KINDS: Final = {"completed": Kind.DONE, "failed": Kind.FAIL, "skipped": Kind.SKIP}
_NAMES: Final = "abcd"

Shape = Sequence[Sequence[int]]
PAIR: Final[Shape] = ((), (0,))
FAN_IN: Final[Shape] = ((), (), (0, 1))
FAN_OUT: Final[Shape] = ((), (0,), (0,))
CHAIN: Final[Shape] = ((), (0,), (1,))
TRIANGLE: Final[Shape] = ((), (0,), (0, 1))
WIDE_FAN_IN: Final[Shape] = ((), (), (), (0, 1, 2))
DIAMOND: Final[Shape] = ((), (0,), (0,), (1, 2))


def flows(shape: Shape, queues: Sequence[str], *, every: int = 1, edges: bool = False) -> Iterator[FlowSpec]:
    """All flows of a shape, or one of so many.

    They have all rules of nodes with dependencies, and all policies and ends of nodes with dependents.

    Args:
        shape: For each node the numbers of its dependencies.
        queues: The nodes are spread over them.
        every: One of so many flows is returned.
        edges: Also all policies of the edges.
    """
    numbers = range(len(shape))
    inner = [number for number in numbers if any(number in after for after in shape)]
    rules: list[tuple[Rule, ...]] = [tuple(Rule) if after else (Rule.ALL_SUCCESS,) for after in shape]
    policies = [_POLICIES if number in inner else (OnFailure.FAIL,) for number in numbers]
    ends = [ENDS if number in inner else ("completed",) for number in numbers]
    edge_policies = (None, *_POLICIES) if edges else (None,)
    parts: Any = (itertools.product(*each) for each in (rules, policies, ends))
    for rule, policy, end, edge in itertools.islice(itertools.product(*parts, edge_policies), 0, None, every):
        yield FlowSpec(
            "small",
            [
                FlowNode(
                    _NAMES[number],
                    queue=queues[number % len(queues)],
                    job="work",
                    data={"end": end[number]},
                    after=[Dependency(_NAMES[other], edge) for other in shape[number]],
                    rule=rule[number],
                    on_failure=policy[number],
                )
                for number in numbers
            ],
        )


@dataclass(slots=True)
class Bulk:
    """Many flows at once on one server: submitted, run, and compared with the oracle.

    Attributes:
        store: The server.
        path: The path of the flows.
        now: The time in ms.
        tokens: How many exchanges there were.
    """

    store: Store
    path: Path
    now: int = START_MS
    tokens: int = 0
    outbox: dict[str, list[Outcome]] = field(default_factory=dict)

    def now_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> int:
        return self.now

    def run(self, op: Op[Any]) -> Any:
        """Run an operation to its end."""
        return self.store.run(op, self.now)

    def problems(self, specs: Sequence[FlowSpec]) -> Iterator[str]:
        """Run flows; yield how those end that end in a way that their specification does not allow."""
        self.store.reset(1)
        places = [QueueKeys(PREFIX, queue) for queue in QUEUES[self.path]]
        self.run(workers.open_queues(places))
        reach = Reach(is_cluster=self.path == "portable")
        refs = [
            self.run(submit_flow(PREFIX, check_flow(spec), f"f{number}", "attach", self, reach=reach))
            for number, spec in enumerate(specs)
        ]
        while self._run_jobs(places):
            for place in places if self.path == "portable" else ():
                self.run(upkeep.sweep(place, self))
        for spec, ref in zip(specs, refs, strict=True):
            found = self.run(backend.backend_of(ref).nodes(ref))
            ends = {node.name: str(node.state) for node in found}
            state = self.run(backend.backend_of(ref).status(ref)).state
            fates = {node.name: str(node.data["end"]) for node in spec.nodes if isinstance(node.data, dict)}
            allowed = outcomes(spec.nodes, fates)
            if ends not in allowed or state != flow_state(spec.nodes, ends):
                yield f"{self.path}: {spec} is {state}, {ends}; allowed: {allowed}"

    def _run_jobs(self, places: Sequence[QueueKeys]) -> int:
        """Run what can be run until nothing can; returns how many jobs that were."""
        ran = 0
        while (began := sum(self._exchange(place) for place in places)) or any(self.outbox.values()):
            ran += began
            self.now += 1
        return ran

    def _exchange(self, place: QueueKeys) -> int:
        """A worker's round: report, fetch, and do what flows need; returns how many jobs began."""
        outbox = self.outbox.setdefault(place.queue, [])
        outcomes_now, self.outbox[place.queue] = outbox[:MAX_NODES], outbox[MAX_NODES:]
        self.tokens += 1
        request = Request(outcomes_now, MAX_NODES, f"t{self.tokens}")
        answer = self.run(exchange(place, "gmo-worker-1", request, self))
        self.run(carry(place, outcomes_now, answer.verdicts, self))
        for outcome, verdict in zip(outcomes_now, answer.verdicts, strict=True):
            if verdict == "again":
                self.outbox[place.queue].append(outcome)
        for flow_id in answer.flows:
            self.run(backend.advance(place, flow_id, self))
        for attempt in answer.begun:
            end = attempt.data.split('"')[3]
            text = "1" if end == "completed" else f"it is {end}"
            self.outbox[place.queue].append(Outcome(attempt, _KINDS[end], text, "", 1, 0))
        return len(answer.begun)
