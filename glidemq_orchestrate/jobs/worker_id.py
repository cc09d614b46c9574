"""The id of a worker: it tells the kind of worker, and how long its leases last. Pure.

Whoever looks for lost workers needs their leases, and a killed worker can tell it no more: so it is in the
name by which the server knows the holder of a job or message. ``parts/lease.lua`` reads it there.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

OURS: Final = "gmo-worker-"
OF_BROADCASTS: Final = "gmo-broadcast-"
_LEASE: Final = re.compile(r"-(\d{1,8})ms\Z")
_MAX_MS: Final = 86_400_000


def worker_id(kind: str, unique: str, lock_ms: int) -> str:
    """The id of a worker; ``kind`` is ``OURS`` or ``OF_BROADCASTS``. More than a day is written as a day."""
    return f"{kind}{unique}-{min(lock_ms, _MAX_MS)}ms"


def lease_of(worker: str) -> timedelta | None:
    """How long the leases of a worker last; None where its id does not tell."""
    found = _LEASE.search(worker)
    return timedelta(milliseconds=int(found[1])) if found else None
