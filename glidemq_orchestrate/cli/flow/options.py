"""Arguments and options that several flow commands share."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from glidemq_orchestrate.cli.shell import seconds

EXIT_CODES: Final = """
Exit codes:

0 done; with waiting: the flow completed

1 the flow failed or was cancelled, or the server refused

2 the command line or the flow file is wrong

3 the --timeout passed before the flow ended; the flow continues

130 interrupted; the flow continues
"""

FlowIdArgument = Annotated[
    str, typer.Argument(metavar="FLOW_ID", help="The id of the flow; see `glidemq flow list`.")
]
Request = Annotated[
    str,
    typer.Option(metavar="TEXT", help="Who asks: restarts with the same text begin one generation only."),
]
Generation = Annotated[int | None, typer.Option(help="Only if this is the current generation of the flow.")]
Nodes = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NODE]...", help="The nodes; or choose them by options."),
]
Pattern = Annotated[
    str,
    typer.Option(metavar="TEXT", help="Every node whose name matches this pattern: 'clean-*', 'clean[*]'."),
]
State = Annotated[str, typer.Option(help="Every node in this state, such as failed.")]
Error = Annotated[
    str,
    typer.Option(metavar="TEXT", help="Every node that failed for a reason that matches this pattern."),
]
Wait = Annotated[bool, typer.Option(help="Wait until the flow has ended; the exit code says how it ended.")]
Watch = Annotated[bool, typer.Option(help="In a terminal, show the flow live while waiting.")]
Owned = Annotated[
    str | None,
    typer.Option(
        "--owner", metavar="NAME", help="For whom: cancelled when this command and all other owners vanish."
    ),
]
Lapse = Annotated[
    float | None,
    typer.Option(
        parser=seconds(),
        metavar="SECONDS",
        help="With --owner: how long after it was last heard of an owner is taken for gone; else 300.",
    ),
]
Keep = Annotated[bool, typer.Option("--keep", help="With --owner: let the flow run on then.")]
Timeout = Annotated[
    float | None,
    typer.Option(
        parser=seconds(),
        metavar="SECONDS",
        help="Longest time to wait, then exit code 3. The flow continues.",
    ),
]
