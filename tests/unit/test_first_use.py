"""A worker in a thread and a producer beside it may be the first to need the driver at the same moment."""

from __future__ import annotations

import subprocess
import sys

RACE = """
import threading
from glidemq_orchestrate import AsyncFlowProducer, FlowProducer
from glidemq_orchestrate.errors import ConnectionFailed
import asyncio

told = []
start = threading.Barrier(2)

def ask(call):
    start.wait()
    try:
        call()
    except ConnectionFailed:
        told.append("no server")
    except BaseException as exc:
        told.append(repr(exc))

url = "valkey://127.0.0.1:1"
threads = [
    threading.Thread(target=ask, args=(lambda: FlowProducer(url).get("f"),)),
    threading.Thread(target=ask, args=(lambda: asyncio.run(AsyncFlowProducer(url).get("f")),)),
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(told)
"""


def test_both_kinds_of_driver_can_be_imported_at_the_same_moment() -> None:
    done = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['no server', 'no server']", done.stdout
