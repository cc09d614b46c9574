"""Handlers for workers of ChasquiMQ that tests start as processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from glidemq_orchestrate import Context, Handlers
from glidemq_orchestrate.chasquimq.worker import ChasquiWorker

handlers = Handlers()


@handlers.handler
def work(ctx: Context) -> Any:
    """Do what the data says."""
    if "kill" in ctx.data:
        os.kill(os.getpid(), signal.SIGKILL)
    if "sleep" in ctx.data:
        time.sleep(ctx.data["sleep"])
    return {"pid": os.getpid()}


@handlers.handler(process=True)
def apart(ctx: Context) -> Any:
    """Run in a process of its own."""
    ctx.log("here")
    ctx.check_owner()
    return {"pid": os.getpid(), "data": ctx.data}


if __name__ == "__main__":
    ChasquiWorker("images", sys.argv[1], handlers=handlers, lease=1).run()
