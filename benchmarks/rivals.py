"""The contenders, with versions and settings; rivals are installed below ``.bench/``, ignored by git."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
HOME: Final = ROOT / ".bench"
NO_NODE: Final = "BullMQ is left out: to compare with it, install Node.js 20 and npm"


class CannotInstall(Exception):
    """A rival cannot be installed here; the message explains what to do."""


@dataclass(frozen=True)
class Contender:
    """One of the libraries that are compared.

    Attributes:
        name: Its name in the tables.
        settings: The settings chosen for it, in words.
        pins: The packages to install, with versions; the first is the contender.
        share: Its share of the jobs that the fastest get, so that each takes about as long.
        flows: Whether it supports flows.
    """

    name: str
    settings: str
    pins: tuple[str, ...] = ()
    share: float = 1.0
    flows: bool = False

    @cached_property
    def home(self) -> Path:
        """Where it is installed."""
        return HOME / self.name

    @property
    def command(self) -> list[str]:
        """The command that starts it; role and URL follow."""
        if self.name == "bullmq":
            return ["node", str(ROOT / "benchmarks/contenders/on_bullmq.mjs")]
        python = str(self.home / "bin/python") if self.pins else sys.executable
        return [python, "-m", f"benchmarks.contenders.on_{self.name}"]

    @property
    def environment(self) -> dict[str, str]:
        """Its environment variables."""
        return {"BENCH_MODULES": str(self.home)}

    def install(self) -> None:
        """Install it, unless these versions are installed.

        Raises:
            CannotInstall: A tool is missing, or the installation failed.
        """
        mark = self.home / ".installed"
        wanted = "\n".join(self.pins)
        if not self.pins or (mark.exists() and mark.read_text() == wanted):
            return
        print(f"installing {', '.join(self.pins)} into {self.home.relative_to(ROOT)} ...", file=sys.stderr)
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(parents=True)
        for command in self._steps():
            done = subprocess.run(command, cwd=self.home, capture_output=True, text=True, check=False)
            if done.returncode:
                raise CannotInstall(f"{self.name} could not be installed: {done.stderr.strip()[-500:]}")
        mark.write_text(wanted)

    def _steps(self) -> list[list[str]]:
        if self.name == "bullmq":
            npm = shutil.which("npm")
            if npm is None or shutil.which("node") is None:
                raise CannotInstall(NO_NODE)
            (self.home / "package.json").write_text("{}")
            return [[npm, "install", "--no-audit", "--no-fund", "--save-exact", *self.pins]]
        uv = [sys.executable, "-m", "uv"]
        python = str(self.home / "bin/python")
        return [
            [*uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, "."],
            [*uv, "pip", "install", "--quiet", "--python", python, *self.pins],
        ]


OURS: Final = Contender("glidemq", "one Worker, async handlers, results kept, hiredis", flows=True)
RIVALS: Final = (
    Contender(
        "bullmq",
        "addBulk by 1,000, one Worker, async handlers, results kept, ioredis",
        ("bullmq@6.7.0", "ioredis@6.0.0"),
        flows=True,
    ),
    Contender(
        "celery",
        "prefork -c N -O fair, prefetch x16, no gossip, mingle, heartbeat or events; jobs: results ignored, "
        "acknowledged before they run; one producer connection in bulk",
        ("celery[redis]==5.7.0", "hiredis==3.5.0"),
        share=0.1,
        flows=True,
    ),
    Contender(
        "arq",
        "max_jobs N, poll_delay 5 ms, 200 enqueues at once in bulk, results kept and polled each ms",
        ("arq==0.28.0",),
        share=0.05,
    ),
    Contender(
        "rq",
        "worker pool of N SimpleWorker processes (no fork per job), enqueue_many by 1,000, results kept",
        ("rq==3.0.0", "hiredis==3.5.0"),
        share=0.05,
    ),
    Contender(
        "dramatiq",
        "a process per core, which share N threads equally, none of several with messages that wait in it; "
        "single calls in bulk; results kept; its worker polls, as by default",
        ("dramatiq[redis]==2.2.1", "hiredis==3.5.0"),
        share=0.1,
    ),
    Contender(
        "taskiq",
        "RedisStreamBroker, one worker process, async tasks, uvloop; 20 calls of kiq at once in bulk; "
        "results kept and polled each ms",
        ("taskiq[uv]==0.13.0", "taskiq-redis==1.2.4", "uvloop==0.23.0", "hiredis==3.5.0"),
        share=0.1,
    ),
    Contender(
        "huey",
        "N worker threads, no periodic tasks; map in bulk, which adds one by one; "
        "results kept and polled each ms",
        ("huey==3.5.4", "redis==8.1.0", "hiredis==3.5.0"),
        share=0.1,
    ),
    Contender(
        "saq",
        "one Worker, async functions; 200 enqueues at once in bulk, of which it lets 20 run; "
        "results kept and polled each ms",
        ("saq[redis,hiredis]==0.26.4", "hiredis==3.5.0", "typing-extensions==4.16.0"),
        share=0.1,
    ),
    Contender(
        "bullmq_python",
        "addBulk by 1,000, one Worker, async handlers, results kept; the event of a job tells its end",
        ("bullmq==3.4.4", "hiredis==3.5.0"),
        share=0.1,
    ),
)
