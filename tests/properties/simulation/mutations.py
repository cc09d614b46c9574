"""Defects that are put in on purpose: the simulation must notice each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from glidemq_orchestrate.flows.generation import FlowRef, Generation
from glidemq_orchestrate.flows.portable import advance, records, rounds, succession
from glidemq_orchestrate.flows.portable import succession as calls
from glidemq_orchestrate.flows.portable.records import Record
from glidemq_orchestrate.flows.portable.tables import Node
from glidemq_orchestrate.wire.call import Op, ask, ask_each
from tests.properties.simulation.plan import Path


@dataclass(frozen=True, slots=True)
class Mutation:
    """A defect.

    Attributes:
        name: What is wrong.
        path: The path of the flows on which it shows.
        replaced: Texts of our server library, and what stands there instead.
        patched: Functions of operations, or their constants, by module and name, and their replacements.
        seed: A search that begins there found it soon.
    """

    name: str
    path: Path
    replaced: tuple[tuple[str, str], ...] = ()
    patched: tuple[tuple[Any, str, Any], ...] = field(default=())
    seed: int = 0

    def change(self, source: str) -> str:
        """The source of our library with the defect.

        Raises:
            AssertionError: The library no longer has the text.
        """
        for old, new in self.replaced:
            assert source.count(old) == 1, f"{self.name}: the library has {source.count(old)} times {old!r}"
            source = source.replace(old, new)
        return source

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Operations have the defect in this block."""
        before = [(module, name, getattr(module, name)) for module, name, _ in self.patched]
        try:
            for module, name, function in self.patched:
                setattr(module, name, function)
            yield
        finally:
            for module, name, function in before:
                setattr(module, name, function)


def _release_nothing(*_: Any) -> Op[None]:
    """Do nothing where nodes should be released."""
    yield from ()


def _wait_for_nobody(ref: FlowRef, *_: Any) -> Op[Record]:
    """A generation does not end the one before."""
    return (yield from ask(records.record(ref.home, ref.flow_id)))


def _always_win(ref: FlowRef) -> Op[bool]:
    """Each generation that is staged takes place, whichever was noted."""
    record = yield from ask(records.record(ref.home, ref.flow_id))
    new = Generation(ref.flow_id, records.PATH, record.fields.get("digest", ""))
    yield from ask_each([calls.note(ref.home, new)])
    return True


def _keep_all(*_: Any) -> Op[None]:
    """Nothing removes the jobs of the generation before."""
    yield from ()


def _nobody(*_: Any) -> list[Node]:
    """Nothing follows a node."""
    return []


OWNS = "if v[1] ~= 'active' or v[2] ~= o.token or v[3] ~= o.processed_on then"
LAST = "L.hashes.add(key, 'depsCompleted', 1) >= redis.call('SCARD', prefix .. 'deps:' .. job_id)"
FREED = """
    L.list_active.release(x.prefix .. 'list-active')
    redis.call('ZREM', x.prefix .. 'gmo:list-held', o.job_id)
  else
"""
COUNTED = "L.hashes.add(key, 'completed', removed)"
RESULT = "found[#found + 1], found[#found + 2] = job[1] or dependency, result"


def _keep_time(*_: Any) -> str:
    """No flow has a deadline."""
    return ""


_DEADLINE = "local record = redis.call('HMGET', key, 'state', 'deadline')\n  if record[1] == 'running' then"
_TIMED_OUT = (
    "fail_and_notify(flow, ref, reason, now)\n  L.dead_letters.note(prefix, job_id, now)\n  L.advance"
)
_LOOKED_AT = "cost, is_suspect = L.blocked.check(c.flow, c.key, ref, c.now)"
_REMOVED = "  remove_job(ref, flow_id)\n    L.due"
_IS_ENDING = "if new ~= 'staging' and new ~= 'running' and record[2] then"
_HAS_BEGUN = " or (STARTED[job[1]] and not is_open_array) or has_begun or is_passing then"
_FOLLOWS = "if is_released and how ~= '' and not (how == 'late' and v[4]) then"
_PASSED = "redis.call('SADD', key .. ':passed', ref) == 1"
_NUMBER = "math.max(number + 1, x.clock)"
_STAYS: Final = "redis.call('SREM', key .. ':staying', dependent) == 1"
_TAKEN_BACK = "L.end_nodes.withdraw(prefix, job_id, now)\n  L.grow.abandon"
_LOST_SLICE: Final = "    redis.call('ZADD', a.key .. ':again', text(r.now), L.positions.join(elements))\n"
_REST_OF_SLICE: Final = "  if count < #elements then"
_REST_OF_KEPT: Final = "  L.kept_elements.give_back(x, a, elements, ended, count + 2, #elements)\n"
_APPENDED: Final = "L.slice_items.append(a, added)"
_COUNTS: Final = "local counts = a and redis.call('SREM', a.key .. ':jobs', job_id) == 1"
_REVOKED: Final = "redis.call('UNLINK', a.key .. ':jobs')"
_FAILED_RUN: Final = "redis.call('HSET', a.key, 'failed', 0, 'run', a.run + 1)"
_PASSES_OVER: Final = "for _ = 1, a.ended > 0 and PASSES or 0 do"
_BY_HAND: Final = "if ended and L.positions.contains(ended, elements[count]) then"
_NOTED: Final = "if not is_anew and L.element_changes.apply_noted(a, now) then"
_IS_ENDED = "if not job or not job.state or ENDED[job.state] or"

