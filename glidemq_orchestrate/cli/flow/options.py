"""Arguments and options that several flow commands share."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from glidemq_orchestrate.cli.completion import flow_ids, node_names
from glidemq_orchestrate.cli.shell import seconds

EXIT_CODES: Final = """
Exit codes:

0 success; after waiting: the flow completed

1 the flow failed or was cancelled, or the server refused the request

2 the command line or the flow file is invalid

3 the flow did not end within --timeout; it continues

4 the server cannot be reached, or cannot serve the request now; a repeat may succeed

130 interrupted; the flow continues
"""

FlowIdArgument = Annotated[
    str,
    typer.Argument(
        metavar="FLOW_ID", help="Id of the flow; see `glidemq flow list`.", autocompletion=flow_ids
    ),
]
IdempotencyKey = Annotated[
    str,
    typer.Option(
        metavar="TEXT", help="Idempotency key: a repeat with the same text begins no new generation."
    ),
]
GenerationOption = Annotated[
    int | None, typer.Option(help="Refuse unless this is the current generation of the flow.")
]
Nodes = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NODE]...",
        help="The nodes, or elements of arrays: 'clean[17]'. Or select nodes with options.",
        autocompletion=node_names,
    ),
]
Pattern = Annotated[
    str,
    typer.Option(
        metavar="TEXT", help="Select nodes whose name matches this pattern, such as 'clean-*' or 'clean[*]'."
    ),
]
State = Annotated[str, typer.Option(help="Select nodes in this state, such as failed.")]
Error = Annotated[
    str,
    typer.Option(metavar="TEXT", help="Select nodes that failed with a reason that matches this pattern."),
]
WaitForEnd = Annotated[
    bool, typer.Option(help="Wait until the flow has ended; the exit code reflects its outcome.")
]
WatchLive = Annotated[bool, typer.Option(help="Show the flow live while waiting, in a terminal.")]
Owned = Annotated[
    str | None,
    typer.Option(
        "--owner",
        metavar="NAME",
        help="Own the flow: it is cancelled when all its owners are considered dead.",
    ),
]
Lease = Annotated[
    float | None,
    typer.Option(
        parser=seconds(),
        metavar="DURATION",
        help="With --owner: consider the owner dead after this long without a renewal; default: 300.",
    ),
]
KeepFlow = Annotated[
    bool,
    typer.Option(
        "--keep", help="With --owner: let the flow continue without owners, instead of cancelling it."
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        parser=seconds(),
        metavar="DURATION",
        help="Wait at most this long; then exit with code 3 while the flow continues.",
    ),
]
