"""Rows of tables that were added as jobs, remembered so that a repeat adds none of them again.

The deduplication hash of glide-mq has a field for each, with the id of its job and the time; glide-mq never
deletes one. The id of the job says for how long it is remembered.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from glidemq_orchestrate.jobs.option_values import Deduplication
from glidemq_orchestrate.spark.source.partitions import calls
from glidemq_orchestrate.wire.call import Op, ask, fields_of
from glidemq_orchestrate.wire.keys import QueueKeys

PAGE: Final = 500
MAX_PAGES: Final = 400
GRACE_MS: Final = 3_600_000
_FIELD: Final = "spark:"
_ENTRY: Final = re.compile(r"row-[0-9a-f]{32}-([0-9]{1,9}):([0-9]{1,16})", re.ASCII)


def job_id(digest: str, remember: timedelta) -> str:
    """The id of the job of a row, which is remembered for so long."""
    return f"row-{digest}-{round(remember.total_seconds())}"


def deduplication(digest: str, remember: timedelta) -> Deduplication:
    """What keeps a row from being added again."""
    return Deduplication(f"{_FIELD}{digest}", "throttle", remember)


def forget_old(queue: QueueKeys, now_ms: int) -> Op[int]:
    """Forget rows whose time is over; returns how many.

    Looks at some at random, and goes on while a quarter of them is over: so at most about a quarter of what
    is stored is ever too old, however much that is, and a call costs little.
    """
    key, forgotten = queue.key("dedup"), 0
    for _ in range(MAX_PAGES):
        fields = yield from ask(calls.fields_of_some(key, PAGE))
        own = [field for field in fields if field.startswith(_FIELD)]
        if not own:
            break
        values = yield from ask(fields_of(key, *own))
        old = [field for field, value in zip(own, values, strict=True) if value and is_over(value, now_ms)]
        if old:
            yield from ask(calls.forget(key, old))
        forgotten += len(old)
        if len(old) * 4 < len(own):
            break
    return forgotten


def is_over(value: str, now_ms: int) -> bool:
    """Whether an entry is that of a row whose time is over."""
    found = _ENTRY.fullmatch(value)
    return found is not None and int(found[2]) + int(found[1]) * 1000 + GRACE_MS < now_ms
