"""The shard of a flow: a flow with nodes in queues with shards has all of them in shards of one number.

The number follows from the id of the flow, and afterwards from its home, so it stays the same when a queue
gets more shards. Specifications and fingerprints name the queues; rows and jobs name the shards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import replace

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.flows.checked import CheckedFlow, CheckedNode
from glidemq_orchestrate.flows.home import home_of
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.shards import Shards, read_shards, shard_for, shard_name, split_shard
from glidemq_orchestrate.wire.call import Op, ask, ask_all
from glidemq_orchestrate.wire.keys import QueueKeys

Spread = Mapping[str, Shards]
"""The queues of a flow that have shards, by name."""


def choose_shard(prefix: str, flow_id: str, spread: Spread, clock: Clock) -> Op[int | None]:
    """The number of the shards for a flow: that of its home if it exists; None: its home has no shards."""
    if not spread:
        return None
    home = yield from ask(home_of(prefix, flow_id))
    if home is not None:
        return split_shard(home.queue)[1]
    count = min(shards.count(clock.now_ms()) for shards in spread.values())
    return shard_for(flow_id, count) if count else None


def in_shard(flow: CheckedFlow, spread: Spread, index: int | None) -> CheckedFlow:
    """The flow with its nodes in the shards of this number, as far as their queues have shards.

    Raises:
        ConfigurationError: A queue has shards, but not this one.
    """
    names = _names(spread, index)
    if not names:
        return flow
    nodes = tuple(_moved(flow.nodes, names))
    home = Counter(node.queue for node in nodes).most_common(1)[0][0]
    return replace(flow, nodes=nodes, queue_of={node.name: node.queue for node in nodes}, home=home)


def read_spread(prefix: str, queues: Iterable[str]) -> Op[dict[str, Shards]]:
    """The queues that have shards, by name."""
    names = dict.fromkeys(queues)
    found = yield from ask_all([read_shards(QueueKeys(prefix, queue)) for queue in names])
    return {shards.queue.queue: shards for shards in found if shards.total}


def beside(home: QueueKeys, nodes: Iterable[CheckedNode]) -> Op[list[CheckedNode]]:
    """Nodes to be added to a flow, in the shards of the same number as its home.

    Raises:
        ConfigurationError: A queue has shards, but not this one.
    """
    added, (_, index) = list(nodes), split_shard(home.queue)
    if index is None:
        return added
    spread = yield from read_spread(home.prefix, (node.queue for node in added))
    return list(_moved(added, _names(spread, index)))


def _names(spread: Spread, index: int | None) -> dict[str, str]:
    """The shards of this number, by queue."""
    if index is None:
        return {}
    for queue, shards in spread.items():
        if index >= shards.total:
            raise ConfigurationError(
                f"the flow runs in the shards of number {index}, and queue {queue} has only "
                f"{shards.total} shards. Fix: glidemq queue shards {queue} {index + 1}, or more"
            )
    return {queue: shard_name(queue, index) for queue in spread}


def _moved(nodes: Iterable[CheckedNode], names: Mapping[str, str]) -> Iterable[CheckedNode]:
    for node in nodes:
        if node.queue in names:
            node = copy(node)  # noqa: PLW2901  the caller may need the other ones again
            node.queue = names[node.queue]
        yield node
