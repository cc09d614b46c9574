"""What a round does, decided by its seed alone: flows of random shape, plain jobs, and their fates."""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from glidemq_orchestrate import ArrayNode, Backoff, FlowNode, FlowSpec, JobOptions, Ordering, Owner, Rule
from glidemq_orchestrate.flows.dependencies import Dependency, OnFailure

KEYS: Final = ("red", "green", "blue")
ACTIONS: Final = (
    *("none",) * 6, "retry", "retry", "cancel", "restart", "mend", "mend", "anew", "extend", "rerun",
    "orphan", "skip",
)  # fmt: skip
BY_TWO: Final = ("restart", "anew", "mend")
"""What two processes do to the same flow."""
RETRIED: Final = ("retry", "orphan")
"""After these a flow that has ended is retried."""
WAITS_BELOW_MS: Final = 300
"""A flow with a shorter delay is run again when it has ended, any other after the delay."""
LONG_MS: Final = 3_000
"""Longer than a lease."""
ORPHANED: Final = 6
MENDED: Final = "mended"
"""The node that every flow has only after it was mended."""

BAD: Final = ("fail", "refuse")
"""How a step ends that fails for good."""

SHAPES: Final = ("fan-out", "fan-in", "diamonds", "layers", "chain", "rules", "random", "growing")
HANDLERS: Final = ("async",) * 16 + ("thread",) * 4 + ("process",)


def has_history(job: str) -> bool:
    """Whether a job records its history: every fifth, by its name, or by those of its flow and its node."""
    return zlib.crc32(job.encode()) % 5 == 0


@dataclass(frozen=True)
class Elements:
    """The elements of an array, and how they end.

    Attributes:
        salt: Decides the fates, and whether elements are jobs.
        is_list: Whether they have items of their own; otherwise it is a range.
        shares: How many of 1,000 end otherwise than at once, by fate: ``once`` fails at its first attempt,
            ``fail`` always, ``cure`` until the flow is retried, and ``skip`` is skipped.
    """

    size: int
    is_list: bool
    salt: int
    shares: Mapping[str, int]
    max_running: int | None = None
    max_failed: int | None = None

    def __hash__(self) -> int:
        """As equal ones have."""
        return hash((self.size, self.is_list, self.salt))

    @property
    def over(self) -> Sequence[Any]:
        """The items."""
        return [f"item {index}" for index in range(self.size)] if self.is_list else range(7, 7 + self.size)

    def fate(self, index: int) -> str:
        """How an element ends."""
        return fate_of({"salt": self.salt, "shares": self.shares}, index)


def fate_of(data: Mapping[str, Any], index: int) -> str:
    """How an element ends, by the data of its array."""
    at = zlib.crc32(f"{data['salt']} {index}".encode()) % 1_000
    for fate, share in data["shares"].items():
        if at < share:
            return str(fate)
        at -= share
    return "complete"


