"""Random calls on two queues under a clock of their own; every invariant is checked after every call.

The machine does what a worker of glide-mq does around the calls. ``GLIDEMQ_TEST_PROFILE=long`` runs many more
examples, each from another seed; otherwise the seed is fixed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from glidemq_orchestrate.jobs.states import ABSENT
from tests.profile import IS_LONG
from tests.server.life_cycle import reached
from tests.server.lua.invariants import Scan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.server.lua.conftest import Queue

F = TypeVar("F", bound="Callable[..., None]")
T = 1700000000000
_QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
PROFILES = {
    "short": settings(
        max_examples=20, stateful_step_count=40, deadline=None, derandomize=True, database=None,
        suppress_health_check=_QUIET, phases=[Phase.generate, Phase.shrink],
    ),
    "long": settings(
        max_examples=3000, stateful_step_count=60, deadline=None, database=None,
        suppress_health_check=_QUIET, phases=[Phase.generate, Phase.shrink],
    ),
}  # fmt: skip

WHICH = st.sampled_from([0, 0, 0, 1])
PICK = st.integers(0, 30)
DELAY = st.sampled_from([0, 0, 50, 5000])
ATTEMPTS = st.sampled_from([0, 1, 3])
GROUP = st.fixed_dictionaries(
    {"group": st.sampled_from(["g", "h"]), "concurrency": st.integers(1, 2)},
    optional={
        "rate": st.just({"rate_max": 1, "rate_duration": 1000}),
        "bucket": st.fixed_dictionaries(
            {"capacity": st.sampled_from([1000, 2000]), "refill": st.sampled_from([0, 1000])}
        ),
        "cost": st.just(1500),
    },
)
JOB = st.fixed_dictionaries(
    {"delay": DELAY},
    optional={
        "priority": st.integers(1, 3), "lifo": st.just(1), "attempts": ATTEMPTS, "ttl": st.just(100),
        "within": GROUP,
    },
)  # fmt: skip


def _flat(job: dict[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in job.items() if name != "within"}
    group: dict[str, Any] = dict(job.get("within", {}))
    rate: dict[str, Any] = group.pop("rate", {})
    bucket: dict[str, Any] = group.pop("bucket", {})
    return fields | rate | bucket | group


def _options(job: dict[str, Any]) -> str:
    flat = _flat(job)
    opts: dict[str, Any] = {name: flat[name] for name in ("ttl", "lifo") if name in flat}
    if "group" in flat:
        ordering = {"key": flat["group"], "concurrency": flat["concurrency"]}
        if "rate_max" in flat:
            ordering["rateLimit"] = {"max": 1, "duration": 1000}
        if "capacity" in flat:
            ordering["tokenBucket"] = {
                "capacity": flat["capacity"] / 1000,
                "refillRate": flat["refill"] / 1000,
            }
        opts |= {"ordering": ordering, "cost": flat.get("cost", 0) / 1000}
    return json.dumps(opts)


def when(*states: str) -> Callable[[F], F]:
    """A rule that needs a job in one of these states, so that few draws come to nothing."""

    def decorate(function: F) -> F:
        return precondition(
            lambda self: any(job["state"] in states for scan in self.scans for job in scan.jobs.values())
        )(function)

    return decorate


class Machine(RuleBasedStateMachine):
    """Two queues, one clock, and the entries that the workers hold."""

    def __init__(self, first: Queue, second: Queue) -> None:
        super().__init__()
        self.queues = (first, second)
        self.now = T
        self.held: dict[tuple[int, str], str] = {}
        self.deps: tuple[dict[str, set[str]], ...] = ({}, {})
        self.completed: set[str] = set()
        self.scans: tuple[Scan, ...] = ()

    @initialize()
    def empty(self) -> None:
        first = self.queues[0]
        first.valkey.flushall()
        for queue in self.queues:
            first.valkey.xgroup_create(queue.key("stream"), "workers", "0", mkstream=True)

    # Adding

    @rule(which=WHICH, job=JOB)
    def add(self, which: int, job: dict[str, Any]) -> None:
        self.queues[which].add(now=self.now, **_flat(job))

    @rule(which=WHICH, job=JOB, dedup_id=st.sampled_from("de"), mode=st.sampled_from(["simple", "debounce"]))
    def dedup(self, which: int, job: dict[str, Any], dedup_id: str, mode: str) -> None:
        self.queues[which].dedup(dedup_id, mode, now=self.now, **_flat(job))

    @rule(which=WHICH, parent=JOB, children=st.lists(st.tuples(WHICH, JOB), min_size=1, max_size=3))
    def flow(self, which: int, parent: dict[str, Any], children: list[tuple[int, dict[str, Any]]]) -> None:
        described = [
            {"queue": self.queues[where], "opts": _options(job), **self._plain(job)}
            for where, job in children
        ]
        reply = self.queues[which].flow(
            {"opts": _options(parent), **self._plain(parent)}, described, now=self.now
        )
        if reply.startswith("ERR:"):
            return
        parent_id, *child_ids = json.loads(reply)
        members = {
            f"{self.queues[where].base}:{child}"
            for (where, _), child in zip(children, child_ids, strict=True)
        }
        self.deps[which][parent_id] = members

    @when("waiting-children")
    @rule(child=st.tuples(WHICH, PICK), parent=st.tuples(WHICH, PICK))
    def register_parent(self, child: tuple[int, int], parent: tuple[int, int]) -> None:
        child_id = self._pick(*child)
        parent_id = self._pick(*parent, "waiting-children")
        if child_id and parent_id and (child[0], child_id) != (parent[0], parent_id):
            queue, home = self.queues[child[0]], self.queues[parent[0]]
            assert queue.register_parent(child_id, parent_id, home) in {"ok", "already_completed"}
            self.deps[parent[0]].setdefault(parent_id, set()).add(f"{queue.base}:{child_id}")

    # Running

    @rule(which=WHICH)
    def take(self, which: int) -> None:
        """Fetch the next job as a worker does, lists first, and activate it."""
        queue = self.queues[which]
        popped = queue.call("popLists", queue.keys("priority", "lifo"), 1)
        if popped:
            queue.valkey.incr(queue.key("list-active"))
            self._activate(which, popped[0], "")
            return
        reply = queue.valkey.xreadgroup("workers", "c", {queue.key("stream"): ">"}, count=1)
        if reply:
            entry_id, fields = reply[0][1][0]
            self._activate(which, fields["jobId"], entry_id)

    @rule(which=WHICH)
    def take_and_die(self, which: int) -> None:
        """A worker that reads an entry and ends before it activates the job."""
        queue = self.queues[which]
        queue.valkey.xreadgroup("workers", "c", {queue.key("stream"): ">"}, count=1)

    @when("active")
    @rule(which=WHICH, pick=PICK, fetch=st.booleans())
    def complete(self, which: int, pick: int, fetch: bool) -> None:  # noqa: FBT001  drawn
        if not (job_id := self._pick(which, pick, "active")):
            return
        queue, entry = self.queues[which], self.held.pop((which, job_id))
        more, others = self._relations(which, job_id)
        self.completed.add(f"{queue.base}:{job_id}")
        if fetch:
            revoked = self._revoked_in_lists(which)
            reply = queue.complete_and_fetch(job_id, entry, self.now, **more)
            self._remove_dropped(queue, revoked)
            if reply[0] == "NEXT_REVOKED":
                queue.fail(reply[2], reply[3], self.now)
            elif reply[0] == "NEXT_HASH":
                self.held[which, reply[2]] = reply[3]
        else:
            queue.complete(job_id, entry, self.now, **more)
        for home, parent_id in others:
            home.complete_child(parent_id, f"{queue.base}:{job_id}")

    @when("active")
    @rule(which=WHICH, pick=PICK, attempts=ATTEMPTS, backoff=DELAY)
    def fail(self, which: int, pick: int, attempts: int, backoff: int) -> None:
        if job_id := self._pick(which, pick, "active"):
            entry = self.held.pop((which, job_id))
            self.queues[which].fail(job_id, entry, self.now, attempts=attempts, backoff=backoff)

    @when("active")
    @rule(
        which=WHICH, pick=PICK, how=st.sampled_from(["suspend", "postpone", "children", "defer"]), delay=DELAY
    )
    def put_aside(self, which: int, pick: int, how: str, delay: int) -> None:
        if not (job_id := self._pick(which, pick, "active")):
            return
        queue, entry = self.queues[which], self.held.pop((which, job_id))
        if how == "suspend":
            queue.suspend(job_id, entry, self.now, delay)
        elif how == "postpone":
            queue.postpone(job_id, entry, self.now, self.now + delay)
        elif how == "children":
            queue.wait_for_children(job_id, entry, self.now)
        else:
            queue.defer(job_id, entry)

    @when("suspended")
    @rule(which=WHICH, pick=PICK)
    def signal(self, which: int, pick: int) -> None:
        if job_id := self._pick(which, pick, "suspended"):
            assert self.queues[which].signal(job_id) == "ok"

    @when("active")
    @rule(
        which=WHICH, pick=PICK, current=st.sampled_from(["requeue", "fail"]),
        position=st.sampled_from(["front", "back"]), extend=st.sampled_from(["max", "replace"]),
    )  # fmt: skip
    def limit_group(self, which: int, pick: int, **how: str) -> None:
        job_id = self._pick(which, pick, "active")
        if job_id and "groupKey" in self.scans[which].jobs[job_id]:
            self.queues[which].limit_group(job_id, self.held.pop((which, job_id)), self.now, 700, **how)

    @rule(which=WHICH, group=st.sampled_from("gh"), extend=st.sampled_from(["max", "replace"]))
    def limit_group_from_outside(self, which: int, group: str, extend: str) -> None:
        queue = self.queues[which]
        queue.call(
            "rateLimitGroupExternal", queue.keys("ratelimited", "events"), group, 300, self.now, extend
        )

    # Time

    @rule(elapsed=st.sampled_from([1, 60, 1000, 6000]))
    def tick(self, elapsed: int) -> None:
        self.now += elapsed
        for queue in self.queues:
            queue.promote(self.now)
            queue.promote_groups(self.now)
            queue.sweep_suspended(self.now)

    @when("active")
    @rule(which=WHICH, elapsed=st.sampled_from([10, 30_000]))
    def sweep_stalled(self, which: int, elapsed: int) -> None:
        self.now += elapsed
        self.queues[which].reclaim(self.now, lock=1000)
        self.queues[which].reclaim_lists(self.now, 1000)

    @when("active")
    @rule(which=WHICH, pick=PICK)
    def heartbeat(self, which: int, pick: int) -> None:
        if job_id := self._pick(which, pick, "active"):
            self.queues[which].valkey.hset(self.queues[which].key(f"job:{job_id}"), "lastActive", self.now)

    # Managing

    @rule(which=WHICH, pick=PICK)
    def revoke(self, which: int, pick: int) -> None:
        if job_id := self._pick(which, pick):
            self.queues[which].revoke(job_id, self.now)

    @rule(which=WHICH, name=st.sampled_from(["lifo", "priority"]))
    def revoke_in_list(self, which: int, name: str) -> None:
        for job_id in self.scans[which].keys.get(name, [])[:1]:
            self.queues[which].revoke(job_id, self.now)

    @when("waiting", "delayed", "prioritized")
    @rule(which=WHICH, pick=PICK, priority=st.integers(0, 3))
    def change_priority(self, which: int, pick: int, priority: int) -> None:
        if job_id := self._pick(which, pick):
            self.queues[which].change_priority(job_id, priority)

    @when("waiting", "delayed", "prioritized")
    @rule(which=WHICH, pick=PICK, delay=DELAY)
    def change_delay(self, which: int, pick: int, delay: int) -> None:
        if job_id := self._pick(which, pick):
            self.queues[which].change_delay(job_id, delay, self.now)

    @when("delayed")
    @rule(which=WHICH, pick=PICK)
    def promote_job(self, which: int, pick: int) -> None:
        if job_id := self._pick(which, pick, "delayed"):
            assert self.queues[which].promote_job(job_id) == "ok"

    @rule(which=WHICH, pick=PICK)
    def remove(self, which: int, pick: int) -> None:
        if job_id := self._pick(which, pick):
            assert self.queues[which].remove(job_id) == 1
            self.deps[which].pop(job_id, None)

    @when("failed")
    @rule(which=WHICH, count=st.integers(0, 2))
    def retry_jobs(self, which: int, count: int) -> None:
        self.queues[which].retry_jobs(count, self.now)

    @rule(which=WHICH, verb=st.sampled_from(["pause", "resume"]))
    def pause(self, which: int, verb: str) -> None:
        self.queues[which].call(verb, self.queues[which].keys("meta", "events"))

    @rule(which=WHICH, scheduled=st.sampled_from("01"))
    def drain(self, which: int, scheduled: str) -> None:
        self.queues[which].drain(scheduled)

    @when("completed", "failed")
    @rule(which=WHICH, kind=st.sampled_from(["completed", "failed"]), limit=st.integers(1, 3))
    def clean(self, which: int, kind: str, limit: int) -> None:
        self.queues[which].clean(kind, self.now, limit)

    @invariant()
    def everything_adds_up(self) -> None:
        found = self.queues[0].dump()
        before = self._states()
        self.scans = tuple(Scan(found, queue.base) for queue in self.queues)
        problems = list(self._life_cycle_problems(before))
        for which, (queue, scan) in enumerate(zip(self.queues, self.scans, strict=True)):
            problems += scan.problems()
            problems += scan.dependency_problems(self.deps[which], self.completed)
            problems += self._check_held(which, scan)
            drift = queue.call("healListActive", queue.keys("id"))
            assert drift == 0, f"the repair of {queue.base} finds a drift of {drift}"
        assert not problems, "\n".join(problems)

    def _states(self) -> dict[str, str]:
        return {
            f"{scan.base}:{job_id}": job.get("state", "")
            for scan in self.scans
            for job_id, job in scan.jobs.items()
        }

    def _life_cycle_problems(self, before: dict[str, str]) -> Iterator[str]:
        """Steps since the last look that no call of this rule may have done."""
        calls = frozenset(self.queues[0].called | self.queues[1].called)
        after = self._states()
        for key in {*before, *after}:
            source, target = before.get(key, ABSENT), after.get(key, ABSENT)
            if target not in reached(calls, source):
                yield f"{sorted(calls)} took {key} from {source} to {target}: the table does not have it"
        for queue in self.queues:
            queue.called.clear()

    def _revoked_in_lists(self, which: int) -> set[str]:
        scan = self.scans[which]
        listed = {job_id for name in ("lifo", "priority") for job_id in scan.keys.get(name, [])}
        return {
            i
            for i in listed
            if i in scan.jobs and scan.jobs[i].get("revoked") and scan.jobs[i]["state"] == "waiting"
        }

    @staticmethod
    def _remove_dropped(queue: Queue, revoked: set[str]) -> None:
        """Remove jobs that fetching has dropped.

        A job that was revoked while it ran, and was then postponed, gets into its list again.
        ``moveToActive`` reports it as revoked; ``completeAndFetchNext`` drops it silently, by its contract.
        """
        left = {i for name in ("lifo", "priority") for i in queue.valkey.lrange(queue.key(name), 0, -1)}
        for job_id in revoked - left:
            assert queue.remove(job_id) == 1

    def _check_held(self, which: int, scan: Scan) -> list[str]:
        active = {job_id for job_id, job in scan.jobs.items() if job["state"] == "active"}
        self.held = {key: v for key, v in self.held.items() if key[0] != which or key[1] in active}
        return [
            f"job {job_id} is active, but nobody runs it"
            for job_id in active
            if (which, job_id) not in self.held
        ]

    def _activate(self, which: int, job_id: str, entry_id: str) -> None:
        queue = self.queues[which]
        reply = queue.activate(job_id, entry_id, self.now)
        if isinstance(reply, list):
            self.held[which, job_id] = entry_id
        elif not reply:
            queue.complete(job_id, entry_id, self.now)
        elif reply == "REVOKED":
            queue.fail(job_id, entry_id, self.now)
        elif not entry_id:
            queue.valkey.decr(queue.key("list-active"))

    def _pick(self, which: int, number: int, state: str | None = None) -> str | None:
        jobs = self.scans[which].jobs
        found = sorted(job_id for job_id, job in jobs.items() if state in {None, job["state"]})
        return found[number % len(found)] if found else None

    def _relations(self, which: int, job_id: str) -> tuple[dict[str, Any], list[tuple[Queue, str]]]:
        """The parent to notify in the same call, and those of another queue, which are notified later."""
        scan, queue = self.scans[which], self.queues[which]
        more: dict[str, Any] = {}
        if parent_id := scan.jobs[job_id].get("parentId"):
            home = next(x for x in self.queues if x.name == scan.jobs[job_id]["parentQueue"])
            more = {"parent": parent_id, "home": home, "member": f"{queue.base}:{job_id}"}
        others = [member.rsplit(":", 1) for member in scan.keys.get(f"parents:{job_id}", ())]
        homes = {x.base: x for x in self.queues}
        return more, [(homes[base], parent_id) for base, parent_id in others if base != queue.base]

    @staticmethod
    def _plain(job: dict[str, Any]) -> dict[str, Any]:
        return {name: job[name] for name in ("delay", "priority", "attempts") if name in job}


@pytest.mark.standalone
@pytest.mark.every_server
def test_no_sequence_of_calls_loses_or_doubles_a_job(q: Queue) -> None:
    profile = PROFILES["long" if IS_LONG else "short"]
    q.life_cycle = None  # the machine looks by itself, once for each rule
    make: Any = lambda: Machine(q, type(q)(q.valkey, "other"))  # noqa: E731  the two queues are bound here
    run_state_machine_as_test(make, settings=profile)
