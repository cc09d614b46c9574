"""What a history is about: a flow, the ends of its nodes, and who takes part. Drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, Literal

from glidemq_orchestrate import Dependency, FlowNode, FlowSpec, JobOptions, Ordering, Owner, Rule
from glidemq_orchestrate.flows.backend import Reach
from glidemq_orchestrate.flows.dependencies import OnFailure
from glidemq_orchestrate.foundation.durations import milliseconds
from tests.properties.simulation.choices import Choices

Path = Literal["staged", "portable"]
QUEUES: Final[dict[Path, tuple[str, ...]]] = {"staged": ("b", "c"), "portable": ("b", "c", "q")}
JOB: Final = "work"
_RULES: Final = ["all_success"] * 12 + list(Rule)
_POLICIES: Final = [None] * 6 + list(OnFailure)
_ENDS: Final = ["completed"] * 6 + ["failed", "failed", "skipped"]
_STEPS: Final = ["cancel", "cancel", "retry_failed", "retry_failed", "restart", "attach", "extend"]
_CHANGES: Final = ["follow", "follow", "alone", "completed", "skipped", "failed"]
"""What users do with nodes: see ``flows/node_table.py``."""
# How often a plan has a limit of each kind.
_LIMITED: Final = 0.25
_QUEUE_TIMEOUTS: Final = [50, 400, 1_500, 5_000]


@dataclass(frozen=True, slots=True)
class Faults:
    """How often something breaks, per call.

    Attributes:
        lose: The connection breaks before or after the server has executed the call.
        kill: The process dies before, at or after the call; or the call arrives after its death.
        pause: The process stands still, for longer than its leases last.
        jump: Time passes for everybody, per step.
    """

    lose: float = 0.0
    kill: float = 0.0
    pause: float = 0.0
    jump: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """A history before it runs.

    Attributes:
        path: The path that the flow takes.
        spec: The flow. The data of a node says how its handler ends: see ``node_data``.
        workers, supervisors, submitters: How many processes of each kind.
        steps: What users do with the flow, at which time in ms after the start.
        heals: Handlers that fail do not after a retry.
        faults: What breaks.
        abandons: The submission is not repeated when its process dies.
        late: A queue that no worker serves in the first ms.
        comes_back: The flow is submitted again when nothing is left of it.
        owner: For whom it is submitted.
        leaves: When the owner vanishes, in ms after the start.
    """

    path: Path
    spec: FlowSpec
    workers: int = 1
    supervisors: int = 0
    submitters: int = 1
    steps: tuple[tuple[int, str], ...] = ()
    heals: bool = False
    faults: Faults = field(default_factory=Faults)
    abandons: bool = False
    late: tuple[str, int] = ("", 0)
    comes_back: bool = False
    owner: Owner | None = None
    leaves: int = 0

    @property
    def reach(self) -> Reach:
        """The topology that leads to the path."""
        return Reach(is_cluster=self.path == "portable")

    @property
    def queues(self) -> tuple[str, ...]:
        """All queues, also those without a node."""
        return QUEUES[self.path]


def draw_owner(choices: Choices, plan: Plan) -> Plan:
    """The same plan; in some, the flow has an owner, whose lease is shorter than users may choose."""
    if plan.submitters > 1 or not choices.chance(0.25):
        return plan
    owner = Owner("user", on_expiry=choices.pick(["cancel", "cancel", "keep"]))
    object.__setattr__(owner, "lease", timedelta(milliseconds=choices.pick([1_500, 3_000, 9_000])))
    return replace(plan, owner=owner, leaves=choices.pick([0, 2_000, 6_000, 60_000, 60_000]))


def draw_changes(choices: Choices, plan: Plan) -> Plan:
    """The same portable plan; in some, users change nodes, and nothing has limits."""
    if plan.path == "staged" or not choices.chance(0.4):
        return plan
    nodes = [replace(node, queue_timeout=None) for node in plan.spec.nodes]
    return Plan(
        plan.path,
        FlowSpec("any", nodes, fail_fast=plan.spec.fail_fast),
        workers=plan.workers,
        supervisors=plan.supervisors,
        steps=tuple(sorted([*plan.steps, *_draw_some_changes(choices, nodes)])),
        heals=plan.heals,
        faults=plan.faults,
    )


def lasting(ms: int | None) -> timedelta | None:
    """So many ms."""
    return None if ms is None else timedelta(milliseconds=ms)


def fate(node: FlowNode) -> str:
    """How a node ends that runs."""
    assert isinstance(node.data, dict)
    limit = node.options.timeout
    if limit is not None and int(str(node.data["ms"])) > milliseconds(limit):
        return "failed"
    return str(node.data["end"])


def node_data(
    end: str = "completed", *, first: int = 0, later: bool = False, grows: bool = False, ms: int = 0
) -> dict[str, Any]:
    """The data of a node.

    Args:
        end: How its handler ends: completed, failed (for good) or skipped.
        first: How many attempts fail before that.
        later: The first attempt asks to run later.
        grows: It adds a node before it ends.
        ms: How long it takes.
    """
    return {"end": end, "first": first, "later": later, "grows": grows, "ms": ms}


def draw_plan(choices: Choices, path: Path) -> Plan:
    """A small flow and a few processes."""
    rates = choices.pick([0.0, 0.005, 0.02, 0.05])
    faults = Faults(
        lose=choices.pick([0.0, rates]),
        kill=choices.pick([0.0, rates / 2]),
        pause=choices.pick([0.0, rates / 2]),
        jump=choices.pick([0.0, 0.002]),
    )
    names = [name for name in _STEPS if name != "extend"] if path == "portable" else _STEPS
    count = choices.pick([0, 0, 1, 2, 3])
    steps = sorted((choices.between(0, 4_000), choices.pick(names)) for _ in range(count))
    nodes = _draw_nodes(choices, path)
    fail_fast = choices.chance(0.15)
    if path == "staged" and choices.chance(0.3):
        changes = _draw_some_changes(choices, nodes)
        plain = [replace(node, queue_timeout=None) for node in nodes]
        return Plan(
            path,
            FlowSpec("any", plain, fail_fast=fail_fast),
            workers=choices.between(1, 2),
            supervisors=choices.between(0, 1),
            steps=tuple(sorted([*steps, *changes])),
            heals=choices.chance(0.5),
            faults=faults,
        )
    spec = FlowSpec(
        "any",
        nodes,
        fail_fast=fail_fast,
        deadline=_draw_limit(choices, [30, 600, 2_000, 8_000]),
        retention=_draw_limit(choices, [0, 100, 2_000, 6_000]),
        queue_timeout=_draw_limit(choices, _QUEUE_TIMEOUTS),
    )
    return Plan(
        path,
        spec,
        workers=choices.between(1, 2),
        supervisors=choices.between(0, 1),
        submitters=choices.pick([1, 1, 1, 2]),
        steps=tuple(steps),
        heals=choices.chance(0.5),
        faults=faults,
        abandons=choices.chance(0.05),
        late=(choices.pick(QUEUES[path]), choices.pick([2_000, 9_000])) if choices.chance(0.2) else ("", 0),
        comes_back=spec.retention is not None and choices.chance(0.3),
    )


def _draw_some_changes(choices: Choices, nodes: list[FlowNode]) -> list[tuple[int, str]]:
    return [(choices.between(0, 9_000), _draw_change(choices, nodes)) for _ in range(choices.between(1, 4))]


def _draw_change(choices: Choices, nodes: list[FlowNode]) -> str:
    """What is done with nodes, and their names; only one completes, as each has a result of its own."""
    what, first = choices.pick(_CHANGES), choices.pick(nodes).name
    more = [] if what == "completed" else [node.name for node in choices.some(nodes, 2)]
    return f"{what} {','.join(dict.fromkeys([first, *more]))}"


def _draw_limit(choices: Choices, ms: list[int]) -> timedelta | None:
    return lasting(choices.pick(ms)) if choices.chance(_LIMITED) else None


def _draw_nodes(choices: Choices, path: Path) -> list[FlowNode]:
    nodes: list[FlowNode] = []
    for number in range(choices.between(1, 6)):
        after = [
            Dependency(name, choices.pick(_POLICIES)) for name in choices.some([one.name for one in nodes], 3)
        ]
        first = choices.pick([0, 0, 0, 1, 2])
        data = node_data(
            choices.pick(_ENDS),
            first=first,
            later=choices.chance(0.1),
            grows=path == "staged" and choices.chance(0.1),
            ms=choices.pick([0, 0, 5, 50, 400, 3_000, 3_000, 9_000]),
        )
        nodes.append(
            FlowNode(
                f"n{number}",
                queue=choices.pick(QUEUES[path]),
                job=JOB,
                data=data,
                after=after,
                options=_draw_options(choices, path, first),
                rule=choices.pick(_RULES),
                on_failure=choices.pick(_POLICIES) or "fail",
                queue_timeout=lasting(choices.pick(_QUEUE_TIMEOUTS)) if choices.chance(0.1) else None,
            )
        )
    return nodes


def _draw_options(choices: Choices, path: Path, first: int) -> JobOptions:
    more: dict[str, Any] = {}
    place = choices.pick(["", "", "", "", "priority", "lifo", "ordering"]) if path == "staged" else ""
    if place == "priority":
        more = {"priority": choices.between(1, 3)}
    elif place == "lifo":
        more = {"lifo": True}
    elif place == "ordering":
        more = {"ordering": Ordering("k", concurrency=choices.between(1, 2))}
    delay = timedelta(milliseconds=choices.pick([0, 0, 0, 0, 40, 900]))
    timeout = lasting(choices.pick([40, 1_000, 5_000])) if choices.chance(0.1) else None
    return JobOptions(attempts=first + 1, delay=delay, timeout=timeout, **more)
