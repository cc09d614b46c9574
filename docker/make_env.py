# ruff: noqa: INP001  programs, not a package
"""Write ``docker/.env`` from ``.env.example``, with a fresh secret for each name. An existing one is kept."""

from __future__ import annotations

import base64
import os
import secrets
import sys
from pathlib import Path

HERE = Path(__file__).parent


def filled(example: str) -> str:
    """The text with a secret after each ``NAME=``: 32 random bytes, encoded like Airflow's Fernet keys."""
    lines = []
    for line in example.splitlines():
        if line.startswith("#") or not line.endswith("="):
            lines.append(line)
        elif "PASSWORD" in line:
            lines.append(line + secrets.token_hex(32))  # becomes part of a URL
        else:
            lines.append(line + base64.urlsafe_b64encode(secrets.token_bytes(32)).decode())
    return "\n".join([*lines, ""])


def main(target: Path = HERE / ".env") -> None:
    """Write the file, readable by its owner only."""
    try:
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        sys.stdout.write(f"{target} exists already and is kept\n")
        return
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(filled((HERE / ".env.example").read_text(encoding="utf-8")))
    sys.stdout.write(f"wrote {target}\n")


if __name__ == "__main__":
    main()
