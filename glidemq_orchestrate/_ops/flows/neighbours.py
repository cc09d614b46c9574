"""Which queues have flows in common, and in which of them a flow is at home.

A flow is moved on by whoever supervises its home, and quickly only where the other queues are looked after as
well. So the submission links home and queues to each other. Whoever has to do with one of them finds the
others, also where its own part of a flow has not begun. The links are sets, in the slots of their queues. A
repeat writes them again, and a supervisor removes them when neither queue is the home of a flow any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from glidemq_orchestrate._protocol.flows import claim as claims
from glidemq_orchestrate._protocol.worker import supervision as calls
from glidemq_orchestrate._protocol.worker import workers
from glidemq_orchestrate.errors import GlideMQError
from glidemq_orchestrate.flows.checked import CheckedFlow
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.wire.call import Call, Op, ask, ask_all, ask_each
from glidemq_orchestrate.wire.keys import QueueKeys

MAX: Final = 100


def link(home: QueueKeys, queues: Iterable[str]) -> Op[None]:
    """Link a home to the queues of a flow, and each of them to the home. Repeatable."""
    others = [QueueKeys(home.prefix, name) for name in sorted(set(queues) - {home.queue})]
    if others:
        links = [calls.link(home, [other.queue for other in others])]
        yield from ask_all([*links, *(calls.link(other, [home.queue]) for other in others)])


def choose_home(prefix: str, flow: CheckedFlow, flow_id: str, clock: Clock) -> Op[str]:
    """The queue in which a flow is at home: where it is already, or where a submission has begun.

    Else, of the queues that workers of ours serve, or of all if there is none, the one with most nodes; of
    equals the first. Workers of ours look after a home; those of Node do not.
    """
    if len(flow.queues) == 1:
        return flow.home
    now_ms = clock.now_ms()
    asking: list[Call[Any]] = [claims.claimed(prefix, flow_id)]
    asking += [workers.live_workers(QueueKeys(prefix, queue), now_ms) for queue in flow.queues]
    claimed, *lives = yield from ask_each(asking)
    if isinstance(claimed, GlideMQError):
        raise claimed
    if claimed in flow.queues:
        return str(claimed)
    # One that may not be looked at is not served by what we know.
    served = {
        queue
        for queue, live in zip(flow.queues, lives, strict=True)
        if live and not isinstance(live, GlideMQError)
    }
    counts = Counter(queue for queue in flow.queue_of.values() if not served or queue in served)
    chosen = QueueKeys(prefix, counts.most_common(1)[0][0])
    # Of two submissions of a flow at once, which may see other workers, the second follows the first.
    claiming: list[Call[Any]] = [claims.claim(chosen, flow_id), claims.claimed(prefix, flow_id)]
    _, owner = yield from ask_all(claiming)
    return str(owner) if owner in flow.queues else chosen.queue


def around(queue: QueueKeys) -> Op[list[QueueKeys]]:
    """The other queues to look after with a queue: the homes of its flows, and the queues of these homes.

    At most ``MAX``, the first by name.
    """
    near = yield from ask(calls.linked(queue))
    if not near:
        return []
    beside = [QueueKeys(queue.prefix, name) for name in sorted(near)[:MAX]]
    found = set(near)
    for reply in (yield from ask_each([calls.linked(other) for other in beside])):
        if not isinstance(reply, GlideMQError):  # of a queue that is not for us
            found |= reply
    return [QueueKeys(queue.prefix, name) for name in sorted(found - {queue.queue})[:MAX]]


def unlink(queue: QueueKeys) -> Op[None]:
    """Remove the links of a queue to those with which it has no flow any more. Repeatable."""
    near = [QueueKeys(queue.prefix, name) for name in sorted((yield from ask(calls.linked(queue))))][:MAX]
    if not near or (yield from ask(claims.is_home(queue))):
        return
    are_homes = yield from ask_each([claims.is_home(other) for other in near])
    for other, is_home in zip(near, are_homes, strict=True):
        if is_home is not False:  # or it may not be looked at
            continue
        yield from ask_all([calls.unlink(queue, other.queue), calls.unlink(other, queue.queue)])
        # A submission since the check has written the links before.
        if any((yield from ask_all([claims.is_home(queue), claims.is_home(other)]))):
            yield from ask_all([calls.link(queue, [other.queue]), calls.link(other, [queue.queue])])
