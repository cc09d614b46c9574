"""What a program writes is in the log of its job, also what it writes while the server is away."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from glidemq_orchestrate import EmbeddedServer, Queue
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.spark.submit.application import JOB_NAME
from tests.conftest import Eventually
from tests.processes import spawned

pytestmark = pytest.mark.usefixtures("_spark_environment")

WORKER = """
import sys
from glidemq_orchestrate import Worker
from glidemq_orchestrate.spark.submit import handlers
Worker(sys.argv[1], queues=["spark"], handlers=handlers).run()
"""
WRITES = """
import sys, time
for number in range(int(sys.argv[2])):
    print("line", number, flush=True)
    open(sys.argv[1], "a").write(".")
    time.sleep(0.1)
"""


@pytest.mark.long
@pytest.mark.parametrize("most", [pytest.param(60, id="goes on"), pytest.param(30, id="ends meanwhile")])
def test_lines_of_an_outage_are_logged_when_the_server_is_back(
    folder: Path, eventually: Eventually, most: int
) -> None:
    (folder / "program.py").write_text(WRITES)
    written = folder / "written"
    data: Any = {"application": str(folder / "program.py"), "args": [str(written), most]}
    first = EmbeddedServer(data_dir=folder / "data")
    first.start()
    url, port = first.url, int(first.url.rpartition(":")[2].partition("/")[0])
    with spawned([sys.executable, "-c", WORKER, url]):
        with Queue("spark", url) as queue:
            job = queue.add(JOB_NAME, data)
        eventually(lambda: written.exists() and written.stat().st_size > 10, 60)
        time.sleep(1.2)  # until what it has written is in the append-only file
        os.kill(int(first.pid or 0), signal.SIGKILL)
        time.sleep(2)
        first.stop()
        with EmbeddedServer(data_dir=folder / "data", port=port), Queue("spark", url) as queue:

            def is_complete() -> bool:
                try:
                    return queue.get_job(job).state == "completed"
                except GlideMQError:
                    return False

            eventually(is_complete, 60)
            lines = [line for line in queue.logs(job).lines if line.startswith("line ")]
    assert list(dict.fromkeys(lines)) == [f"line {number}" for number in range(most)]
    assert len(lines) < most + 10, "few are there twice"
