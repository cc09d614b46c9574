"""Starts the processes of a round by fork, from a process that has loaded everything: some 10 ms each.

It has no threads and no connections, so forking is safe. The dead stay zombies until they are asked for, so a
process id is never another process's.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import glidemq_orchestrate
from tests.chaos.roles import World, play
from tests.processes import end, spawn

ELSEWHERE: Final = {"__main__", "cli", "demo", "spark", "testing"}
ROOT: Final = Path(__file__).parents[2]


class Nursery:
    """The process that starts the others, as the harness uses it."""

    def __init__(self, world: World) -> None:
        (world.folder / "world.json").write_text(world.to_json())
        path = os.pathsep.join(filter(None, [str(ROOT), *sys.path]))
        with (world.folder / "processes.log").open("ab") as log:
            self._process: subprocess.Popen[str] = spawn(
                [sys.executable, "-m", "tests.chaos.nursery", world.folder], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1, cwd=ROOT,
                env=os.environ | {"PYTHONPATH": path},
            )  # fmt: skip

    def start(self, role: str, number: int) -> int:
        """Start a process; its id."""
        return int(self._ask({"start": role, "number": number})["pid"])

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a process, also to a dead one that was not asked for yet."""
        self._ask({"signal": number, "pid": pid})

    def ended(self) -> dict[int, int]:
        """The processes that have ended since the last time: exit codes, or minus the signal, by id."""
        return {int(pid): code for pid, code in self._ask({"ended": True})["codes"].items()}

    def close(self) -> None:
        """Kill all of them."""
        end(self._process)

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        reply: dict[str, Any] = json.loads(self._process.stdout.readline())
        return reply


def main(folder: Path) -> None:
    """Do what the harness asks, line by line, until it is gone."""
    _load_everything()
    world = World.from_json((folder / "world.json").read_text())
    assert world.plan.flows  # made once, for all that are forked
    for line in sys.stdin:
        question = json.loads(line)
        if "start" in question:
            reply: dict[str, Any] = {"pid": _fork(world, question["start"], question["number"])}
        elif "signal" in question:
            os.kill(question["pid"], question["signal"])
            reply = {}
        else:
            reply = {"codes": _reaped()}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


def _load_everything() -> None:
    """Import what the processes would import after the fork, each of them."""
    for found in pkgutil.walk_packages(glidemq_orchestrate.__path__, "glidemq_orchestrate."):
        if found.name.split(".")[1] not in ELSEWHERE:
            importlib.import_module(found.name)


def _fork(world: World, role: str, number: int) -> int:
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    code = 70
    try:
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(2, 1)
        play(world, role, number)
        code = 0
    except SystemExit as exc:
        code = int(exc.code or 0)
    except BaseException:  # noqa: BLE001  printed; whatever it is, this process ends here
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _reaped() -> dict[int, int]:
    codes: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return codes
        if not pid:
            return codes
        codes[pid] = os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until a process has its own reaction
    main(Path(sys.argv[1]))
