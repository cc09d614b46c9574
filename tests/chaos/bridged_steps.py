"""The bridge to ChasquiMQ and the workers behind it, as processes of a round, and what they write.

The bridge writes its attempts as every worker does; also which job of ChasquiMQ it adds for an attempt,
before it does. The workers behind it write each run of such a job. A result names both: the attempt of the
bridge, and the run behind it.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from glidemq_orchestrate import Context, Handlers
from glidemq_orchestrate.chasquimq.bridge import ChasquiBridge
from glidemq_orchestrate.chasquimq.remote import RemoteFailed
from glidemq_orchestrate.testing.chaos.ledger import Ledger
from glidemq_orchestrate.testing.chaos.recorder import run_of
from glidemq_orchestrate.worker.handlers.middleware import Middleware
from tests.chaos.bridged_flows import QUEUE, REMOTE_QUEUE
from tests.chaos.handlers import ResultRecorder
from tests.chaos.in_process import Told, cures_of, decide

if TYPE_CHECKING:
    from glidemq_orchestrate.chasquimq.remote import Remote

DEAD_LETTER: Final = "DeadLetter"
"""The error of an attempt whose job there became a dead letter although no run of it has failed."""
UNTOLD: Final = "the job became a dead letter"


class BridgeRecorder(ResultRecorder):
    """Tells failures of handlers from jobs whose workers were lost."""

    def error_of(self, exc: BaseException) -> str:
        """The name of an error in the ledger."""
        is_dead = isinstance(exc, RemoteFailed) and str(exc).startswith(UNTOLD)
        return DEAD_LETTER if is_dead else super().error_of(exc)


class Bridge(ChasquiBridge):
    """The bridge of a round.

    Args:
        url: The server of both sides.
        ledger: Of this process.
        options: As for every bridge.
    """

    def __init__(self, url: str, ledger: Ledger, **options: Any) -> None:
        super().__init__(QUEUE, url, chasquimq_queue=REMOTE_QUEUE, **options)
        self._middleware = (*self._middleware, BridgeRecorder(ledger))
        self._ledger = ledger

    async def _add(self, ctx: Context, remote_id: str) -> Remote:
        run = f"{ctx.token}:{ctx.job_id}"
        self._ledger.write("remote-add", run=run, queue=QUEUE, job=ctx.job_id, remote=remote_id)
        return await super()._add(ctx, remote_id)


class RemoteRecorder(Middleware):
    """Writes the runs of jobs of ChasquiMQ."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def around(self, execution: Any, proceed: Any) -> Any:
        """Write, run, write."""
        attempt, context = execution.attempts[0], execution.contexts[0]
        run, inputs = run_of(attempt), context.data.get("inputs", {})
        given = {name: value["run"] for name, value in inputs.items() if value}
        about = {"run": run, "remote": attempt.job_id, "delivery": attempt.deliveries}
        self._ledger.write("remote-begin", **about, inputs=given)
        try:
            value = await proceed()
        except BaseException as exc:
            self._ledger.write("remote-end", **about, error=type(exc).__name__, value=None)
            raise
        self._ledger.write("remote-end", **about, error="", value=value)
        return {"value": value, "remote": run}


class RemoteSteps:
    """The handlers behind the bridge: they behave as the data of their job says.

    Args:
        folder: Of the round.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def registry(self) -> Handlers:
        """All of them, by job name."""
        made = Handlers()
        made.handler("async")(self.on_the_loop)
        made.handler("thread")(self.in_a_thread)
        return made

    async def on_the_loop(self, ctx: Context) -> int:
        """A node."""
        data: Any = ctx.data
        await asyncio.sleep(data["ms"] / 1000)
        return self._decide(ctx.job_id, data)

    def in_a_thread(self, ctx: Context) -> int:
        """A node."""
        data: Any = ctx.data
        time.sleep(data["ms"] / 1000)
        return self._decide(ctx.job_id, data)

    def _decide(self, remote_id: str, data: dict[str, Any]) -> int:
        """End as the data says. Only the bridge knows the attempt, so those that fail are counted here."""
        place, _, epoch = remote_id.rpartition(":")
        failed = self._folder / "failed" / quote(place, safe="")
        attempt = 1 + sum(int(path.name) < int(epoch) for path in failed.glob("*"))
        if attempt <= data["fails"]:
            failed.mkdir(parents=True, exist_ok=True)
            (failed / epoch).touch()
        told = Told(data, attempt, data["node"], data.get("inputs", {}))
        return decide(told, cures_of(self._folder))
