"""``glidemq chasquimq worker`` runs jobs until it is stopped, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from glidemq_orchestrate.chasquimq import ChasquiQueue
from tests.conftest import Eventually
from tests.processes import spawned
from tests.server.chasquimq import handlers
from tests.server.chasquimq.conftest import Raw

COMMAND = [sys.executable, "-m", "glidemq_orchestrate", "chasquimq", "worker", "--queue", "images"]
ROOT = Path(__file__).parents[3]


def test_the_command_runs_jobs_and_gives_back_the_others(
    images: ChasquiQueue, raw: Raw, url: str, eventually: Eventually
) -> None:
    images.add("", {}, job_id="unnamed")
    words = [*COMMAND, "--app", handlers.__name__, "--url", url, "--unnamed", "work", "--stop-after", "0"]
    with spawned([*words, "--concurrency", "1"], cwd=ROOT) as process:
        eventually(lambda: images.result("unnamed"), timeout=60)
        images.add("work", {"sleep": 60}, job_id="long")
        eventually(lambda: images.counts().active == 1)
        process.terminate()
        assert process.wait(60) == 0
    (pending,) = raw.client.xpending_range(raw.key("stream"), "default", "-", "+", 9)
    assert pending["time_since_delivered"] > 1_000_000


def test_a_server_without_chasquimq_is_refused_if_asked(url: str, raw: Raw) -> None:
    words = [*COMMAND, "--app", handlers.__name__, "--url", url, "--require-chasquimq"]
    if raw.client.info("server").get("server_name") == "valkey":
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2
        assert "workers of ChasquiMQ need Redis 8.6 or newer" in done.stderr
