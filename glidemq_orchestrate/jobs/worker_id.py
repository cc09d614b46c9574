"""The id of a worker, which encodes its kind and the length of its leases. Pure.

The search for lost workers needs the length of their leases, which a killed worker can no longer report. So
it is part of the name under which the server stores the holder of a job or message. ``parts/lease.lua`` reads
it there.
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
    """The id of a worker; ``kind`` is ``OURS`` or ``OF_BROADCASTS``. Leases are capped at a day."""
    return f"{kind}{unique}-{min(lock_ms, _MAX_MS)}ms"


def lease_of(worker: str) -> timedelta | None:
    """The length of the leases of a worker; None if its id does not contain it."""
    found = _LEASE.search(worker)
    return timedelta(milliseconds=int(found[1])) if found else None
