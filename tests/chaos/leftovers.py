"""What a server should not hold when nothing runs any more."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from glidemq_orchestrate.chasquimq import chores, handed_over, worker
from glidemq_orchestrate.wire.lifetimes import life_of
from tests.chaos.bridged_flows import REMOTE_QUEUE

REST: Final = re.compile(r"gmo:(todo|staging|portable|letters|arrays|list-held|array:.*:(?:slices|jobs))\Z")
"""Lists of work to do: empty when there is none."""
SLICE: Final = re.compile(r"job:.*\{\d+\}\Z")

GROWTH: Final = re.compile(r"gmo:grow:(.*?)(:held|:edges|:meta)?\Z")
HOME: Final = re.compile(r"glide:gmo:(homes|home:\{.+\})\Z", re.DOTALL)

REMOTE: Final = f"{{chasqui:{REMOTE_QUEUE}}}:"
BOUNDED: Final = frozenset({"dlq", "events"})
"""Streams of ChasquiMQ that are trimmed."""
REMOTE_SECONDS: Final = (
    (re.compile(r"(promoter|scheduler):lock\Z"), chores.LOCK_SECONDS),
    (re.compile("result:"), int(worker.RESULT_TTL.total_seconds())),
    (re.compile("gmo:handed-over:"), handed_over.MARK_SECONDS),
)
"""How long each other key of it lives at most."""


def late_ends(client: Any) -> int:
    """How many nodes that their flow has failed a Node worker has completed since; a supervisor undoes it."""
    keys = list(client.scan_iter(match="*:job:*", count=1_000, _type="hash"))
    pipeline = client.pipeline(transaction=False)
    for key in keys:
        pipeline.hmget(key, "state", "gmo:end")
    return sum(found == ["completed", "failed"] for found in pipeline.execute())


def open_work(client: Any) -> bool:
    """Whether a supervisor still has work, such as a flow that was submitted again after its end."""
    keys = client.scan_iter(match="glide:{*}:gmo:*", count=1_000)
    return any(REST.match(key.partition("}:")[2]) and client.ttl(key) == -1 for key in keys)


def leftovers(client: Any, queues: Sequence[str]) -> Iterator[str]:
    """What is left in queues that have nothing to do, and keys that are not documented, in sentences."""
    keys = {key for key in client.scan_iter(match="*", count=1_000) if not HOME.match(key)}
    for name in queues:
        base = f"glide:{{{name}}}:"
        own = {key for key in keys if key.startswith(base)}
        keys -= own
        growing, stream = f"{base}gmo:growing", f"{base}stream"
        due = {member.split("\n")[0] for member in client.zrange(growing, 0, -1)} if growing in own else set()
        for key in own:
            yield from _problems(client, key, key.removeprefix(base), due)
        if stream in own and (pending := client.xpending(stream, "workers")["pending"]):
            yield f"{stream} has {pending} pending entries"
    remote = {key for key in keys if key.startswith(REMOTE)}
    for key in remote:
        yield from _remote_problems(client, key, key.removeprefix(REMOTE))
    yield from (f"{key} is not documented" for key in keys - remote)


def _remote_problems(client: Any, key: str, name: str) -> Iterator[str]:
    """The same of a key of the queue behind the bridge."""
    longest = next((seconds for pattern, seconds in REMOTE_SECONDS if pattern.match(name)), None)
    if name in ("stream", "delayed"):
        if left := client.xlen(key) if name == "stream" else client.zcard(key):
            yield f"{key} has {left} entries"
    elif longest is not None:
        if (ttl := client.ttl(key)) == -1 or ttl > longest:
            yield f"{key} lives for {ttl} s, longer than {longest} s"
    elif name not in BOUNDED:
        yield f"{key} is not documented"


def _problems(client: Any, key: str, name: str, due: set[str]) -> Iterator[str]:
    if name == "list-active" and int(client.get(key) or 0):
        yield f"{key} counts {client.get(key)} active jobs"
    elif name.startswith("group:") and int(client.hget(key, "active") or 0):
        yield f"{key} counts {client.hget(key, 'active')} places"
    elif name.startswith("groupq:") and client.zcard(key):
        yield f"{key} holds {client.zcard(key)} parked jobs"
    elif SLICE.match(name):
        yield f"{key} is a slice of an array that nobody runs"
    elif name.startswith("gmo:owned:"):
        yield f"{key} names flows that have ended"
    elif name.startswith("gmo:messages:") and client.ttl(key) == -1:
        yield f"{key} does not expire"
    elif _is_left(name, due) and client.ttl(key) == -1:
        yield f"{key} is left"
    elif life_of(key) is None:
        yield f"{key} is not documented"


def _is_left(name: str, due: set[str]) -> bool:
    """Whether a key should be gone by now; a growth that is due is swept later."""
    growth = GROWTH.match(name)
    return growth[1] not in due if growth else bool(REST.match(name))