@dataclass(frozen=True)
class Step:
    """A node, and how its handler behaves.

    Attributes:
        ends: What its last attempt does: ``complete``, ``fail``, ``skip``, ``cure``, which fails until its
            flow is retried, or ``refuse``, which fails as a check that does not pass; a retry does not help.
        fails: How many attempts before fail.
        handler: Where it runs: on the loop, in a thread or in a process.
        spare: How many attempts it has beyond; a killed process costs one.
        grows: Steps that its handler adds to the flow.
        says: How many messages each attempt writes.
        edition: How often it was changed.
        array: Its elements, if it is an array.
    """

    name: str
    queue: str
    after: tuple[str, ...] = ()
    rule: str = Rule.ALL_SUCCESS
    on_failure: str = OnFailure.FAIL
    ends: str = "complete"
    fails: int = 0
    ms: int = 0
    handler: str = "async"
    spare: int = 0
    ordering: str | None = None
    priority: int = 0
    grows: tuple[Step, ...] = ()
    says: int = 0
    edition: int = 0
    array: Elements | None = None

    @property
    def attempts(self) -> int:
        """How many attempts there are."""
        return self.fails + 1 + self.spare

    def node(self, flow_id: str) -> FlowNode:
        """The node as it is submitted."""
        if self.array is not None:
            return ArrayNode(
                self.name, queue=self.queue, job=self.handler, data=self._payload(flow_id), after=self.after,
                over=self.array.over, max_running=self.array.max_running, max_failed=self.array.max_failed,
                attempts=self.attempts, backoff=Backoff("fixed", timedelta(milliseconds=50)),
                priority=self.priority, as_jobs=self.array.salt % 3 == 1,
            )  # fmt: skip
        return FlowNode(
            self.name, queue=self.queue, job=self.handler, data=self._payload(flow_id), after=self.after,
            rule=self.rule, on_failure=self.on_failure,
            options=JobOptions(
                attempts=self.attempts,
                backoff=Backoff("fixed", timedelta(milliseconds=50)) if self.attempts > 1 else None,
                ordering=Ordering(self.ordering) if self.ordering else None,
                priority=self.priority,
                must_pass=self.ends == "refuse",
                history=has_history(f"{flow_id}~{self.name}"),
            ),
        )  # fmt: skip

    def has_result_of(self, other: Step) -> bool:
        """Whether what shapes the results of the two is equal."""
        return self._shape() == other._shape()

    def _shape(self) -> tuple[object, ...]:
        after = sorted((str(name), getattr(name, "on_failure", None) or "") for name in self.after)
        return self.queue, self.handler, self._data(""), after, self.rule, self.array and self.array.over

    def _payload(self, flow_id: str) -> dict[str, Any]:
        """The data of the job: those of Spark name what runs, and take the rest as an argument."""
        data = self._data(flow_id)
        if self.handler == "spark.python":
            return {"callable": "tests.chaos.spark_steps:publish_rows", "arguments": {"step": data}}
        if self.handler == "spark.submit":
            inputs = [{"node": name, "to": [place]} for place, name in enumerate(self.after, 1)]
            return {
                "file": "tests.chaos:spark_program.py",
                "args": [data, *(None for _ in inputs)],
                "inputs": inputs,
            }
        return data

    def _data(self, flow_id: str) -> dict[str, Any]:
        of_elements = {"salt": self.array.salt, "shares": dict(self.array.shares)} if self.array else {}
        return {
            "flow": flow_id, "node": self.name, "ends": self.ends, "fails": self.fails, "ms": self.ms,
            "edition": self.edition, "says": self.says, **of_elements,
        }  # fmt: skip


def step_data(payload: Any) -> dict[str, Any]:
    """What the payload of a job says of its step."""
    arguments = payload.get("arguments") or dict(zip(("step",), payload.get("args", ()), strict=False))
    found: dict[str, Any] = arguments.get("step", payload)
    return found


@dataclass(frozen=True)
class Plain:
    """A job without a flow.

    Attributes:
        attempts: More than one where it runs in a process, which may be killed.
    """

    job_id: str
    queue: str
    key: str | None = None
    ms: int = 0
    handler: str = "plain"
    attempts: int = 1


