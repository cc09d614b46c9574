"""Every exception that this package raises, as one tree.

There is a class for each reaction that a caller may have. ``retryable``: the same call may succeed later.
``code``: the server's error code, where there is one.

::

    GlideMQError
      ConfigurationError
        ShardsMismatch
        JavaMissing
      InvalidFlow
        CycleError
        DuplicateNode
        UnknownDependency
        FlowTooLarge
      InvalidJob
      CodecError
        EncodeError
          PayloadTooLarge
        DecodeError
      TransportError
        ConnectionFailed
        OutcomeUnknown
        NotConfirmed
        ServerBusy
        ServerTooOld
      LibraryError
        LibraryMissing
        LibraryVersionMismatch
      ProtocolError
      StateError
        JobNotFound
        JobSkipped
        JobStateConflict
        HasDependents
        QueueInUse
        FlowNotFound
        FlowConflict
        FlowExpired
        Superseded
        GenerationTaken
        FlowEnded
        FlowIncomplete
        NodeExists
        NodeNotFound
        NodeNotEnded
        NodeNotRepeatable
        ResultRemoved
        ChildrenFailed
        LeaseLost
        ScheduleNotFound
        ScheduleBusy
        EventsLost
      WorkersMissing
        QueueNotServed
        HandlerNotFound
      JobFailed
      FlowFailed
      FlowCancelled
      WaitTimeout
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

E = TypeVar("E", bound=BaseException)


class GlideMQError(Exception):
    """Base of every error that this package raises."""

    retryable: ClassVar[bool] = False
    code: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by attributes, since the constructors take other arguments than ``args``."""
        return restored, (type(self), self.args, self.__dict__)


def restored(kind: type[E], args: tuple[Any, ...], attributes: dict[str, Any]) -> E:
    """Rebuild a pickled exception without calling its constructor."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class ConfigurationError(GlideMQError, ValueError):
    """A setting is wrong: a URL, a name, an option. Nothing was sent."""


class ShardsMismatch(ConfigurationError):
    """A queue never had the stated number of shards; nothing was changed.

    Attributes:
        queue: The queue.
        stated: The number that was stated.
        stored: The number that it has; 0 for none.
    """

    def __init__(self, queue: str, stated: int, stored: int) -> None:
        self.queue, self.stated, self.stored = queue, stated, stored
        has = f"has {stored} shards" if stored else "is in use without shards"
        fix = f"add shards with: glidemq queue shards {queue} {stated}"
        if stored > stated:
            fix = f"leave the number out, or state {stored}. Shards cannot be removed"
        super().__init__(f"queue {queue} {has}, not {stated}. Fix: {fix}")


class JavaMissing(ConfigurationError):
    """Spark needs Java 17 or newer, and none was found."""


class InvalidFlow(GlideMQError, ValueError):
    """The flow is not valid. Nothing was sent."""


class CycleError(InvalidFlow):
    """The dependencies form a cycle; ``cycle`` lists its nodes in order, each once."""

    def __init__(self, cycle: Sequence[str]) -> None:
        self.cycle = list(cycle)
        super().__init__(f"the flow has a cycle: {' -> '.join([*self.cycle, *self.cycle[:1]])}")


class DuplicateNode(InvalidFlow):
    """Two nodes have the same name; ``names`` lists every such name."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        super().__init__(f"node names must be unique; used more than once: {', '.join(self.names)}")


class UnknownDependency(InvalidFlow):
    """A node waits for a node that does not exist; ``missing`` maps the node to the unknown names."""

    def __init__(self, missing: Mapping[str, Sequence[str]], advice: str = "") -> None:
        self.missing = {node: list(names) for node, names in missing.items()}
        unknown = "; ".join(f"{node} waits for {', '.join(names)}" for node, names in self.missing.items())
        super().__init__(f"unknown dependencies: {unknown}{advice}")


class FlowTooLarge(InvalidFlow):
    """The flow has more nodes than one flow may have."""


class InvalidJob(GlideMQError, ValueError):
    """A job's name, id or options cannot be sent. Nothing was sent."""


class CodecError(GlideMQError, ValueError):
    """A payload cannot be encoded or decoded."""


class EncodeError(CodecError):
    """The value is not JSON; ``where`` names the job, node or field. Nothing was sent."""

    def __init__(self, message: str, *, where: str = "") -> None:
        self.where = where
        super().__init__(message)


class PayloadTooLarge(EncodeError):
    """The value is JSON but longer than the limit once encoded. Nothing was sent."""


class DecodeError(CodecError):
    """A stored payload is not JSON. The text itself is not part of the message."""


class TransportError(GlideMQError):
    """The server could not carry out the call, or could not confirm that it did."""

    retryable = True


class ConnectionFailed(TransportError):
    """No connection to the server: nothing was sent."""


class OutcomeUnknown(TransportError):
    """The connection broke after sending: the call may or may not have been carried out."""


