"""Defects that are put in on purpose: rounds of chaos must notice each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from glidemq_orchestrate._lua import ORCHESTRATE, library
from glidemq_orchestrate.chasquimq import bridge, ending
from glidemq_orchestrate.chasquimq.bridge import ChasquiBridge
from glidemq_orchestrate.chasquimq.renewing import Renewals
from glidemq_orchestrate.chasquimq.scripts import END
from glidemq_orchestrate.flows import plan, submission
from glidemq_orchestrate.flows.plan import reasons
from glidemq_orchestrate.io import topology
from glidemq_orchestrate.lifeline.lifeline import Lifeline
from glidemq_orchestrate.server import libraries as of_the_package
from glidemq_orchestrate.spark.published import publish as publishing
from glidemq_orchestrate.spark.published.locations.target import Folder
from glidemq_orchestrate.worker import executor
from glidemq_orchestrate.worker.handlers.middleware import Execution
from glidemq_orchestrate.worker.runner import JobRunner
from glidemq_orchestrate.worker.services.worker_process import READY, ParentLink
from tests.chaos.size import Size
from tests.properties.simulation.mutations import COUNTED, FREED, LAST, OWNS, RESULT, Mutation

_FOR_EVER: Final = ExitStack()

SIZE: Final = Size(flows=40, kills=1_000, seconds=12, around=0.8, widest=40, settle=45)
# Node workers run the jobs that ours take from each other again and again, and set the places of lists right.
WITHOUT_NODE: Final = replace(SIZE, node_workers=0)
"""What a killed Node worker took from a list is found by a walk that begins each 15 s."""
WITH_SPARK: Final = replace(SIZE, flows=4, spark=4, spark_pause=4.0, seconds=30, settle=300)
CLEAN: Final = replace(SIZE, bridged=0.1, settle=90)
"""Of the round without a defect."""
WITH_BRIDGE: Final = replace(SIZE, flows=30, bridged=0.5, bridge_pause=0.7, seconds=20, settle=90)
WITH_ARRAYS: Final = replace(SIZE, flows=5, arrays=12, node_workers=0)
VARIABLE: Final = "GLIDEMQ_CHAOS_DEFECT"
"""The environment variable that tells the processes with sessions of Spark the name of a defect."""


@dataclass(frozen=True)
class Defect(Mutation):
    """A defect of every process of a round.

    Attributes:
        faults: Only these, where it shows with them alone; all by default.
        size: What differs from the rounds with other defects.
        at: The servers of its rounds; by default those for its path.
    """

    faults: str = ""
    size: Size = SIZE
    at: str = ""

    @property
    def ground(self) -> str:
        """The servers of its rounds."""
        return self.at or ("one" if self.path == "staged" else "cluster")

    @contextmanager
    def applied(self) -> Iterator[None]:
        """This process has the defect in this block, and its library has it."""
        ours = library(ORCHESTRATE)
        other = ours._replace(sha256=ours.sha256[::-1], source=self.change(ours.source))
        other = other._replace(source=other.source.replace(ours.sha256, other.sha256))
        before, changed = vars(of_the_package)["library"], vars(of_the_package)
        changed["library"] = lambda name: other if name == ORCHESTRATE else library(name)
        try:
            with Mutation.applied(self):
                yield
        finally:
            changed["library"] = before

    def begin(self) -> None:
        """This process has the defect until it ends."""
        _FOR_EVER.enter_context(self.applied())


_free: Final = JobRunner._free


def _keep_place(runner: JobRunner, execution: Execution) -> float:
    """Free the place of a job only when no attempt of it has failed before."""
    seconds = _free(runner, execution)
    runner._slots.running += any(attempt.attempts_made for attempt in execution.attempts)
    return seconds


def _only_ready(link: ParentLink, worker: Any) -> None:
    worker.ready.wait()
    link._say(READY)


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def _always(_: Any) -> bool:
    """Let every check pass."""
    return True


def _same(call: Any) -> Any:
    """Return a call as it is."""
    return call


def _of_nobody(*_: Any) -> Iterator[Any]:
    """Find no generation that was asked for with a request."""
    yield from ()


def _changed_nothing(nodes: Any, done: Any, _: Any) -> dict[str, str]:
    """Why nodes have to run, whatever has changed in them."""
    return reasons(nodes, done, {})


def _kept_nothing(nodes: Any, *_: Any) -> dict[str, str]:
    """Why nodes have to run: all of them."""
    return {node.name: "new" for node in nodes}


_seal: Final = publishing.seal


def _seal_and_count(ctx: Any, store: Any, version: Any, place: Any) -> None:
    """Let what an attempt has written count at once."""
    _seal(ctx, store, version, place)
    Folder(store).make(place.name)


def _makes_nothing(*_: Any) -> bool:
    """Let what was accepted not count, and say that it does."""
    return True


def _no_note(_: Any) -> dict[str, Any]:
    """Find nothing that an earlier activation has noted."""
    return {}


async def _notes_nothing(*_: Any) -> None:
    """Leave a job behind the bridge as it is."""


async def _renews_nothing(renewals: Any) -> None:
    """Keep the renewing process from renewing."""
    renewals._renewer.renewed()


_STALE: Final = END.replace("held[1][2] ~= ARGV[2]", "false")
_REQUEUED = "L.stream.append(r.prefix .. 'stream', lost.id, lost.job.name)\n"
_KEPT = "redis.call('HSET', key, 'lastActive', args[1])\n      kept[#kept + 1]"
_TOLD = "return redis.call('HSETNX', key, 'depdone:' .. ref, '1') == 1\n    and"
_RETOLD = "redis.call('HSETNX', key, 'depdone:' .. ref, '1')\n  return"
_ONCE = "if redis.call('HSETNX', job_key, 'depdone:' .. n.member, 1) == 0 then"
_AGAIN = "redis.call('HSETNX', job_key, 'depdone:' .. n.member, 1)\n  if false then"
_FULL = "if limit > 0 and L.numbers.int(group.active, 0) >= limit and not holds_slot then"
_LEFT = "redis.call('HSET', hash_key, 'active', group.active)\n    end\n    goes_on = true"
_ATTEMPT = "return L.hashes.add(key, 'attemptsMade', 1)\n"
_CHANGED = "if args[3] == '' or L.scheduler.stored(keys[2], name) ~= args[3] then"
_ALIVE = "return now - last < threshold\n"

_ACCEPTED = "if job.messages:match('^%d+ (.*)$') == L.lease.attempt(o.token, o.processed_on) then"
_IN_TURN = "if tonumber(args[8]) + i - 9 == count + 1 then"
_TAKEN = (
    "local elements = L.positions.split(L.positions.without(L.slices.remove(a, slice_id)), L.slices.MAX)\n"
    "  local only"
)
_LEASED = (
    "local held = redis.call('HGET', r.prefix .. 'job:' .. slice_id, 'gmo:elements')\n"
    "  local elements = L.positions.split(held or '', L.slices.MAX)\n  local only"
)
_BACK = "    redis.call('ZADD', a.key .. ':again', text(r.now), L.positions.join(elements))\n"
_ENDED = "a.completed, a.skipped = a.completed + #w.done,"
_KEEPS = "elseif is_anew or has_completed(a, state) then"
_ROOM = "if a.running >= a.max_running then return nil end"
_FORGOTTEN = "\n  L.rules.forget(ref, dependent)\n  local prefix"

DEFECTS: Final = (
    Defect("the outcome of a stale attempt is accepted", "staged", ((OWNS, "if v[1] ~= 'active' then"),),
           faults="pause_worker", size=replace(SIZE, pause=3, longs=0.5, seconds=30)),
    Defect("an outcome is accepted twice", "staged",
           ((OWNS, "if v[2] ~= o.token or v[3] ~= o.processed_on then"),), faults="cut_replies",
           size=replace(SIZE, around=0.1)),
    Defect("an outcome is accepted in any state", "staged", ((OWNS, "if false then"),)),
    Defect("leases are never extended", "staged", ((_KEPT, "kept[#kept + 1]"),)),
    Defect("jobs are taken from workers that are alive", "staged",
           ((_ALIVE, "return now - last < threshold / 100\n"),), size=WITHOUT_NODE),
    Defect("a stalled job is not put back", "staged", ((_REQUEUED, "\n"),)),
    Defect("a dependency counts twice", "staged", ((LAST, LAST.replace("', 1)", "', 2)")),)),
    Defect("a dependency counts again when it is reported again", "staged", ((_TOLD, _RETOLD),)),
    Defect("a portable dependency counts again when it is reported again", "portable",
           ((_ONCE, _AGAIN),)),
    Defect("an ordering key has room for all", "staged", ((_FULL, "if false then"),)),
    Defect("an ordering key is not released", "staged", ((_LEFT, "end\n    goes_on = true"),)),
    Defect("the end of a job from a list does not free its place", "staged", ((FREED, "\n  else\n"),),
           size=WITHOUT_NODE),
    Defect("an attempt counts twice", "staged", ((_ATTEMPT, _ATTEMPT.replace("1)", "2)")),)),
    Defect("an attempt does not count", "staged", ((_ATTEMPT, _ATTEMPT.replace("1)", "0)")),)),
    Defect("each completed node is counted twice", "staged", ((COUNTED, COUNTED.replace("d)", "d * 2)")),)),
    Defect("a retry runs completed nodes again", "staged",
           ((COUNTED, f"redis.call('SADD', key .. ':failed', unpack(list.refs))\n{COUNTED}"),)),
    Defect("what follows a node that runs again keeps its end", "staged",
           ((_FORGOTTEN, "\n  local prefix"),)),
    Defect("a request begins a generation each time", "staged",
           patched=((submission, "_of_request", _of_nobody),)),
    Defect("what has changed is carried over", "staged",
           patched=((plan, "reasons", _changed_nothing),)),
    Defect("what has completed is not carried over", "staged",
           patched=((plan, "reasons", _kept_nothing),)),
    Defect("a slot of a schedule is fired by each that reads it", "staged",
           ((_CHANGED, "if args[3] == '' then"),)),
    Defect("a result is left out", "staged",
           ((RESULT, f"if #found < 2 then {RESULT} end"),)),
    Defect("which messages count is not noted", "staged", ((_ACCEPTED, "if false then"),)),
    Defect("a message that is sent again is written again", "staged", ((_IN_TURN, "if true then"),),
           faults="cut_replies", size=replace(SIZE, around=0.1)),
    Defect("a check that does not pass completes", "staged",
           patched=((executor, "has_passed", _always),)),
    Defect("a worker keeps the place of a job that failed", "staged",
           patched=((JobRunner, "_free", _keep_place),)),
    Defect("the outcome of a slice of an array that was taken from its worker is accepted", "staged",
           ((_TAKEN, _LEASED),), faults="pause_worker", size=replace(WITH_ARRAYS, pause=3, seconds=30)),
    Defect("the elements of a lost slice of an array are not given back", "staged", ((_BACK, ""),),
           size=WITH_ARRAYS),
    Defect("the end of an element of an array counts twice", "staged",
           ((_ENDED, _ENDED.replace("#w.done", "2 * #w.done")),), size=WITH_ARRAYS),
    Defect("a retry runs completed elements of an array again", "staged",
           ((_KEEPS, "elseif true then"),), size=WITH_ARRAYS),
    Defect("more elements of an array run than may", "staged", ((_ROOM, ""),), size=WITH_ARRAYS),
    Defect("the children of a killed worker live on", "staged",
           patched=((Lifeline, "watch", _nothing),)),
    Defect("worker processes do not see the end of their parent", "staged",
           patched=((ParentLink, "_attend", _only_ready),), faults="kill_parent",
           size=replace(SIZE, pause=3, seconds=60)),
    Defect("functions begin while their slot moves", "portable",
           patched=((topology, "undivided", _same),), faults="move_keys", size=WITHOUT_NODE,
           at="cluster-moving"),
    Defect("what a Spark step publishes counts before it is accepted", "staged",
           patched=((publishing, "seal", _seal_and_count),), faults="kill_spark_worker", size=WITH_SPARK),
    Defect("what a Spark step has published never counts", "staged",
           patched=((Folder, "make", _makes_nothing),), faults="kill_spark_worker", size=WITH_SPARK),
    Defect("a bridge does not know what another has added", "staged",
           patched=((bridge, "_note_in", _no_note),), faults="kill_bridge", size=WITH_BRIDGE),
    Defect("a stopped bridge does not note what it has added", "staged",
           patched=((ChasquiBridge, "_leave", _notes_nothing),), faults="stop_bridge", size=WITH_BRIDGE),
    Defect("a run behind the bridge that has lost its job ends it", "staged",
           patched=((ending, "END", _STALE),), faults="pause_chasqui_worker", size=WITH_BRIDGE),
    Defect("jobs behind the bridge are not renewed", "staged",
           patched=((Renewals, "renew", _renews_nothing),), faults="kill_submitter", size=WITH_BRIDGE),
)  # fmt: skip

BY_NAME: Final = {defect.name: defect for defect in DEFECTS}