@dataclass(frozen=True)
class FlowPlan:
    """A flow and what is done to it from outside.

    Attributes:
        action: ``none``; ``cancel`` it at some moment, ``extend`` it by nodes, or ``skip`` several nodes
            together; ``retry`` what failed once it has ended; ``restart`` all of it, or from a node on
            (``anew``), or ``mend`` it and retry it, once it has ended or while it runs; ``rerun`` a node with
            all that follow it, when that has ended; ``orphan``: its owner has vanished as soon as it is
            submitted.
        delay_ms: How long after the submission.
        added: What ``extend`` adds.
        mended: What it consists of when it was mended: steps that fail do so no more, some are changed, one
            is new and one may be gone.
    """

    flow_id: str
    steps: tuple[Step, ...]
    action: str = "none"
    delay_ms: int = 0
    added: tuple[Step, ...] = ()
    fail_fast: bool = False
    mended: tuple[Step, ...] = ()

    def owner(self, waiter: int) -> Owner:
        """For whom it runs: whoever waits for it, or somebody who has vanished."""
        if self.action == "orphan":
            return Owner("gone", timedelta(seconds=15))
        return Owner(f"waiter{waiter}", timedelta(minutes=1))

    def spec(self) -> FlowSpec:
        """The flow as it is submitted."""
        nodes = [step.node(self.flow_id) for step in self.steps]
        return FlowSpec("chaos", nodes, fail_fast=self.fail_fast)

    @property
    def waits(self) -> bool:
        """Whether it has to end before it is restarted or mended."""
        return self.delay_ms < WAITS_BELOW_MS

    def after_mending(self) -> FlowPlan:
        """The flow as it is submitted when it is mended."""
        return replace(self, steps=self.mended)

    @property
    def again(self) -> str:
        """The node that ``rerun`` and ``anew`` run again."""
        return self.steps[len(self.steps) // 3].name

    @property
    def by_hand(self) -> tuple[str, ...]:
        """The nodes that ``skip`` ends: those that do not add nodes, as these cannot be changed."""
        return tuple(step.name for step in self.steps if not step.grows)[::3][:5]

    @property
    def all_steps(self) -> dict[str, Step]:
        """By name, also those that are added while it runs or when it is mended."""
        grown = [more for step in self.steps for more in step.grows]
        return {step.name: step for step in (*self.mended, *self.steps, *grown, *self.added)}


@dataclass(frozen=True)
class Plan:
    """A round."""

    seed: int
    queues: tuple[str, ...]
    flows: tuple[FlowPlan, ...]
    plain: tuple[Plain, ...] = ()
    by_id: dict[str, FlowPlan] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        """Index the flows."""
        self.by_id.update({flow.flow_id: flow for flow in self.flows})

    @property
    def may_prefetch(self) -> bool:
        """Whether workers hold more jobs than they run: in half of the rounds."""
        return self.seed % 2 == 0

    @property
    def all_queues(self) -> tuple[str, ...]:
        """Also those in which only steps of some flows are."""
        used = {step.queue for flow in self.flows for step in flow.all_steps.values()}
        return (*self.queues, *sorted(used.difference(self.queues)))


def plan(
    seed: int,
    flows: int,
    queues: Sequence[str],
    *,
    widest: int = 200,
    may_grow: bool = True,
    longs: float = 0.0,
    giant: int = 0,
    more: Sequence[FlowPlan] = (),
) -> Plan:
    """The plan of a seed.

    Args:
        seed: The same seed gives the same plan.
        flows: How many.
        queues: Where their nodes go.
        widest: Nodes of the largest fan-out.
        may_grow: Whether flows over several queues may grow; if not, half of the flows are in one queue.
        longs: The share of jobs without a flow that run for longer than a lease.
        giant: Nodes between the two ends of one more flow; 0: there is none.
        more: Flows that come before these.
    """
    chance = random.Random(f"plan {seed}")
    made = tuple(
        _flow(
            chance,
            f"s{seed}-f{number}",
            tuple(queues),
            widest,
            may_grow=may_grow,
            is_late=2 * number >= flows,
        )
        for number in range(flows)
    )
    if giant:
        made = (_giant(random.Random(f"giant {seed}"), f"s{seed}-giant", tuple(queues), giant), *made)
    plain = tuple(_plain(chance, f"s{seed}-p{number}", queues, longs) for number in range(flows * 3))
    return Plan(seed, tuple(queues), (*more, *made), plain)


def _plain(chance: random.Random, job_id: str, queues: Sequence[str], longs: float) -> Plain:
    made = Plain(job_id, chance.choice(queues), chance.choice((None, *KEYS)), _ms(chance))
    if chance.random() < 0.1:
        made = replace(
            made, handler="plain-process", ms=chance.choice((5, 100, 400)), attempts=chance.choice((1, 3))
        )
    return replace(made, key=None, ms=LONG_MS) if chance.random() < longs else made


def _flow(
    chance: random.Random,
    flow_id: str,
    queues: tuple[str, ...],
    widest: int,
    *,
    may_grow: bool,
    is_late: bool,
) -> FlowPlan:
    shape, action = chance.choice(SHAPES), chance.choice(ACTIONS)
    if not may_grow:
        queues = chance.choice((queues, (chance.choice(queues),)))
        may_grow = len(queues) == 1
    if not may_grow:
        shape, action = (
            ("random", "none") if shape == "growing" else (shape, action.replace("extend", "none"))
        )
    steps = _MAKERS[shape](chance, queues, widest)
    if action == "retry":
        steps = [_curable(chance, step) for step in steps]
    if action == "orphan" and is_late:  # it would be waited for after the faults
        action = "none"
    if action == "orphan":  # a tail that takes longer than the lease of its owner
        ends = tuple(step.name for step in steps)[-1:]
        for number in range(ORPHANED):
            fixed = {
                "ms": LONG_MS,
                "ends": "complete",
                "handler": "async",
                "ordering": None,
                "rule": Rule.ALL_DONE,
            }
            steps.append(_step(chance, queues, f"tail{number}", ends, **fixed))
            ends = (steps[-1].name,)
    added: tuple[Step, ...] = ()
    if action == "extend":
        names = [step.name for step in steps]
        added = tuple(
            _step(chance, queues, f"added{n}", tuple(chance.sample(names, 1)))
            for n in range(chance.randint(1, 4))
        )
    if not may_grow and len({step.queue for step in steps}) > 1:  # the portable path refuses ordering keys
        steps = [replace(step, ordering=None) for step in steps]
    fail_fast = shape == "layers" and chance.random() < 0.2
    mended = _mended(chance, steps) if action == "mend" else ()
    delay_ms = chance.choice((0, 5, 50, 300, 1_000))
    return FlowPlan(flow_id, tuple(steps), action, delay_ms, added, fail_fast, mended)


def _giant(chance: random.Random, flow_id: str, queues: tuple[str, ...], width: int) -> FlowPlan:
    """A fan-out of thousands that comes together again; its nodes are quick."""
    quick = (0, 0, 0, 1, 5, 20)
    names = tuple(f"leaf{n}" for n in range(width))
    leaves = [
        _step(
            chance, queues, name, ("root",), handler=chance.choice(("async", "thread")), spare=0,
            ms=chance.choice(quick), ordering=None, says=0,
        )
        for name in names
    ]  # fmt: skip
    join = _step(chance, queues, "join", names, rule=Rule.ALL_DONE, ends="complete", ordering=None)
    root = _step(chance, queues, "root", ends="complete", ordering=None)
    return FlowPlan(flow_id, (root, *leaves, join))


def _ms(chance: random.Random) -> int:
    return LONG_MS if chance.random() < 0.004 else chance.choice((0, 0, 0, 1, 5, 20, 100, 400))


def _step(
    chance: random.Random, queues: tuple[str, ...], name: str, after: tuple[str, ...] = (), **fixed: Any
) -> Step:
    given: dict[str, Any] = {
        "ends": chance.choices(("complete", "fail", "skip", "refuse"), (91, 4, 3, 2))[0],
        "fails": chance.choices((0, 1, 2), (88, 9, 3))[0],
        "handler": (handler := chance.choice(HANDLERS)),
        "spare": chance.choice((0, 2)) if handler == "process" else 0,
        "ms": chance.choice((5, 100, 400)) if handler == "process" else _ms(chance),
        "ordering": chance.choice(KEYS) if chance.random() < 0.08 else None,
        "priority": chance.randint(1, 9) if chance.random() < 0.08 else 0,
        "on_failure": chance.choices(list(OnFailure), (85, 5, 5, 5))[0],
        "says": chance.choice((1, 3, 150)) if chance.random() < 0.1 else 0,
    }
    return Step(name, chance.choice(queues), after, **{**given, **fixed})


def _mended(chance: random.Random, steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps after somebody has looked at those that fail; in the queues of before."""
    queues = tuple(dict.fromkeys(step.queue for step in steps))
    followed = {name for step in steps for name in step.after}
    leaves = [step.name for step in steps if step.name not in followed]
    gone = chance.choice(leaves) if len(steps) > 1 and chance.random() < 0.3 else None
    mended = []
    for step in steps:
        if step.ends in BAD or chance.random() < 0.1:
            mended.append(replace(step, ends="complete" if step.ends in BAD else step.ends, edition=1))
        elif step.name != gone:
            mended.append(replace(step, spare=step.spare + chance.choice((0, 0, 1))))
    after = tuple(chance.sample([step.name for step in mended], min(len(mended), chance.randint(0, 3))))
    return (*mended, replace(_step(chance, queues, MENDED, after), ordering=None))


def _curable(chance: random.Random, step: Step) -> Step:
    """Some fail until the flow is retried; none fails for good."""
    ends = "cure" if step.ends in BAD or chance.random() < 0.1 else step.ends
    return replace(step, ends=ends)


def _fan_out(chance: random.Random, queues: tuple[str, ...], widest: int) -> list[Step]:
    width = chance.randint(2, widest)
    return [_step(chance, queues, "root", ends="complete")] + [
        _step(chance, queues, f"leaf{n}", ("root",)) for n in range(width)
    ]


def _fan_in(chance: random.Random, queues: tuple[str, ...], widest: int) -> list[Step]:
    names = [f"part{n}" for n in range(chance.randint(2, widest))]
    rule = chance.choice((Rule.ALL_SUCCESS, Rule.ALL_DONE, Rule.NONE_FAILED))
    return [_step(chance, queues, name) for name in names] + [
        _step(chance, queues, "join", tuple(names), rule=rule)
    ]


def _diamonds(chance: random.Random, queues: tuple[str, ...], _: int) -> list[Step]:
    steps = [_step(chance, queues, "top0", ends="complete")]
    for n in range(chance.randint(1, 5)):
        sides = [f"side{n}.{m}" for m in range(chance.randint(2, 4))]
        steps += [_step(chance, queues, side, (f"top{n}",)) for side in sides]
        steps.append(_step(chance, queues, f"top{n + 1}", tuple(sides)))
    return steps


def _layers(chance: random.Random, queues: tuple[str, ...], _: int) -> list[Step]:
    steps: list[Step] = []
    before: tuple[str, ...] = ()
    for n in range(chance.randint(2, 5)):
        names = tuple(f"l{n}.{m}" for m in range(chance.randint(1, 6)))
        steps += [_step(chance, queues, name, before) for name in names]
        before = names
    return steps


def _chain(chance: random.Random, queues: tuple[str, ...], _: int) -> list[Step]:
    return [_step(chance, queues, f"c{n}", (f"c{n - 1}",) if n else ()) for n in range(chance.randint(1, 15))]


def _random(chance: random.Random, queues: tuple[str, ...], _: int) -> list[Step]:
    return _mixed(chance, queues, [Rule.ALL_SUCCESS])


def _rules(chance: random.Random, queues: tuple[str, ...], _: int) -> list[Step]:
    return _mixed(chance, queues, list(Rule), ends=("complete", "complete", "fail", "skip"))


def _mixed(
    chance: random.Random, queues: tuple[str, ...], rules: Sequence[str], ends: Sequence[str] = ()
) -> list[Step]:
    steps: list[Step] = []
    for n in range(chance.randint(1, 14)):
        names = chance.sample([step.name for step in steps], chance.randint(0, min(n, 4)))
        after = tuple(Dependency(name, chance.choice((None, None, None, *OnFailure))) for name in names)
        fixed: dict[str, Any] = {"rule": chance.choice(rules)}
        if ends:
            fixed["ends"] = chance.choice(ends)
        steps.append(_step(chance, queues, f"n{n}", after, **fixed))
    return steps


def _growing(chance: random.Random, queues: tuple[str, ...], _: int) -> list[Step]:
    """A root that adds nodes while it runs; they may wait for each other."""
    grows: list[Step] = []
    for n in range(chance.randint(1, 12)):
        after = ("root",) if not grows or chance.random() < 0.5 else (chance.choice(grows).name,)
        grows.append(_step(chance, queues, f"grown{n}", after))
    root = _step(chance, queues, "root", ends="complete", handler="async", grows=tuple(grows))
    return [root, _step(chance, queues, "end", ("root",))]


_MAKERS: Final = {
    "fan-out": _fan_out, "fan-in": _fan_in, "diamonds": _diamonds, "layers": _layers, "chain": _chain,
    "rules": _rules, "random": _random, "growing": _growing,
}  # fmt: skip
