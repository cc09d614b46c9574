"""A PostgreSQL server of Debian's package: a database where several processes write at once."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.ports import free_port
from tests.processes import spawned
from tests.server.lua.servers import installed

USER = "postgres"


@contextmanager
def running_postgres(database: str) -> Iterator[str]:
    """The URL of an empty database, as SQLAlchemy writes it; the server ends with the block."""
    programs, folder = _programs(), Path(tempfile.mkdtemp(prefix="glidemq-postgres-"))
    # PostgreSQL refuses to run as root; its package has made this user.
    who: dict[str, Any] = {"user": USER, "group": USER} if os.geteuid() == 0 else {}
    try:
        if who:
            entry = pwd.getpwnam(USER)
            os.chown(folder, entry.pw_uid, entry.pw_gid)
        data, port = folder / "data", free_port()
        options: list[str | Path] = [
            "-D",
            str(data),
            "-U",
            USER,
            "-A",
            "trust",
            "-N",
            "-E",
            "UTF8",
            "--locale=C",
        ]
        subprocess.run([programs / "initdb", *options], check=True, capture_output=True, cwd=folder, **who)
        serve = [str(programs / "postgres"), "-D", str(data), "-p", str(port), "-k", str(folder)]
        serve += ["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c", "max_connections=200"]
        with (
            (folder / "log").open("wb") as log,
            spawned(serve, stdout=log, stderr=subprocess.STDOUT, cwd=folder, **who) as process,
        ):
            place = ["-h", "127.0.0.1", "-p", str(port), "-U", USER]
            until = time.monotonic() + 30
            ready: list[str | Path] = [programs / "pg_isready", *place]
            while subprocess.run(ready, capture_output=True, check=False).returncode:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < until, (folder / "log").read_text()
                time.sleep(0.1)
            subprocess.run([programs / "createdb", *place, database], check=True, capture_output=True)
            yield f"postgresql+psycopg2://{USER}@127.0.0.1:{port}/{database}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Check for PostgreSQL, and install it where that is allowed."""
    try:
        _programs()
    except AssertionError as exc:
        sys.exit(str(exc))


def _programs() -> Path:
    """The folder of the server's programs: Debian keeps them out of PATH, one folder a version."""
    installed("pg_ctlcluster", package="postgresql")
    return max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))


if __name__ == "__main__":
    main()
