"""The operations of Queue and AsyncQueue on tracked jobs."""

from __future__ import annotations

from glidemq_orchestrate.clients.operations.queue import QueueOperationsBase
from glidemq_orchestrate.queues import tracking
from glidemq_orchestrate.queues.tracking import Tracked, TrackedStream
from glidemq_orchestrate.wire.call import Op


class TrackingOperations(QueueOperationsBase):
    """Operations on tracked jobs."""

    def tracked(self) -> Op[list[Tracked]]:
        """List the tracked jobs and flows as they are now, those tracked longest first."""
        return tracking.tracked(self._keys)

    def watch_tracked(self) -> TrackedStream:
        """Yield the changes of the tracked jobs and flows, without an end; first what each is now.

        Reports each difference once: state, attempts, progress, options and tags of jobs, state and counts of
        flows, and that one of them was removed. What changes twice between two reads is reported once; a read
        follows each event of a tracked job, and at most a second later. Jobs that are tracked during the
        watch are included from then on. Lost events cause no missed change. After the first read the watch
        survives outages of the server, such as a failover, and logs them.

        Raises:
            TransportError: The server is unreachable at the first read.
        """
        return TrackedStream(self._keys, self._clock)

    def tracked_name(self) -> str:
        """What ``watch_tracked`` reads, for the log."""
        return f"tracked jobs and flows of queue {self._keys.queue}"
