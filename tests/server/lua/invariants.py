"""What holds after every call: each job in the place of its state, every counter as a scan counts it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests.server.lua.keyspace import Dump

Job = dict[str, str]
OVER = ("completed", "failed")
_READY = ({"stream"}, {"pending"}, {"lifo"}, {"priority"})
TAKEN_BACK = {"revoked", "lastActive"}
"""What is left for some minutes of the job of an element that its array has taken back from a worker."""
_PLACE = {
    "waiting": _READY,
    "delayed": ({"scheduled"},),
    "prioritized": ({"scheduled"},),
    "waiting-children": (set(),),
    "suspended": ({"suspended"},),
    "completed": ({"completed"},),
    "failed": ({"failed"},),
}


class Scan:
    """One queue as a full scan of the keyspace shows it."""

    def __init__(self, found: Dump, base: str) -> None:
        self.base = base
        self.keys = {
            key.removeprefix(f"{base}:"): v for key, v in found.items() if key.startswith(f"{base}:")
        }
        names = [key.removeprefix("job:") for key in self.keys if key.startswith("job:")]
        self.jobs: dict[str, Job] = {name: self.keys[f"job:{name}"] for name in names if ":" not in name}

    def problems(self) -> Iterator[str]:
        """Everything about this queue alone that is not as it must be."""
        yield from self._misplaced()
        yield from self._miscounted()
        for key, group in self._under("group:"):
            yield from self._group_problems(key, group)

    def dependency_problems(self, deps: Mapping[str, set[str]], completed: set[str]) -> Iterator[str]:
        """Deps sets keep every dependency; the markers and the counter of the parent show which are done."""
        for parent_id, job in self.jobs.items():
            known = deps.get(parent_id, set())
            done = known & completed
            marked = {field.removeprefix("depdone:") for field in job if field.startswith("depdone:")}
            if set(self.keys.get(f"deps:{parent_id}", set())) != known:
                yield f"deps:{parent_id} is {self.keys.get(f'deps:{parent_id}')}, not {known}"
            if marked != done:
                yield f"job {parent_id} has the dependencies {marked} marked as done, not {done}"
            if int(job.get("depsCompleted", 0)) != len(done):
                yield f"job {parent_id} counts {job.get('depsCompleted')} dependencies, not {len(done)}"
            if job.get("state") == "waiting-children" and known and known == done:
                yield f"job {parent_id} waits for children that are all done"

    def active_from_lists(self) -> set[str]:
        """Active jobs that no stream entry stands for."""
        return {
            job_id
            for job_id, job in self.jobs.items()
            if job.get("state") == "active"
            and job.get("activeSource") != "stream"
            and (job.get("lifo") == "1" or int(job.get("priority", 0)) > 0)
        }

    def _under(self, start: str) -> list[tuple[str, Any]]:
        return [(key.removeprefix(start), value) for key, value in self.keys.items() if key.startswith(start)]

    def _places(self) -> dict[str, list[str]]:
        places: dict[str, list[str]] = defaultdict(list)
        stream = self.keys["stream"]
        entries = [entry[1] for entry in stream["entries"]]
        for job_id in stream["pending"]["workers"]:
            places[job_id].append("pending")
            entries.remove(job_id)
        held: list[tuple[str, Iterable[str]]] = [("stream", entries)]
        held += [(name, self.keys.get(name, ())) for name in ("scheduled", "suspended", *OVER)]
        held += [(f"groupq:{key}", members) for key, members in self._under("groupq:")]
        for place, job_ids in held:
            for job_id in job_ids:
                places[job_id].append(place)
        for place in ("lifo", "priority"):
            for job_id in self.keys.get(place, ()):
                # Lists keep what was revoked until it is popped; then it is dropped.
                if self.jobs.get(job_id, {}).get("state", "failed") != "failed":
                    places[job_id].append(place)
        return places

    def _misplaced(self) -> Iterator[str]:
        places, from_lists = self._places(), self.active_from_lists()
        for job_id in places.keys() - self.jobs.keys():
            # The entry of a removed job that was running stays pending until a sweep finds it.
            if places[job_id] != ["pending"]:
                yield f"job {job_id} is gone but in {places[job_id]}"
        for job_id, job in self.jobs.items():
            state, found = job.get("state", ""), places.get(job_id, [])
            if job.keys() <= TAKEN_BACK:
                continue
            if state == "active":
                allowed: Iterable[set[str]] = [set() if job_id in from_lists else {"pending"}]
            elif state == "group-waiting":
                allowed = [{f"groupq:{job['groupKey']}"}]
            else:
                allowed = _PLACE.get(state, ())
            if len(found) > 1 or set(found) not in allowed:
                yield f"job {job_id} is {state} and in {found}"

    def _miscounted(self) -> Iterator[str]:
        counted, expected = int(self.keys.get("list-active", 0)), len(self.active_from_lists())
        if counted != expected:
            yield f"list-active is {counted}, but {expected} list jobs are active"
        emitted = [event[1] for event in self.keys.get("events", [])]
        ends = {"completed": ("completed",), "failed": ("failed", "expired")}
        for kind, names in ends.items():
            metrics = self.keys.get(f"metrics:{kind}", {})
            total = sum(int(value) for field, value in metrics.items() if field.endswith(":c"))
            if total != sum(emitted.count(name) for name in names):
                yield f"metrics:{kind} counts {total}, the events {emitted}"

    def _group_problems(self, key: str, group: Job) -> Iterator[str]:
        members = {i: job for i, job in self.jobs.items() if job.get("groupKey") == key}
        next_seq, active = int(group.get("nextSeq", 1)), int(group.get("active", 0))
        holding = [
            job_id
            for job_id, job in members.items()
            if job["state"] not in OVER and int(job["orderingSeq"]) < next_seq and job.get("groupSlot") != "0"
        ]
        running = {job_id for job_id, job in members.items() if job["state"] == "active"}
        if active != len(holding) or not running <= set(holding):
            yield f"group {key} counts {active} slots; {holding} hold one, {running} are active"
        last = int(self.keys.get("ordering", {}).get(key, 0))
        if members and max(int(job["orderingSeq"]) for job in members.values()) > last:
            yield f"group {key} has issued {last} numbers, but there are higher ones"
        if self.keys.get(f"groupq:{key}") and not self._can_go_on(key, group, members, active, next_seq):
            yield f"group {key} has parked jobs and nothing will ever release them"

    def _can_go_on(self, key: str, group: Job, members: dict[str, Job], active: int, next_seq: int) -> bool:
        while f"skip:{next_seq}" in group:
            next_seq += 1
        heads = [job["state"] for job in members.values() if int(job["orderingSeq"]) == next_seq]
        is_coming = any(state not in {*OVER, "group-waiting"} for state in heads)
        return active > 0 or is_coming or key in self.keys.get("ratelimited", {})
