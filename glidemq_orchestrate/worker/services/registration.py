"""What workers of jobs and of subscriptions register alike."""

from __future__ import annotations

import os
import socket
from typing import Any, Final

from glidemq_orchestrate.foundation.machine import resident_memory
from glidemq_orchestrate.worker.job_slots import JobSlots

ANNOUNCE_SECONDS: Final = 10.0


def of_process(started_ms: int, slots: JobSlots, held: int) -> dict[str, Any]:
    """Host and process of a worker, and what it uses; it holds so many jobs."""
    return {
        "addr": socket.gethostname(),
        "pid": os.getpid(),
        "startedAt": started_ms,
        "activeJobs": held,
        "running": slots.running,
        "concurrency": slots.concurrency,
        "memory": resident_memory(),
    }