class NotConfirmed(TransportError):
    """Everything was written, but did not reach the disk or the replicas that ``confirm`` requires in time.

    The write stands, but a failover or a crash may still lose it. Repeating the call waits again.
    """


class ServerBusy(TransportError):
    """The server refuses the call for now: it is loading, out of memory or read-only."""


class ServerTooOld(TransportError):
    """The server has no functions; ``version`` is the one it reports. Needs Valkey 7.2 or Redis 7.0."""

    retryable = False

    def __init__(self, product: str, version: str) -> None:
        self.product, self.version = product, version
        super().__init__(
            f"the server is {product} {version}; Valkey 7.2 or Redis 7.0 or newer is needed. "
            "Fix: point --url (or GLIDEMQ_URL) at a newer server, or start one with `glidemq server`"
        )


class LibraryError(GlideMQError):
    """A function library on the server is missing or unsuitable."""


class LibraryMissing(LibraryError):
    """The server does not have the function; loading the library fixes it."""

    retryable = True


class LibraryVersionMismatch(LibraryError):
    """The server has version ``loaded`` of the library; this client needs ``required``."""

    def __init__(self, name: str, loaded: str, required: str) -> None:
        self.loaded, self.required = loaded, required
        super().__init__(f"the server has library {name} version {loaded}, this client needs {required}")


class ProtocolError(GlideMQError):
    """The server's reply does not match the protocol: a bug, a foreign library, a key of another type."""

    is_placed = False


class StateError(GlideMQError):
    """The state of the job, flow, queue or schedule does not allow the call. Nothing was changed."""


class JobNotFound(StateError):
    """No job with this id in this queue."""


class JobSkipped(StateError):
    """The job was not added: its deduplication id is in use by job ``existing``."""

    def __init__(self, queue: str, deduplication_id: str, existing: str | None) -> None:
        self.deduplication_id, self.existing = deduplication_id, existing
        super().__init__(
            f"nothing was added to queue {queue}: job {existing or 'of another producer'} "
            f"has deduplication id {deduplication_id!r}"
        )


class JobStateConflict(StateError):
    """The state of the job, ``actual``, does not allow the call."""

    def __init__(self, job_id: str, actual: str, problem: str) -> None:
        self.job_id, self.actual = job_id, actual
        super().__init__(f"job {job_id} {problem}; nothing was changed")


class HasDependents(StateError):
    """Job ``dependent`` waits for job ``job_id``, and would wait for ever."""

    def __init__(
        self, job_id: str, dependent: str, queue: str | None = None, *, changed: str = "nothing was changed"
    ) -> None:
        self.job_id, self.dependent = job_id, dependent
        where = "" if queue is None else f" of queue {queue}"
        fix = "cancel it too, with cascade=True" if queue is None else "cancel it first"
        super().__init__(
            f"job {dependent}{where} waits for job {job_id}, and would wait for ever; {changed}. Fix: {fix}"
        )


class QueueInUse(StateError):
    """Workers are running ``active`` jobs of the queue."""

    def __init__(self, queue: str, active: int) -> None:
        self.active = active
        super().__init__(
            f"{active} jobs of queue {queue} are active; nothing was removed. "
            "Fix: stop its workers, or use force"
        )


class FlowNotFound(StateError):
    """No flow with this id on this server."""


class FlowConflict(StateError):
    """Another flow has this id. Nothing was changed.

    Attributes:
        differences: What differs, by node name, for at most 20 nodes: ``("new",)``, ``("gone",)``, or any of
            ``queue``, ``job``, ``after``, ``data``, ``options``, ``elements`` (of an array) and ``policies``.
            Empty if the flows were not compared or no node differs.
        fields: What differs in the flows themselves: any of ``name``, ``deadline`` and ``fail_fast``. Labels
            and retention are not compared.
    """

    def __init__(
        self,
        text: str,
        differences: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
        fields: Sequence[str] = (),
    ) -> None:
        self.differences, self.fields = dict(differences), tuple(fields)
        super().__init__(text)


class FlowExpired(StateError):
    """The retention of the flow has removed its jobs and results. Its status can still be read."""


class Superseded(StateError):
    """A newer generation of the flow has begun. This one can no longer be changed; its results were removed.

    Get the flow by its id to continue with the current generation.
    """


class GenerationTaken(StateError):
    """Another caller began the next generation of the flow first. Nothing was changed; repeat the call."""

    retryable = True


class FlowEnded(StateError):
    """The flow has failed or was cancelled, or is about to: it cannot be changed. Fix: retry it first."""


class FlowIncomplete(StateError):
    """Staged nodes were swept before the flow could start. Fix: submit it again."""

    retryable = True


class NodeExists(StateError):
    """The flow already has a node of this name. Nothing was added."""


class NodeNotFound(StateError):
    """The flow has no node of this name."""


class NodeNotEnded(StateError):
    """The node has not ended, so it cannot run again. Nothing was changed."""


class NodeNotRepeatable(StateError):
    """The node cannot be rerun alone: its job was removed, or it has added nodes.

    Nothing was changed. To rerun nodes that have added nodes, use ``Flow.restart(nodes=[...])``.
    """


