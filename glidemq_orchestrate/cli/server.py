"""Commands about a server: ``glidemq doctor`` and ``glidemq library``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from glidemq_orchestrate.cli.shell import AsJson, Prefix, Url, console, print_json, print_text, reports_errors
from glidemq_orchestrate.clients.servers import Finding, Libraries, LibraryStatus, Verdict, examine, source
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX

STYLES = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.FAILED: "bold red"}


@reports_errors
def doctor(url: Url = None, prefix: Prefix = DEFAULT_PREFIX, as_json: AsJson = False) -> None:
    """Check the server (each primary of a cluster) and give advice. Exit code 1 if a check fails."""
    found = examine(url, prefix=prefix)
    if as_json:
        print_json([asdict(finding) for finding in found])
    else:
        for server in dict.fromkeys(finding.server for finding in found):
            console.print(_table(server, [finding for finding in found if finding.server == server]))
    if any(finding.verdict is Verdict.FAILED for finding in found):
        raise typer.Exit(1)


def _table(server: str, found: list[Finding]) -> Table:
    table = Table(title=Text(server), box=None, padding=(0, 2, 0, 0), title_justify="left")
    for column in ("check", "", "found", "advice"):
        table.add_column(column)
    for finding in found:
        verdict = Text(finding.verdict, STYLES[finding.verdict])
        table.add_row(finding.check, verdict, Text(finding.found), Text(finding.advice))
    return table


library_app = typer.Typer(
    name="library", help="Show and load the server's function libraries.", no_args_is_help=True
)


@library_app.command("status")
@reports_errors
def library_status(url: Url = None, as_json: AsJson = False) -> None:
    """Show the libraries of the server (of each primary of a cluster), and whether they are ours."""
    with Libraries(url) as libraries:
        _show_libraries(libraries.status(), as_json=as_json)


@library_app.command("load")
@reports_errors
def library_load(
    url: Url = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace libraries that are not ours, too.")
    ] = False,
) -> None:
    """Load missing libraries, on every primary of a cluster. Exit code 1 if a foreign library was kept."""
    with Libraries(url) as libraries:
        _show_libraries(libraries.load(replace=replace), as_json=False)


@library_app.command("print")
@reports_errors
def library_print(
    name: Annotated[str, typer.Argument(help="glidemq or glidemq_orchestrate.")] = "glidemq",
) -> None:
    """Write the source of a library to standard output."""
    print_text(source(name), lines=True, end="")


def _show_libraries(found: dict[str, list[LibraryStatus]], *, as_json: bool) -> None:
    rows = [{"server": server, **asdict(status)} for server, statuses in found.items() for status in statuses]
    if as_json:
        print_json(rows)
        return
    words = {True: "ours", False: "not ours"}
    for row in rows:
        state = f"{words[row['ours']]}, version {row['version'] or 'unknown'}"
        state += f", sha256 {row['sha256']}" if row["sha256"] else ""
        line = f"{row['server']}  {row['name']}: {state if row['loaded'] else 'not loaded'}"
        print_text(line)
