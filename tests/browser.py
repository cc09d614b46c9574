"""The browser of the tests: Chromium, installed with apt-get where that is allowed.

``python -m tests.browser`` makes sure that it is there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Final

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
PACKAGE: Final = "chromium"
MISSING: Final = (
    "The tests of the console need Chromium, which is not installed. Fix: apt-get install chromium, or put "
    "chromium or google-chrome on the PATH"
)


def browser_path() -> str | None:
    """Where the browser is."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def main() -> int:
    """Install it if it is missing; 1 if that is not possible."""
    if browser_path() is not None:
        return 0
    apt = shutil.which("apt-get")
    if apt is not None and os.geteuid() == 0:
        sys.stderr.write(f"Chromium is missing; installing {PACKAGE} with apt-get ...\n")
        env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for arguments in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", PACKAGE]):
            subprocess.run([apt, *arguments], env=env, stdout=subprocess.DEVNULL, check=False)
    if browser_path() is None:
        sys.stderr.write(f"{MISSING}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
