"""``glidemq doctor``: checks of a server."""

from __future__ import annotations

from dataclasses import asdict

import typer
from rich.table import Table
from rich.text import Text

from glidemq_orchestrate.cli.shell import AsJson, Prefix, Url, console, print_json, reports_errors
from glidemq_orchestrate.clients.doctor import Finding, Verdict, examine
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
