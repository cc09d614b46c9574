"""No private attribute of a library is read: a release of it may drop what it does not document.

Three are written, never read, since there is no public way: PySpark forgets a JVM so, a mapped task of
Airflow becomes a plain one, and a Pipes session of Dagster does without an output that may be skipped. One
is called: a forked child does at its end what the interpreter would do; and one is named, as PySpark would
keep each client of Spark Connect until then. A subclass reads the stream of a connection of redis-py, which
has no other way to its transport. Java's side of PySpark's objects, which programs have used for as long as
there is PySpark, is read for Hadoop's file systems, for what its pages tell of stages, and where steps are
kept apart: without it they share what they cache. So are the file of a broadcast variable and the list of
files of code that a step has added, to remove them with the step. Dagster has no other way to the storage
within a legacy one, and Python has no other list of its finalizers.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
OWN: Final = re.compile(
    r"\b((producer|client)\._(run|closings|operations)|flow\._(run|ref)|made\._(connections|is_shared))\b"
)
FORGOTTEN: Final = re.compile(r"Spark(Context|Session)\._\w+ = None\b")
UNMAPPED: Final = re.compile(r"operator\._is_mapped = False\b")
AT_END: Final = re.compile(r"atexit\.(_run_exitfuncs\(\)|unregister\(sessions\.client\._on_exit\))")
HADOOP: Final = re.compile(r"(self\._jvm: Any = spark\._jvm|conf = spark\._jsc|return jvm\._jsc)\b")
QUERIES: Final = re.compile(r"store = session\._jsparkSession\b")
DOCUMENTED: Final = re.compile(r"\bsys\._(current_frames|getframe)\(")
"""Two functions of Python that its documents describe under these names."""
JAVA: Final = re.compile(r".*\._(jsc|jdf|jvm|jsparkSession)\b")
APART: Final = {
    f"glidemq_orchestrate/spark/sessions/{name}.py"
    for name in ("classic", "sharing/context", "sharing/current", "sharing/files")
}
OF_A_STEP: Final = re.compile(r"made\._path\b|context\._python_includes\b")
FINALIZERS: Final = re.compile(r"weakref\.finalize\._registry\b")
STORAGE: Final = re.compile(r"storage = storage\._storage\.event_log_storage\b")
SKIPPABLE: Final = re.compile(r"step\._requires_typed_event_stream = False\b")


def test_no_private_attribute_of_a_library_is_read() -> None:
    command = ["-m", "ruff", "check", "--select=SLF001", "--ignore-noqa", "--output-format=json"]
    done = subprocess.run(
        [sys.executable, *command, "--config=lint.per-file-ignores={}", "glidemq_orchestrate", "providers"],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    lines = [
        (file := Path(hit["filename"]), file.read_text().splitlines()[hit["location"]["row"] - 1].strip())
        for hit in json.loads(done.stdout)
        if "/tests/" not in hit["filename"].removeprefix(str(ROOT))
    ]
    found = [
        line for file, line in lines if not (file.relative_to(ROOT).as_posix() in APART and JAVA.match(line))
    ]
    forgotten = [line for line in found if FORGOTTEN.match(line)]
    assert len(forgotten) == 5, "ruff was not asked rightly, or _forget_session has changed"
    unmapped = [line for line in found if UNMAPPED.match(line)]
    skippable = [line for line in found if SKIPPABLE.match(line)]
    at_end = [line for line in found if AT_END.match(line)]
    hadoop = [line for line in found if HADOOP.match(line)]
    queries = [line for line in found if QUERIES.match(line)]
    assert [len(one) for one in (unmapped, skippable, at_end, hadoop, queries)] == [1, 1, 3, 3, 1]
    known = {*forgotten, *unmapped, *skippable, *at_end, *hadoop, *queries}
    assert [line for line in found if not _is_known(line) and line not in known] == []


def _is_known(line: str) -> bool:
    return any(known.search(line) for known in (OWN, DOCUMENTED, STORAGE, OF_A_STEP, FINALIZERS))
