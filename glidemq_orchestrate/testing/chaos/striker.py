"""Triggers strikes, in the process of the worker that runs the handler. Each happens once."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from glidemq_orchestrate.testing.chaos.ledger import Ledger
from glidemq_orchestrate.testing.chaos.strikes import OF_SERVER, Act, Moment, Strike
from glidemq_orchestrate.worker.handlers.context import Context

SERVER_SECONDS: Final = 0.15


class Striker:
    """The strikes of all runs.

    Args:
        folder: Shared by all processes; contains a file for each strike that has happened.
        strikes: The strikes of each flow, by its id.
        owner: The process of the worker.
    """

    def __init__(
        self, folder: Path, ledger: Ledger, strikes: Mapping[str, Sequence[Strike]], owner: int
    ) -> None:
        self._folder, self._ledger, self._strikes, self.owner = folder, ledger, strikes, owner

    def of(self, context: Context, moment: Moment, effect: int = 0) -> Strike | None:
        """The strike that is due, if any."""
        for strike in self._strikes.get(context.flow_id or "", ()):
            if (strike.node, strike.moment, strike.effect) == (context.node, moment, effect):
                return strike
        return None

    def strike(self, context: Context, moment: Moment, effect: int = 0, *, owner: int = 0) -> float:
        """Trigger the strike that is due, if any; returns how long to wait for it, in seconds.

        Does not return if the worker is killed.
        """
        found = self.of(context, moment, effect)
        return 0.0 if found is None else self.act(context, found, owner or self.owner)

    def act(self, context: Context, strike: Strike, owner: int) -> float:
        """Trigger a strike, unless it has happened; returns how long to wait for it, in seconds."""
        name = hashlib.sha256(f"{context.flow_id} {strike.node}".encode()).hexdigest()
        try:
            os.close(os.open(self._folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return 0.0
        pids = sorted({owner, os.getpid()})
        self._ledger.write(
            "strike", flow=context.flow_id, node=context.node, moment=strike.moment, act=strike.act, pids=pids
        )
        if strike.act in OF_SERVER:
            return SERVER_SECONDS
        number = signal.SIGKILL if strike.act is Act.KILL else signal.SIGSTOP
        for pid in sorted(pids, key=lambda pid: pid == os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if strike.act is Act.KILL:
            time.sleep(60)  # the end of the worker ends this process
        return 0.0