class ResultRemoved(StateError):
    """Requested results were removed with their jobs; ``names`` lists the nodes or jobs.

    The other results can be read by name. ``rerun`` runs a node again.
    """

    def __init__(self, what: str, names: Sequence[str]) -> None:
        self.names = list(names)
        shown = ", ".join(self.names[:5]) + (" ..." if len(self.names) > 5 else "")
        super().__init__(
            f"{what}: the jobs of {shown} were removed, and their results with them. "
            "Fix: rerun them, or restart the flow; a retry runs nothing of a flow that has completed"
        )


class ChildrenFailed(StateError):
    """Some children of a job ended without a result. Nothing was changed.

    Attributes:
        failed: The reason by child (a ``JobRef``): why it failed, or that it was removed.
        values: The results of the other children.
    """

    def __init__(self, job_id: str, failed: Mapping[Any, str], values: Mapping[Any, Any]) -> None:
        self.failed, self.values = dict(failed), dict(values)
        shown = "; ".join(f"{ref.id} of queue {ref.queue}: {why}" for ref, why in [*failed.items()][:3])
        more = f"; and {len(failed) - 3} more" if len(failed) > 3 else ""
        super().__init__(f"children of job {job_id} have no result: {shown}{more}")


class LeaseLost(StateError):
    """The attempt no longer owns its job: another worker took the job over, or it was cancelled."""


class ScheduleNotFound(StateError):
    """No schedule with this name in this queue."""


class ScheduleBusy(StateError):
    """Workers repeatedly fired or changed the schedule. A repeat may succeed."""

    retryable = True


class EventsLost(StateError):
    """The event stream has a gap: events were trimmed before they were read."""


class WorkersMissing(GlideMQError):
    """The flow needs workers that are not running. Nothing was sent."""

    retryable = True


class QueueNotServed(WorkersMissing):
    """No live worker serves these ``queues``."""

    def __init__(self, queues: Sequence[str]) -> None:
        self.queues = list(queues)
        options = " ".join(f"--queue {queue}" for queue in self.queues)
        super().__init__(
            f"no worker serves {_count('queue', self.queues)}. Fix: glidemq worker --app MODULE {options}"
        )


class HandlerNotFound(WorkersMissing):
    """Workers serve the queue, but none has a handler for the job; ``missing`` maps queue to job names."""

    def __init__(
        self, missing: Mapping[str, Sequence[str]], known: Mapping[str, Sequence[str]], problem: str = ""
    ) -> None:
        self.missing = {queue: list(jobs) for queue, jobs in missing.items()}
        self.known = {queue: list(jobs) for queue, jobs in known.items()}
        lacking = "; ".join(
            f"queue {queue}: no handler for {_count('job', jobs)} "
            f"(known: {', '.join(known[queue]) or 'none'})"
            for queue, jobs in self.missing.items()
        )
        fix = "Fix: register it with @handlers.handler in the worker's --app module"
        super().__init__(problem or f"{lacking}. {fix}")


class JobFailed(GlideMQError):
    """The awaited job has failed permanently; ``reason`` is why, possibly ``revoked`` or ``expired``."""

    def __init__(self, job_id: str, reason: str) -> None:
        self.job_id, self.reason = job_id, reason
        super().__init__(f"job {job_id} failed: {reason}")


@dataclass(frozen=True, slots=True)
class FailedNode:
    """A node that did not complete: its name, job id, reason and number of attempts.

    ``ignored``: the flow does not fail because of it, since its ``on_failure`` is ``ignore``.
    """

    name: str
    job_id: str
    reason: str
    attempts: int
    ignored: bool = False


class FlowFailed(GlideMQError):
    """The flow ended as failed; ``failed`` lists its failed nodes: causes, ignored failures, consequences."""

    def __init__(self, flow_id: str, failed: Sequence[FailedNode]) -> None:
        self.flow_id, self.failed = flow_id, list(failed)
        own = [node for node in self.failed if not node.reason.startswith("upstream failed: ")]
        causes = [node for node in own if not node.ignored] or own
        shown = "; ".join(f"{node.name}: {node.reason}" for node in causes[:3] or self.failed[:1])
        more = f" (and {len(causes) - 3} more)" if len(causes) > 3 else ""
        super().__init__(f"flow {flow_id} failed: {shown}{more}")


class FlowCancelled(GlideMQError):
    """The flow was cancelled; the message holds the reason."""

    def __init__(self, flow_id: str, reason: str) -> None:
        self.flow_id, self.reason = flow_id, reason
        super().__init__(f"flow {flow_id} was cancelled: {reason or 'no reason given'}")


class WaitTimeout(GlideMQError):
    """The awaited event did not happen in time; it may still happen."""

    retryable = True


def _count(noun: str, names: Sequence[str]) -> str:
    return f"{noun}{'s' if len(names) != 1 else ''} {', '.join(names)}"
