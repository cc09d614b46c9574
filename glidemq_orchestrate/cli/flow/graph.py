"""``glidemq flow graph``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from glidemq_orchestrate.cli.shell import Prefix, Url, print_text, reports_errors
from glidemq_orchestrate.cli.source import Arguments, flow_of, is_source
from glidemq_orchestrate.clients.flows import FlowProducer
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.forms.drawing import FOLD_FROM, dot, mermaid
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX


class Format(StrEnum):
    """The formats of drawings."""

    MERMAID = "mermaid"
    DOT = "dot"


@reports_errors
def graph(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FLOW|FLOW_ID",
            help="A flow file, package.module:function, or the id of a flow on the server.",
        ),
    ],
    arguments: Arguments = None,
    url: Url = None,
    format_: Annotated[
        Format, typer.Option("--format", help="Format: Mermaid for Markdown, DOT for Graphviz.")
    ] = Format.MERMAID,
    fold: Annotated[
        int,
        typer.Option(help="Draw this many nodes or more as one if they differ only by a number; 0: never."),
    ] = FOLD_FROM,
    prefix: Prefix = DEFAULT_PREFIX,
) -> None:
    """Draw a flow as Mermaid or DOT. Colours show the states of a submitted flow.

    Example: glidemq flow graph nightly.yaml --format dot | dot -Tsvg > nightly.svg
    """
    if is_source(source):
        spec = flow_of(source, arguments)
        name, nodes = spec.name, list[Any](check_flow(spec).nodes)
    else:
        with FlowProducer(url, prefix=prefix) as flows:
            flow = flows.get(source)
            name, nodes = flow.status().name, list[Any](flow.nodes())
    drawn = (
        mermaid(nodes, at_least=fold or None)
        if format_ is Format.MERMAID
        else dot(name, nodes, at_least=fold or None)
    )
    print_text(drawn, lines=True, end="")
