"""A file of settings for ``spark-submit``: in its command line every user of the machine could read them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write_properties(conf: Mapping[str, str], folder: Path) -> Path:
    """Write settings to a file of a folder that only this user can read; its path."""
    file = folder / "spark.conf"
    lines = (f"{_escaped(key)} {_escaped(value)}\n" for key, value in conf.items())
    file.write_text("".join(lines), encoding="ascii")
    return file


def _escaped(text: str) -> str:
    """A key or a value as ``java.util.Properties`` reads it (its method ``load``)."""
    units = text.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[place : place + 2], "big") for place in range(0, len(units), 2)]
    return "".join(chr(code) if chr(code).isalnum() and code < 127 else f"\\u{code:04x}" for code in codes)