MUTATIONS: Final = (
    Mutation("the elements of a lost worker are forgotten", "staged", ((_LOST_SLICE, ""),)),
    Mutation(
        "the rest of a slice that ended early is forgotten",
        "staged",
        ((_REST_OF_SLICE, "  if false then"),),
        seed=545,
    ),
    Mutation(
        "what is left of a slice while one element goes on is forgotten",
        "staged",
        ((_REST_OF_KEPT, ""),),
        seed=495,
    ),
    Mutation(
        "what an element adds is added twice", "staged", ((_APPENDED, f"{_APPENDED} {_APPENDED}"),), seed=40
    ),
    Mutation(
        "the end of an element that is a job counts again",
        "staged",
        ((_COUNTS, "local counts = a and true"),),
    ),
    Mutation(
        "an array that was stopped keeps the jobs of its elements", "staged", ((_REVOKED, ""),), seed=200
    ),
    Mutation("failed elements do not run again", "staged", ((_FAILED_RUN, ""),), seed=2_250),
    Mutation(
        "an element that was ended by hand runs", "staged", ((_PASSES_OVER, "for _ = 1, 0 do"),), seed=270
    ),
    Mutation("an outcome counts after an end by hand", "staged", ((_BY_HAND, "if false then"),), seed=230),
    Mutation("all elements run again for one", "staged", ((_NOTED, "if false then"),), seed=230),
    Mutation(
        "the outcome of a stale attempt is accepted",
        "staged",
        ((OWNS, "if v[1] ~= 'active' then"),),
        seed=25,
    ),
    Mutation(
        "a node is released with its first dependency",
        "staged",
        ((LAST, "L.hashes.add(key, 'depsCompleted', 1) >= 1"),),
        seed=305,
    ),
    Mutation("the end of a job from a list does not free its place", "staged", ((FREED, "\n  else\n"),)),
    Mutation(
        "each completed node is counted twice",
        "staged",
        ((COUNTED, "L.hashes.add(key, 'completed', 2 * removed)"),),
    ),
    Mutation(
        "jobs are taken from workers that are alive",
        "staged",
        (("return now - last < threshold\n", "return now - last < threshold / 10\n"),),
    ),
    Mutation("a result is left out", "staged", ((RESULT, f"if #found < 2 then {RESULT} end"),)),
    Mutation("each attempt has the same number", "staged", ((_NUMBER, "1"),)),
    Mutation(
        "a retry runs completed nodes again",
        "staged",
        ((COUNTED, f"redis.call('SADD', key .. ':failed', unpack(list.refs))\n{COUNTED}"),),
        seed=74,
    ),
    Mutation(
        "nobody opens the gates of portable flows",
        "portable",
        patched=((advance, "_release", _release_nothing),),
        seed=7,
    ),
    Mutation(
        "retention removes a flow that runs",
        "staged",
        ((_IS_ENDING, "if new ~= 'staging' and record[2] then"),),
        seed=13,
    ),
    Mutation("the jobs of a removed flow stay", "staged", ((_REMOVED, "  L.due"),)),
    Mutation(
        "a deadline is ignored",
        "staged",
        ((_DEADLINE, _DEADLINE.replace("'running'", "'staging'")),),
        seed=177,
    ),
    Mutation(
        "a queue timeout leaves dependents waiting, and the supervisor looks at none",
        "staged",
        (
            (_TIMED_OUT, _TIMED_OUT.replace("_and_notify", "")),
            (_LOOKED_AT, "cost, is_suspect = 0, false"),
        ),
        seed=167,
    ),
    Mutation("a queue timeout ends what has begun", "staged", ((_HAS_BEGUN, " then"),), seed=12),
    Mutation(
        "the deadline of a portable flow is ignored",
        "portable",
        patched=((advance, "_stopped", _keep_time),),
        seed=137,
    ),
    Mutation(
        "what follows a node does not run again with it", "staged", ((_FOLLOWS, "if false then"),), seed=24
    ),
    Mutation(
        "what ended before the nodes that it follows does not run again with them",
        "staged",
        ((_PASSED, "false"),),
        seed=1_710,
    ),
    Mutation(
        "what runs again is not taken from its worker", "staged", ((_TAKEN_BACK, "L.grow.abandon"),), seed=6
    ),
    Mutation(
        "what was skipped before runs when others are skipped with it",
        "staged",
        ((_STAYS, "false"),),
        seed=3_383,
    ),
    Mutation(
        "a portable generation leaves the one before running",
        "portable",
        patched=((advance, "_end_for", _wait_for_nobody),),
        seed=13,
    ),
    Mutation(
        "of two portable generations at once both take place",
        "portable",
        patched=((succession, "decide", _always_win),),
        seed=15,
    ),
    Mutation(
        "the jobs of a portable generation before stay",
        "portable",
        patched=((succession, "retire", _keep_all),),
    ),
    Mutation(
        "what follows a portable node does not run again with it",
        "portable",
        patched=((rounds, "followers", _nobody),),
    ),
    Mutation(
        "a portable node that runs again is not taken from its worker",
        "portable",
        (("    take_back(prefix, job_id, job, now)\n  elseif", "  elseif"),),
        seed=490,
    ),
    Mutation(
        "what has waited for others stays listed",
        "portable",
        (("redis.call('ZREM', waiting, parent_id)\n    return", "return"),),
        seed=20_640,
    ),
    Mutation("a portable node ends twice", "portable", ((_IS_ENDED, "if not job or"),), seed=20_010),
)
