"""A bridge that kills itself at a point of its work, as a program: URL POINT."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from glidemq_orchestrate.chasquimq import ChasquiBridge


class CrashingBridge(ChasquiBridge):
    """Dies at the named point of its first job."""

    def _die_at(self, point: str) -> None:
        if sys.argv[2] == point:
            os.kill(os.getpid(), signal.SIGKILL)

    async def _add(self, *words: Any) -> Any:
        self._die_at("noted")
        remote = await super()._add(*words)
        self._die_at("added")
        return remote

    async def _hand_over(self, ctx: Any) -> Any:
        self._die_at("fetched")
        result = await super()._hand_over(ctx)
        self._die_at("ended")
        return result


if __name__ == "__main__":
    CrashingBridge("images", sys.argv[1], lease=1).run()
