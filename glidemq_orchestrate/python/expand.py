"""The handler of ``python.expand`` jobs: adds a node for each item of lists that are known only at run time.

The payload of such a node is::

    {"template": a node as in a flow file, "over": {"month": None}, "into": "arguments" | "fields",
     "inputs": [{"node": "list", "path": [...], "to": ["over", "month"]}], "before": ["report"]}

``inputs`` are as in ``worker.handlers.named_call``. The nodes are ``name[0]``, ``name[1]``, ... of the
template, or with ``"array": true`` one array ``name[*]``, of which ``max_running`` elements run at once. The
nodes in ``before`` wait for them too, and receive their results. Without items the node is skipped.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.flows.pattern import ALL, ARGUMENTS, expand, expand_to_array
from glidemq_orchestrate.flows.spec import ArrayNode, FlowNode, FlowSpec
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.handler import Handlers
from glidemq_orchestrate.worker.handlers.named_call import InvalidCall, put_inputs, results_for
from glidemq_orchestrate.worker.handlers.signals import Skip

JOB_NAME: Final = "python.expand"
_FIELDS: Final = frozenset({"template", "over", "into", "inputs", "before", "array", "max_running"})

handlers = Handlers()


@handlers.handler(JOB_NAME)
def run_expansion(ctx: Context) -> dict[str, int]:
    """Add the nodes; returns how many there are, or how many elements. Another attempt adds the same nodes.

    Raises:
        InvalidCall: The payload is invalid, a value in ``over`` is no list, or there are too many items.
        Skip: There are no items.
    """
    title, data = f"expansion {ctx.node}", ctx.data
    if not ctx.flow or not isinstance(data, dict) or not _FIELDS.issuperset(data):
        raise InvalidCall(f"{title}: a {JOB_NAME} job needs template, over and into, and to be in a flow")
    filled: dict[str, Any] = {"over": data.get("over")}
    put_inputs(title, filled, data.get("inputs"), results_for(ctx, data.get("inputs")))
    try:
        template = FlowSpec.from_dict({"name": "template", "nodes": [data.get("template")]}).nodes[0]
        template = replace(template, after=_needed(ctx, template, data))
        if data.get("array"):
            nodes = expand_to_array(template, filled["over"], str(data["into"]), data.get("max_running"))
        else:
            nodes = expand(template, filled["over"], str(data["into"]))
    except (GlideMQError, KeyError, TypeError) as exc:
        raise InvalidCall(f"{title}: {exc}") from exc
    if not nodes:
        raise Skip("the list to expand over is empty")
    before: Any = data.get("before") or ()
    ctx.flow.add_nodes(nodes, before=[str(name) for name in before])
    return {"nodes": sum(len(node.over) if isinstance(node, ArrayNode) else 1 for node in nodes)}


def _needed(ctx: Context, template: FlowNode, data: dict[str, Any]) -> list[str]:
    """The nodes whose results the new nodes receive: named by a call, or all that a handler may read."""
    if data["into"] != ARGUMENTS or not isinstance(template.data, dict):
        return list(ctx.inputs)
    inputs: Any = template.data.get("inputs") or ()
    named = {str(one["node"]) for one in inputs}
    lists = tuple(f"{name.removesuffix(ALL)}[" for name in named if name.endswith(ALL))
    return [name for name in ctx.inputs if name in named or (lists and name.startswith(lists))]
