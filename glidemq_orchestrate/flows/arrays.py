"""The elements of an array node: their form on the server, from ``ArrayNode`` to the chunks of items.

``lua/glidemq_orchestrate/parts/arrays.lua`` has the keys.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from glidemq_orchestrate.errors import FlowExpired, FlowTooLarge, InvalidFlow
from glidemq_orchestrate.flows.spec import ArrayNode
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.foundation.values import NameRule, whole
from glidemq_orchestrate.jobs.options import JobOptions
from glidemq_orchestrate.wire.call import Op, ask_all, command, parts
from glidemq_orchestrate.wire.codec import encode_each
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import parsed_object

MAX_ELEMENTS: Final = 100_000_000
MAX_VALUE: Final = 2**53 - 1
MAX_PER_CHUNK: Final = 100
CHUNK_BYTES: Final = 65_536
UNLIMITED: Final = 0
NEVER_STOPPED: Final = -1
LIMITS: Final = ("running", "failed")
"""The parts of a definition that do not affect results."""
CHUNKS_PER_CALL: Final = 50
CALLS_PER_TRIP: Final = 20
JOBS_AT_ONCE: Final = 200
"""How many elements are jobs at once, if they are: one call may have to take all of them back."""
_OF_JOBS: Final = ("lifo", "ttl", "ordering", "cost", "fallbacks")
"""Options that only jobs have."""
_FIELD: Final = re.compile(r"\{[A-Za-z_][A-Za-z0-9_.]*\}")
_ITEM: Final = re.compile(r"\{item(?:\.([A-Za-z0-9_]+))?\}")


@dataclass(frozen=True, slots=True)
class CheckedArray:
    """A validated array.

    Attributes:
        definition: JSON for the job field ``gmo:array``.
        chunks: The items, in texts of a line of JSON each; none for a range.
    """

    definition: str
    chunks: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """A fingerprint of the items; '' for a range."""
        return str(parsed_object(self.definition).get("items", ""))


def checked_array(node: ArrayNode) -> CheckedArray:
    """Check an array node, and encode its items.

    Raises:
        InvalidFlow: ``over`` is neither a range nor a sequence, or empty; a limit is not valid; an option
            is not supported. Subclass FlowTooLarge: it has more than 100,000,000 elements.
        EncodeError, PayloadTooLarge: An item is not JSON or over 1 MiB; the message has its position.
    """
    where, over = f"node {node.name}", node.over
    if isinstance(over, str | bytes) or not isinstance(over, Sequence):
        raise InvalidFlow(f"{where}: over must be a range or a list, got {described(over)}")
    if not over:
        raise InvalidFlow(f"{where}: over is empty: an array has 1 to {MAX_ELEMENTS:,} elements")
    size = _size(over)
    if size > MAX_ELEMENTS:
        raise FlowTooLarge(f"{where}: over has {size:,} elements; the limit is {MAX_ELEMENTS:,}")
    if node.data is not None and not isinstance(node.data, Mapping):
        raise InvalidFlow(
            f"{where}: data of an array must be an object, since the item is added to it. "
            "Fix: leave data out, and the item is ctx.data"
        )
    if node.data is not None and "item" in node.data:
        raise InvalidFlow(f"{where}: data of an array cannot have the key 'item', which each item gets")
    about: dict[str, Any] = {
        "size": size,
        "per": 0,
        "running": _max_running(where, node.max_running),
        "failed": _max_failed(where, node.max_failed, size),
        **_as_jobs(where, node),
    }
    if isinstance(over, range):
        _check_values(where, over)
        about |= {"start": over.start, "step": over.step}
        return CheckedArray(json.dumps(about))
    texts = encode_each(over, where=f"{where}: item")
    chunks = _chunks(texts, about)
    about["items"] = hashlib.sha256("\n".join(chunks).encode(errors="surrogatepass")).hexdigest()[:32]
    return CheckedArray(json.dumps(about), chunks)


def _size(over: Sequence[Any]) -> int:
    """The number of elements, which ``len`` does not know for the longest ranges."""
    return (over[-1] - over[0]) // over.step + 1 if isinstance(over, range) else len(over)


def _check_values(where: str, over: range) -> None:
    """Check that JSON and the server, whose numbers are doubles, know all values exactly."""
    if max(abs(over[0]), abs(over[-1]), abs(over.step)) > MAX_VALUE:
        raise InvalidFlow(
            f"{where}: values and step of a range must be within ±{MAX_VALUE:,}, got {described(over)}. "
            "Fix: let the range begin at 0, and add the first value in the handler; or use a list"
        )


def _chunks(texts: Sequence[str], about: dict[str, Any]) -> tuple[str, ...]:
    """The items in chunks of the same number, which is also noted in ``about``."""
    longest = max(map(len, texts))
    per = about["per"] = max(min(CHUNK_BYTES // max(longest, 1), MAX_PER_CHUNK), 1)
    return tuple("\n".join(texts[at : at + per]) for at in range(0, len(texts), per))


def _as_jobs(where: str, node: ArrayNode) -> dict[str, Any]:
    """What the definition says of the jobs of the elements, if they are jobs."""
    if type(node.as_jobs) is not bool:
        raise InvalidFlow(f"{where}: as_jobs must be True or False, got {described(node.as_jobs)}")
    options = node.options
    if not node.as_jobs and not any(getattr(options, name) for name in _OF_JOBS):
        return {}
    key = options.ordering.key if options.ordering else ""
    if "{item" not in key:
        if found := _FIELD.search(key):
            raise InvalidFlow(
                f"{where}: an ordering key can contain {{item}} or {{item.field}}, got {found[0]} in "
                f"{described(key)}"
            )
        return {"jobs": JOBS_AT_ONCE}
    _check_keys(where, options, key, node.over)
    return {"jobs": JOBS_AT_ONCE, "keyed": True}


def _check_keys(where: str, options: JobOptions, key: str, over: Sequence[Any]) -> None:
    """Check the ordering key of each element; ``element_jobs.lua`` makes it from the item."""
    if "{item" in _ITEM.sub("", key) or options.to_wire().count("{item") != key.count("{item"):
        raise InvalidFlow(
            f"{where}: an ordering key can contain {{item}} or {{item.field}}, and no other option can; "
            f"got {described(key)}"
        )
    if isinstance(over, range):
        over = over[-1:]  # the longest key; an empty range was refused
    rule = NameRule(f"{where}: ordering.key", InvalidFlow)
    for index, item in enumerate(over):
        rule.check(_ITEM.sub(lambda found: _key_part(where, index, item, found[1]), key))  # noqa: B023  called here


def _key_part(where: str, index: int, item: Any, name: str | None) -> str:
    value = item if name is None else item.get(name) if isinstance(item, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        what = "item" if name is None else f"item.{name}"
        raise InvalidFlow(f"{where}: item {index} has no text or number for {{{what}}} in the ordering key")
    return str(value)


def read_items(queue: QueueKeys, job_id: str, definition: str) -> Op[tuple[str, ...]]:
    """The chunks of items of a stored array; none for a range.

    Raises:
        FlowExpired: Some were removed.
    """
    about = parsed_object(definition)
    per = int(about.get("per") or 0)
    count = -(-int(about["size"]) // per) if per else 0
    key, found = f"{queue.array(job_id)}:items", list[str]()
    calls = [
        command("HMGET", key, *range(at, min(at + CHUNKS_PER_CALL, count)), decode=list)
        for at in range(0, count, CHUNKS_PER_CALL)
    ]
    for trip in parts(calls, CALLS_PER_TRIP):
        for chunks in (yield from ask_all(trip)):
            if None in chunks:
                raise FlowExpired(f"items of array {job_id} were removed")
            found += chunks
    return tuple(found)


def _max_running(where: str, value: int | None) -> int:
    if value is None:
        return UNLIMITED
    whole(f"{where}: max_running", value, 1, error=InvalidFlow)
    return value


def _max_failed(where: str, value: int | str | None, size: int) -> int:
    """The number of elements that may fail; -1 if all of them run."""
    if value is None:
        return NEVER_STOPPED
    if isinstance(value, str):
        digits, percent, rest = value.partition("%")
        try:
            share = float(digits)
        except ValueError:
            share = -1.0
        if not percent or rest or not 0 <= share <= 100:
            raise InvalidFlow(
                f"{where}: max_failed must be a number or a share such as '1%', got {described(value)}"
            )
        return int(size * share / 100)
    whole(f"{where}: max_failed", value, 0, error=InvalidFlow)
    return value
