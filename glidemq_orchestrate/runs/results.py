"""Results of a flow for the database of an orchestrator, within its bounds; and why nodes have failed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from glidemq_orchestrate.errors import FailedNode, GlideMQError
from glidemq_orchestrate.foundation.names import in_block

if TYPE_CHECKING:
    from glidemq_orchestrate.clients.flows import Flow
    from glidemq_orchestrate.flows.spec import FlowSpec
    from glidemq_orchestrate.runs.patience import TaskLog

ResultMode = Literal["none", "leaves", "all"]
Result: TypeAlias = ResultMode | Sequence[str]
UPSTREAM: Final = "upstream failed: "
"""How the reason of a node begins that could not run because another one had failed."""
MAX_NODES: Final = 3
MAX_LINES: Final = 20
MAX_CHARACTERS: Final = 10_000  # of a line; a traceback has at most 8,000


class ResultsTooLarge(Exception):
    """The results are larger than the database of an orchestrator should hold.

    ``size`` and ``limit`` are bytes of JSON; ``sizes`` maps each node to the bytes of its result.
    """

    def __init__(self, size: int, limit: int, sizes: Mapping[str, int]) -> None:
        self.size, self.limit, self.sizes = size, limit, dict(sizes)
        super().__init__(f"the results are {size:,} bytes of JSON, and the limit is {limit:,}")


def json_size(value: object) -> int:
    """How many bytes a value has as JSON."""
    return len(json.dumps(value).encode())


def check_size(results: Mapping[str, Any], limit: int) -> None:
    """Refuse what is too large for the database of an orchestrator.

    Raises:
        ResultsTooLarge: It has more than ``limit`` bytes of JSON.
    """
    if (size := json_size(results)) > limit:
        sizes = {name: json_size(value) for name, value in results.items()}
        raise ResultsTooLarge(size, limit, sizes)


def leaves_of(spec: FlowSpec) -> list[str]:
    """The nodes of a specification that no other waits for."""
    inner = {str(name) for node in spec.nodes for name in node.after}
    return [node.name for node in spec.nodes if node.name not in inner]


def collect(flow: Flow, result: Result, leaves: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Read results as ``{node: result}``, and no others; None for the mode ``none``.

    Args:
        flow: A flow that has ended.
        result: Which: those of the leaves, of all nodes, of the nodes with these names, or none.
        leaves: Its leaves, where they are known.
    """
    if result == "none":
        return None
    if result == "all":
        return dict(flow.results())
    if result == "leaves":
        return dict(flow.results(flow.leaves() if leaves is None else leaves))
    return dict(flow.results(result))


def is_cause(node: FailedNode) -> bool:
    """Whether a node failed by itself, and not because of another one."""
    return not node.reason.startswith(UPSTREAM)


def log_failures(
    flow: Flow, failed: Sequence[FailedNode], log: TaskLog, block: Callable[[Iterable[str]], str] = in_block
) -> None:
    """Log the last lines that the first nodes to fail by themselves have logged; never fails.

    Args:
        flow: The flow.
        failed: Its nodes that did not complete.
        log: The log of the task.
        block: Makes one text of the lines.
    """
    causes = [node.name for node in failed if is_cause(node)]
    try:
        logs = flow.logs(dict.fromkeys(causes[:MAX_NODES], -MAX_LINES), limit=MAX_LINES)
        for name, found in logs.items():
            if found.lines:
                log.error(
                    "Node %s had logged:\n%s", name, block(line[:MAX_CHARACTERS] for line in found.lines)
                )
    except GlideMQError as exc:
        log.warning("The logs of the nodes that failed cannot be read: %s", exc)
