"""Follows the log of the running jobs of a flow in a thread, for as long as a Pipes session is open."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import dagster as dg
from dagster_pipes import PipesParams

from dagster_glidemq.pipes.log import LiveLog, Told, pages
from dagster_glidemq.resource import GlideMQResource
from glidemq_orchestrate import JobState, Queue
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.runs import Patience

JOIN_SECONDS: Final = 30.0


class GlideMQMessageReader(dg.PipesMessageReader):
    """Shows what jobs log while they run. The reports of assets and checks are read apart (``Reports``).

    Nothing is changed on the server: reading again, after a kill of this process, gives the same.

    Args:
        glidemq: The server.
        flow_id: The flow.
        poll_seconds: Time between two looks at the running jobs.
        after_generation: Generations up to this one are of earlier runs; their lines are not shown.
        is_single: The flow is one job.
        told: The lines that are not shown again.
    """

    log: LiveLog

    def __init__(  # noqa: PLR0913  keyword-only
        self,
        glidemq: GlideMQResource,
        flow_id: str,
        *,
        poll_seconds: float,
        after_generation: int,
        is_single: bool,
        told: Told,
    ) -> None:
        self._glidemq, self._flow_id, self._is_single, self._told = glidemq, flow_id, is_single, told
        self._poll_seconds, self._after_generation = poll_seconds, after_generation
        self._patience = Patience(0)  # the step waits out outages, and shows what was missed here

    @property
    def expected_writer_count(self) -> int:
        """One: the end is handed over once, for the whole flow."""
        return 1

    @contextlib.contextmanager
    def read_messages(self, handler: dg.PipesMessageHandler) -> Iterator[PipesParams]:
        """Follow the running jobs until the session is closed."""
        self.log = LiveLog(handler, is_single=self._is_single, told=self._told)
        closing = threading.Event()
        thread = threading.Thread(
            target=self._follow, args=(handler, closing), daemon=True, name="glidemq-pipes"
        )
        thread.start()
        try:
            yield {}
        finally:
            closing.set()
            thread.join(JOIN_SECONDS)
            self.log.close()

    def no_messages_debug_text(self) -> str:
        """Say where messages come from."""
        return (
            f"The jobs of flow {self._flow_id} have written none. A handler reports by open_pipes(ctx) of "
            "glidemq_orchestrate.pipes."
        )

    def _follow(self, handler: dg.PipesMessageHandler, closing: threading.Event) -> None:
        pause = self._poll_seconds
        try:
            with contextlib.ExitStack() as stack:
                flows = stack.enter_context(self._glidemq.get_client())
                queues = queues_of(self._glidemq, stack)
                while not closing.wait(pause):
                    began = time.monotonic()
                    with contextlib.suppress(GlideMQError):
                        flow = flows.get(self._flow_id)
                        running = flow.nodes() if flow.generation > self._after_generation else []
                        for node in running:
                            if node.state is JobState.ACTIVE:
                                self._show_new(queues(node.queue), node.queue, node.job_id, node.name)
                    # Large flows take long to read: spend at most a third of the time on it.
                    pause = max(self._poll_seconds, 2 * (time.monotonic() - began))
        except Exception:
            handler.report_pipes_framework_exception("the log of running jobs", sys.exc_info())
            raise

    def _show_new(self, client: Queue, queue: str, job_id: str, node: str) -> None:
        for page in pages(client, job_id, self.log.position(queue, job_id), self._patience):
            self.log.show(queue, job_id, node, page)


def queues_of(glidemq: GlideMQResource, stack: contextlib.ExitStack) -> Callable[[str], Queue]:
    """Makes the client of a queue when it is first asked for; they are closed with the stack."""
    clients: dict[str, Queue] = {}

    def queue(name: str) -> Queue:
        if name not in clients:
            clients[name] = stack.enter_context(glidemq.get_queue(name))
        return clients[name]

    return queue
