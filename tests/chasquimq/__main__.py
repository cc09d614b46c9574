"""Run the tests against the real ChasquiMQ: ``python -m tests.chasquimq``.

The package ``chasquimq`` needs another redis-py than this project, so it runs in an environment and
processes of its own (``peer.py``). Its server, a Redis 8.6 or newer, is found or built: see ``server.py``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

from tests.chasquimq.server import BuildError, redis8
from tests.matrix import ROOT, MatrixError, Row, python_of

PACKAGE: Final = Row("chasquimq", tests=(), installs=(), groups=(), pins={"chasquimq": "1.3.0"})
TESTS: Final = ("tests/chasquimq", "tests/server/chasquimq")


def main() -> int:
    """Prepare the server and the package, and run the tests; the exit code."""
    try:
        server, python = redis8(), python_of(PACKAGE)
    except (BuildError, MatrixError) as exc:
        print(f"make test-chasquimq: {exc}", file=sys.stderr)  # noqa: T201  a program
        return 1
    environment = {
        **os.environ, "GLIDEMQ_TEST_SERVER": str(server), "GLIDEMQ_TEST_CHASQUIMQ": str(python),
    }  # fmt: skip
    words = [sys.executable, "-m", "pytest", "-q", *(sys.argv[1:] or TESTS)]
    return subprocess.run(words, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
