"""Accepted outcomes that are not confirmed yet. Hooks and the log receive them only after confirmation.

One call confirms all outcomes that were accepted before it, if the server still has the replication id under
which they were accepted. If another server has taken over, or the server has restarted, they are reported
again, and the server accepts those that it has lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from glidemq_orchestrate.attempts import exchange
from glidemq_orchestrate.attempts.exchange import Outcome
from glidemq_orchestrate.errors import NotConfirmed
from glidemq_orchestrate.wire.call import Run, ask
from glidemq_orchestrate.wire.confirmation import mark_queue
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.worker.handlers.log import FailureLog

MAX_UNCONFIRMED: Final = 1_000


class Receipt(NamedTuple):
    """A verdict on an outcome.

    Attributes:
        history: The replication id of the server that gave it.
        before: The earlier verdict, by a server that has since been replaced; empty if there is none.
    """

    outcome: Outcome
    verdict: str
    history: str
    before: str = ""


class Receipts:
    """The unconfirmed outcomes of one queue.

    Args:
        run: Drives operations.
        run_confirmed: Drives operations and waits until their writes are confirmed.
        keys: The queue.
        settled: Receives each outcome and its verdict once it is confirmed.
        report: Reports an outcome again.
        wake: Called when outcomes are confirmed.
        failures: Logs why outcomes are not confirmed.
    """

    def __init__(  # noqa: PLR0913, PLR0917  what a feed has
        self,
        run: Run,
        run_confirmed: Run,
        keys: QueueKeys,
        settled: Callable[[Outcome, str], None],
        report: Callable[[Outcome], None],
        wake: Callable[[], None],
        failures: FailureLog,
    ) -> None:
        self._run, self._run_confirmed, self._keys = run, run_confirmed, keys
        self._settled, self._report, self._wake, self._failures = settled, report, wake, failures
        self._waiting: list[Receipt] = []
        self._again: dict[tuple[str, str, int], str] = {}
        self._news = asyncio.Event()
        self._is_behind = False

    @property
    def what(self) -> str:
        """The name of ``serve`` in the log."""
        return f"confirming the results of queue {self._keys.queue}"

    @property
    def is_empty(self) -> bool:
        """Whether every accepted outcome is confirmed."""
        return not self._waiting and not self._again

    @property
    def is_behind(self) -> bool:
        """Whether too many outcomes are unconfirmed to fetch further jobs."""
        return bool(self._waiting) and (self._is_behind or len(self._waiting) >= MAX_UNCONFIRMED)

    def take(self, history: str, outcome: Outcome, verdict: str) -> None:
        """Take a verdict on an outcome; a refusal needs no confirmation."""
        before = self._again.pop(_key(outcome), "")
        if verdict.startswith(("stale ", "error ")) and not before:
            self._settled(outcome, verdict)
            return
        self._waiting.append(Receipt(outcome, verdict, history, before))
        self._news.set()

    async def serve(self) -> None:
        """Confirm accepted outcomes continuously.

        Raises:
            NotConfirmed: They were not confirmed in time. Serve again.
            TransportError: The server cannot be reached. Serve again.
        """
        while True:
            while not self._waiting:
                self._news.clear()
                await self._news.wait()
            batch = list(self._waiting)
            try:
                history = await self._run_confirmed(ask(mark_queue(self._keys)))
            except NotConfirmed:
                self._is_behind = True
                self._report_again(await self._run(ask(mark_queue(self._keys))))
                raise
            self._report_again(history)
            confirmed = [receipt for receipt in batch if receipt.history == history]
            verdicts = [await self._verdict(receipt) for receipt in confirmed]
            del self._waiting[: len(confirmed)]  # those accepted since then follow
            self._is_behind = False
            self._failures.clear(self.what)
            for receipt, verdict in zip(confirmed, verdicts, strict=True):
                self._settled(receipt.outcome, verdict)
            self._wake()

    def _report_again(self, history: str) -> None:
        """Report again what another server accepted: the current server may have lost it."""
        current = []
        for receipt in self._waiting:
            if receipt.history == history:
                current.append(receipt)
            else:
                self._again[_key(receipt.outcome)] = receipt.before or receipt.verdict
                self._report(receipt.outcome)
        self._waiting = current

    async def _verdict(self, receipt: Receipt) -> str:
        """The verdict to settle with: the earlier one, if the server still has its effect."""
        if receipt.before and receipt.verdict.startswith("stale "):
            stands = await self._run(exchange.stands(self._keys, receipt.outcome, receipt.before))
            return receipt.before if stands else receipt.verdict
        return receipt.verdict


def _key(outcome: Outcome) -> tuple[str, str, int]:
    return outcome.attempt.token, outcome.attempt.job_id, outcome.first  # a slice may report twice
