"""Hooks of MkDocs: pages that stand outside ``docs/``, and links that leave it."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

import typer
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click
from typer.main import get_command

from glidemq_orchestrate.cli import app

ROOT: Final = Path(__file__).parents[2]
# Files outside docs/ that are pages of the site.
INCLUDED: Final = {
    "providers/airflow/README.md": "reference/airflow.md",
    "providers/dagster/README.md": "reference/dagster.md",
    "docker/README.md": "how-to/containers.md",
    "SECURITY.md": "explanation/security.md",
    "CHANGELOG.md": "reference/changelog.md",
}
COMMANDS: Final = "reference/command-line.md"
_LINK: Final = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)#\s]+)((?:#[^)]*)?\))")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that stand outside ``docs/``."""
    for source, page in INCLUDED.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    files.append(File.generated(config, COMMANDS, content=_command_line()))
    return files


def _command_line() -> str:
    """The page on the command line, from its help texts."""
    command = get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="glidemq")
    return text.replace("# `glidemq`", "# The command line", 1)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links to the page of the site; a file that is no page is named instead."""
    here = page.file.src_uri
    source = next((path for path, uri in INCLUDED.items() if uri == here), f"docs/{here}")

    def pointed(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        uri = INCLUDED.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else None)
        if target == "README.md":
            uri = "index.md"
        if uri is None:
            return f"]({'#' if not match[3].startswith('#') else ''}{match[3]}"
        return match[1] + posixpath.relpath(uri, posixpath.dirname(here) or ".") + match[3]

    return _LINK.sub(pointed, markdown)
