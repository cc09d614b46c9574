"""Instructions per job or node, by valgrind: ``python -m benchmarks.instructions --against REVISION``.

Times vary by half on a shared machine; these counts by a hundredth. The client or worker is counted, then the
server, each with two sizes: the difference is what a job costs. With ``--against`` the same is counted for
another revision of this repository, in a work tree of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

import redis
import typer
from rich.console import Console

from benchmarks.rivals import ROOT
from glidemq_orchestrate import EmbeddedServer
from glidemq_orchestrate.cli.shell import summary_table

WORKS: Final = {
    "add": "",
    "add in bulk": "",
    "drain": "add in bulk",
    "submit mesh": "",
    "run mesh": "submit mesh",
    "submit fan-out": "",
    "run fan-out": "submit fan-out",
    "submit fan-in": "",
    "run fan-in": "submit fan-in",
}
SIZES: Final = (500, 1_500)
COUNTED: Final = re.compile(r"I +refs: +([\d,]+)")
VALGRIND: Final = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
START_SECONDS: Final = 60.0


def main(
    against: Annotated[str, typer.Option(help="A revision to compare with.")] = "",
    works: Annotated[str, typer.Option(help="What to count, comma-separated.")] = ",".join(WORKS),
) -> None:
    """Count and print; some minutes for each work."""
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind is needed; on Debian: apt-get install valgrind")
    rows: list[dict[str, Any]] = []
    with checkout(against) as other, Console(stderr=True).status("counting") as status:
        for work in works.split(","):
            for side in ("client", "server"):
                status.update(f"{work}: {side}")
                here = cost(ROOT, work, side)
                row: dict[str, Any] = {"work": work, "instructions of the": side, "here": here}
                if other is not None:
                    row[against] = cost(other, work, side)
                    row["ratio"] = f"{here / row[against]:.3f}"
                rows.append(row)
    Console().print(summary_table("Instructions per job or node", rows))


@contextmanager
def checkout(revision: str) -> Iterator[Path | None]:
    """A work tree of a revision, removed afterwards; None for ''."""
    if not revision:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(place), revision], check=True)
        try:
            yield place
        finally:
            subprocess.run([*git, "remove", "--force", str(place)], check=True)


def cost(tree: Path, work: str, side: str) -> int:
    """The instructions of one more job or node."""
    compile_modules(tree, work)
    small, large = (counted(tree, work, side, size) for size in SIZES)
    return round((large - small) / (SIZES[1] - SIZES[0]))


@cache
def compile_modules(tree: Path, work: str) -> None:
    """Do a little of the work uncounted: else the first count would include compiling what it imports."""
    with tempfile.TemporaryDirectory() as folder:
        server, url = started(folder, ())
        try:
            for todo in (WORKS[work], work):
                if todo:
                    do(tree, url, todo, 10)
        finally:
            server.terminate()
            server.communicate()


def counted(tree: Path, work: str, side: str, size: int) -> int:
    """The instructions of one side for ``size`` jobs or nodes, on a server of its own."""
    with tempfile.TemporaryDirectory() as folder:
        server, url = started(folder, VALGRIND if side == "server" else ())
        try:
            if WORKS[work]:
                do(tree, url, WORKS[work], size)
            client_log = do(tree, url, work, size, VALGRIND if side == "client" else ())
        finally:
            server.terminate()
            _, server_log = server.communicate()
    found = COUNTED.search(server_log if side == "server" else client_log)
    assert found is not None, client_log
    return int(found[1].replace(",", ""))


def started(folder: str, under: tuple[str, ...]) -> tuple[subprocess.Popen[str], str]:
    """A server without an append-only file, and its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*under, program(), "--port", str(port), "--dir", folder, "--save", "", "--appendonly", "no"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            if time.monotonic() > until or server.poll() is not None:
                raise
            time.sleep(0.1)
        else:
            return server, f"redis://127.0.0.1:{port}"


@cache
def program() -> str:
    """The path of the embedded server's program, as it reports it."""
    with EmbeddedServer() as server, redis.Redis.from_url(server.url.replace("valkey", "redis")) as client:
        return str(client.info("server")["executable"])


def do(tree: Path, url: str, work: str, size: int, under: tuple[str, ...] = ()) -> str:
    """Run the work with the package of a tree; returns its standard error."""
    command = [sys.executable, str(ROOT / "benchmarks/workload.py"), url, work, str(size)]
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [*under, *command], env=environment, cwd=tree, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr[-2_000:])
    return done.stderr


if __name__ == "__main__":
    typer.run(main)
