"""Handlers that run in processes of their own: these import them by name."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any


def measure(ctx: Any) -> Any:
    ctx.progress({"half": True})
    ctx.log("measured")
    return {"pid": os.getpid(), "data": ctx.data, "attempt": ctx.attempt}


def hang(ctx: Any) -> None:
    Path(ctx.data).write_text(str(os.getpid()))
    time.sleep(600)


def die(ctx: Any) -> None:
    os._exit(3)
