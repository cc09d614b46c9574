"""The elements of an array as users read them: counts, states, results and failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from glidemq_orchestrate.errors import ConfigurationError, FlowNotFound, NodeNotFound, ResultRemoved
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.home import home_of
from glidemq_orchestrate.flows.nodes import named_nodes, split_name
from glidemq_orchestrate.flows.status import NodeStatus
from glidemq_orchestrate.foundation.values import whole
from glidemq_orchestrate.jobs import job_hash
from glidemq_orchestrate.jobs.attempt import worker_of
from glidemq_orchestrate.jobs.job_hash import JobField
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, command, parts
from glidemq_orchestrate.wire.codec import decode, readable
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import number, parsed_object

PAGE: Final = 1_000
_BITS: Final = 8


@dataclass(frozen=True, slots=True)
class ArrayCounts:
    """How many elements of an array are in which state.

    Attributes:
        elements: All of them.
        running: Those that run now, on any worker.
        waiting: All others that have not ended: also those that wait for their next attempt.
    """

    elements: int
    completed: int
    failed: int
    skipped: int
    running: int

    @property
    def waiting(self) -> int:
        """See above."""
        return self.elements - self.completed - self.failed - self.skipped - self.running


@dataclass(frozen=True, slots=True)
class FailedElement:
    """An element that has failed for good.

    Attributes:
        index: Its position in the array.
        attempts: How many attempts it had.
    """

    index: int
    reason: str
    attempts: int


class Array(NamedTuple):
    """An array of a flow, and where it is stored."""

    node: NodeStatus
    queue: QueueKeys
    definition: Mapping[str, Any]
    appended: int

    @property
    def given(self) -> int:
        """How many elements it had at first."""
        return int(self.definition["size"])

    @property
    def size(self) -> int:
        """How many elements it has."""
        return self.given + self.appended

    @property
    def key(self) -> str:
        """The hash with its counts."""
        return self.queue.array(self.node.job_id)


def array_of(ref: FlowRef, name: str) -> Op[Array]:
    """The array node of this name.

    Raises:
        NodeNotFound: The flow has no node of this name.
        ConfigurationError: The node is no array.
        Superseded, FlowNotFound, FlowExpired: The flow can no longer be read.
    """
    (node,) = yield from named_nodes(ref, [name])
    queue = QueueKeys(ref.home.prefix, node.queue)
    calls: list[Call[Any]] = [
        job_hash.get(queue, node.job_id, "gmo:array", parsed_object),
        command("HGET", queue.array(node.job_id), "appended", decode=number),
    ]
    definition, appended = yield from ask_all(calls)
    if "size" not in definition:
        raise ConfigurationError(f"node {name} of flow {ref.public_id} is not an array")
    return Array(node, queue, definition, appended)


COUNTED: Final = ("elements", "completed", "failed", "skipped")
"""What the progress of an array counts."""
_COUNTED: Final = ("completed", "failed", "skipped", "running")
_OF_JOB: Final[tuple[JobField, ...]] = ("state", "attemptsMade", "gmo:token")


def read_counts(array: Array) -> Op[ArrayCounts]:
    """The counts of an array."""
    counts = yield from ask(command("HMGET", array.key, *_COUNTED, decode=_numbers))
    completed, failed, skipped, running = counts
    jobs = yield from _element_jobs(array)
    states = yield from ask_all([job_hash.get_some(array.queue, job_id, _OF_JOB, list) for job_id in jobs])
    running += sum(state == JobState.ACTIVE for state, _, _ in states)
    return ArrayCounts(array.size, completed, failed, skipped, running)


def _element_jobs(array: Array) -> Op[list[str]]:
    """The ids of the jobs that elements are now."""
    if not array.definition.get("jobs"):
        return []
    return sorted((yield from ask(command("SMEMBERS", f"{array.key}:jobs", decode=list))))


def _numbers(reply: Sequence[str | None]) -> list[int]:
    return [number(text) for text in reply]


def read_results(array: Array, start: int, stop: int | None) -> Op[dict[int, Any]]:
    """The results of the completed elements from ``start`` to before ``stop``, by position.

    Raises:
        ConfigurationError: A position is not valid.
        ResultRemoved: The results were removed.
    """
    texts = yield from read_texts(array, start, stop)
    return {at: decode(text, where=f"result of element {at}") for at, text in texts.items()}


def read_texts(array: Array, start: int, stop: int | None) -> Op[dict[int, str | None]]:
    """The same as JSON; None for the result ``None``."""
    whole("start", start, 0, error=ConfigurationError)
    if stop is not None:
        whole("stop", stop, start, error=ConfigurationError)
    if array.node.removed and array.node.state is JobState.COMPLETED:
        raise ResultRemoved(f"array {array.node.name}", [array.node.name])
    last = array.size if stop is None else min(stop, array.size)
    found: dict[int, str | None] = {}
    pages = [range(at, min(at + PAGE, last)) for at in range(start - start % PAGE, last, PAGE)]
    for trip in parts(pages, _PAGES_PER_TRIP):
        calls = [call for page in trip for call in _page(array, page)]
        replies = yield from ask_all(calls)
        for page, done, texts in zip(trip, replies[::2], replies[1::2], strict=True):
            found |= {
                at: text
                for at, text in zip(page, texts, strict=True)
                if at >= start and _is_set(done, at - page.start)
            }
    return found


def results_in_flow(
    prefix: str, stored_flow: str, name: str, start: int, stop: int | None
) -> Op[dict[int, Any]]:
    """``read_results`` of an array, for a node of the same flow."""
    home = yield from ask(home_of(prefix, stored_flow))
    if home is None:
        raise FlowNotFound(f"flow {stored_flow} no longer exists")
    array = yield from array_of(FlowRef(home, stored_flow), name)
    return (yield from read_results(array, start, stop))


_PAGES_PER_TRIP: Final = 20


def _page(array: Array, page: range) -> list[Call[Any]]:
    """The calls for the bits of completed elements, and for their results."""
    first, last = page.start // _BITS, (page.stop - 1) // _BITS
    return [
        command("GETRANGE", f"{array.key}:done", first, last, decode=_bytes),
        command("HMGET", f"{array.key}:results", *page, decode=list),
    ]


def _bytes(reply: str) -> bytes:
    return reply.encode(errors="surrogateescape")


def _is_set(bits: bytes, at: int) -> bool:
    byte, bit = divmod(at, _BITS)
    return byte < len(bits) and bool(bits[byte] >> (_BITS - 1 - bit) & 1)


def read_failed(array: Array, limit: int) -> Op[list[FailedElement]]:
    """Failed elements, at most about ``limit``, by position."""
    whole("limit", limit, 1, error=ConfigurationError)
    run = yield from ask(command("HGET", array.key, "run", decode=number))
    reasons: dict[int, str] = {}
    cursor = "0"
    while True:
        key = f"{array.key}:failed:{run}"
        cursor, page = yield from ask(command("HSCAN", key, cursor, "COUNT", PAGE, decode=tuple))
        reasons |= {number(at): readable(why) for at, why in zip(page[::2], page[1::2], strict=True)}
        if cursor == "0" or len(reasons) >= limit:
            break
    known = sorted(reasons)[:limit]
    tried: list[int] = []
    for part in parts(known, PAGE):
        tried += yield from ask(command("HMGET", f"{array.key}:attempts", *part, decode=_numbers))
    return [FailedElement(at, reasons[at], max(count, 1)) for at, count in zip(known, tried, strict=True)]


def read_item(array: Array, index: int) -> Op[Any]:
    """The item of an element, as its handler gets it.

    Raises:
        NodeNotFound: The array has no such element.
        ResultRemoved: The items were removed.
    """
    whole("index", index, 0, error=ConfigurationError)
    if index >= array.size:
        raise NodeNotFound(f"array {array.node.name} has {array.size:,} elements, numbered from 0")
    if not (per := int(array.definition["per"])):
        return int(array.definition["start"]) + index * int(array.definition["step"])
    is_given = index < array.given
    where = (f"{array.key}:items", index // per) if is_given else (f"{array.key}:appended", index)
    chunk = yield from ask(command("HGET", *where, decode=lambda text: text))
    if chunk is None:
        raise ResultRemoved(f"array {array.node.name}", [array.node.name])
    return decode(chunk.split("\n")[index % per] if is_given else chunk, where=f"item {index}")


def ended_elements(array: Array, indexes: Sequence[int], token: str) -> Op[set[int]]:
    """Which of these elements have ended, or were changed by the request with this token."""
    run = yield from ask(command("HGET", array.key, "run", decode=number))
    found: set[int] = set()
    for part in parts(indexes):
        calls = [call for index in part for call in _ends(array, index, run)]
        replies = yield from ask_all(calls)
        for at, index in enumerate(part):
            *ends, changed = replies[4 * at : 4 * at + 4]
            if any(ends) or changed == token:
                found.add(index)
    return found


def _ends(array: Array, index: int, run: int) -> list[Call[Any]]:
    """Whether an element has ended in each way, and the token of the last request that changed it."""
    return [
        command("GETBIT", f"{array.key}:done", index, decode=int),
        command("SISMEMBER", f"{array.key}:skipped", index, decode=int),
        command("HEXISTS", f"{array.key}:failed:{run}", index, decode=int),
        command("HGET", f"{array.key}:changed", index, decode=lambda reply: reply),
    ]


_HELD: Final[tuple[JobField, ...]] = ("gmo:elements", "gmo:token", "gmo:ended")


def element_status(ref: FlowRef, name: str) -> Op[NodeStatus]:
    """The status of an element, ``clean[4711]``, in the form of a node.

    Raises:
        NodeNotFound: The flow has no such array, or the array has no such element.
    """
    split = split_name(name)
    if split is None:
        raise NodeNotFound(f"flow {ref.public_id} has no node {name}")
    array = yield from array_of(ref, split[0])
    index = split[1]
    if index >= array.size:
        raise NodeNotFound(
            f"array {split[0]} of flow {ref.public_id} has {array.size:,} elements, numbered from 0"
        )
    key = array.key
    calls: list[Call[Any]] = [
        command("HMGET", key, "next", "run", decode=_numbers),
        command("GETBIT", f"{key}:done", index, decode=int),
        command("SISMEMBER", f"{key}:skipped", index, decode=int),
        command("HGET", f"{key}:attempts", index, decode=number),
        command("SMEMBERS", f"{key}:slices", decode=list),
        command("HGET", f"{key}:reasons", index, decode=lambda reply: reply),
    ]
    (_, run), is_done, is_skipped, tried, slices, why = yield from ask_all(calls)
    asking: list[Call[Any]] = [command("HGET", f"{key}:failed:{run}", index, decode=lambda reply: reply)]
    asking += [job_hash.get_some(array.queue, slice_id, _HELD, list) for slice_id in slices]
    reason, *held = yield from ask_all(asking)
    holder = next((token for held_by, token, ended in held if _has(held_by, ended, index)), None)
    found = _Found(bool(is_done), bool(is_skipped), tried, why if is_skipped else reason, holder)
    for job_id in (yield from _element_jobs(array)):
        if job_id.startswith(f"{array.node.job_id}{{{index}."):
            state, made, token = yield from ask(job_hash.get_some(array.queue, job_id, _OF_JOB, list))
            if state and not JobState.read(state).is_terminal:
                is_active = state == JobState.ACTIVE
                found = _Found(False, False, number(made), None, token if is_active else None)
                return replace(_status(array, index, found), job_id=job_id, state=JobState.read(state))
    return _status(array, index, found)


def _has(elements: str | None, ended: str | None, index: int) -> bool:
    """Whether a slice has an element that was not ended by hand."""
    return contains(elements or "", index) and not contains(ended or "", index)


class _Found(NamedTuple):
    is_done: bool
    is_skipped: bool
    tried: int
    reason: str | None
    holder: str | None


def _status(array: Array, index: int, found: _Found) -> NodeStatus:
    node = array.node
    state = JobState.WAITING_CHILDREN if node.state is JobState.WAITING_CHILDREN else JobState.WAITING
    if found.is_done:
        state = JobState.COMPLETED
    elif found.is_skipped:
        state = JobState.SKIPPED
    elif found.reason is not None:
        state = JobState.FAILED
    elif found.holder is not None:
        state = JobState.ACTIVE
    elif node.state.is_terminal:
        state = JobState.FAILED
    started = state in (JobState.ACTIVE, JobState.COMPLETED)
    return NodeStatus(
        name=f"{node.name}[{index}]",
        queue=node.queue,
        job_id=node.job_id,
        job=node.job,
        after=node.after,
        state=state,
        attempts=found.tried + started,
        reason=readable(found.reason or "") or (node.reason if state is JobState.FAILED else ""),
        progress=None,
        started_at=None,
        finished_at=None,
        worker=worker_of(found.holder or ""),
    )


def contains(elements: str, index: int) -> bool:
    """Whether the text of a slice, ``0-63`` or ``3,7-9``, has an element."""
    for part in filter(None, elements.split(",")):
        first, _, last = part.partition("-")
        if int(first) <= index <= int(last or first):
            return True
    return False


def summary_of(progress: Any) -> Mapping[str, int] | None:
    """The counts in the progress of an array node; None for any other progress."""
    if not isinstance(progress, dict) or set(progress) != set(COUNTED):
        return None
    return {name: number(str(progress[name])) for name in COUNTED}
