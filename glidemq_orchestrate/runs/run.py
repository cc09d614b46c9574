"""OrchestratedRun and AsyncOrchestratedRun: one attempt of a task of an orchestrator that runs a flow."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from glidemq_orchestrate.errors import FailedNode, GlideMQError, WaitTimeout, WorkersMissing
from glidemq_orchestrate.foundation.texts import in_block
from glidemq_orchestrate.runs.course import Course, RunSteps
from glidemq_orchestrate.runs.following import Changes
from glidemq_orchestrate.runs.steps import adrive, drive

if TYPE_CHECKING:
    from glidemq_orchestrate.clients.flows import AsyncFlow, AsyncFlowProducer, Flow, FlowProducer
    from glidemq_orchestrate.flows.spec import FlowSpec
    from glidemq_orchestrate.flows.status import FlowStatus
    from glidemq_orchestrate.foundation.durations import Duration
    from glidemq_orchestrate.runs.steps import TaskLog


class OrchestratedRun(RunSteps):
    """One attempt of a task of an orchestrator that runs a flow. For integrators: both providers use it.

    Create one for each attempt, and another in each process that continues the attempt. ``changes`` does all
    of the work. The other methods are for orchestrators that submit in one process and wait in another.

    An attempt submits the flow, repairs the flow of an earlier attempt, begins a generation, waits for a flow
    of others, or yields to a later attempt: see ``Decision``. The flow is cancelled with its task only if the
    task is its only owner: see ``cancel``.

    Args:
        attempt: The orchestrator's facts about the attempt; see ``CountedAttempt``.
        flow_id: The flow: the same for all attempts of the task. See ``derived_id``.
        owner: The owner of the flow; None: the flow continues after the end of the task. See ``owner_of``.
        on_existing: What to do with an existing flow of this id; None: as the attempt decides.
        require_workers: Whether live workers must serve all queues and have all handlers at the beginning.
        worker_timeout: How long runnable nodes may lack a live worker; then the flow is cancelled. None: no
            limit, but a warning.
        patience: How long the server may be unreachable.
        last_patience: The same while the flow is being cancelled.
        log: The log of the task.
        counts: Whether another owner with this name still counts; then the flow is not cancelled.
        reason: The reason of a cancel, from the exception with which the task ends.

    Example:
        .. code-block:: python

            task = derived_id("mine", run_id, task_id)
            attempt = CountedAttempt("mine", task, run=clears, number=try_number)
            run = OrchestratedRun(attempt=attempt, flow_id=task, owner=owner_of(f"mine {run_id}", LEASE))
            with FlowProducer(url) as producer:
                for change in run.changes(producer, spec):
                    show(change.status)
    """

    __slots__ = ()

    def changes(
        self,
        producer: FlowProducer,
        spec: FlowSpec,
        *,
        timeout: Duration | None = None,
        on_begin: Callable[[Flow], object] = lambda _: None,
        on_poll: Callable[[], object] = lambda: None,
    ) -> Iterator[Changes]:
        """Begin, and yield whenever nodes end. If the flow did not complete, raise after the last yield.

        Generations that others begin are followed too. Ending the iteration early cancels the flow.

        Args:
            producer: A client.
            spec: The flow.
            timeout: Time after which the flow is cancelled; None: no limit.
            on_begin: Called with the flow once it has begun.
            on_poll: Called at least once a second; an exception ends the iteration and cancels the flow.

        Raises:
            FlowFailed, FlowCancelled: The flow has failed or was cancelled.
            WaitTimeout, WorkersMissing: It did not end in time, or lacked workers; it was cancelled.
            Overtaken: A later run of the task has restarted the flow.
            GlideMQError: Any other error; a running flow continues, and the next attempt finds it.
        """

        def read(flow: Flow, names: Sequence[str]) -> Mapping[str, Any]:
            return self.patience(lambda: flow.results(names)) if names else {}

        course = Course(self, producer, spec, timeout, on_begin, on_poll, read)
        try:
            while (change := drive(course.advance())) is not None:
                yield change
        except (WaitTimeout, WorkersMissing) as exc:
            self.end(producer, self.reason(exc))
            raise
        except GlideMQError:
            raise  # the next attempt continues a flow that still runs
        except BaseException as exc:
            self.end(producer, self.reason(exc))
            raise
        finally:
            drive(course.close())

    def begin(self, producer: FlowProducer, spec: FlowSpec) -> Flow:
        """Submit the flow, continue it, or begin a generation. Safe to repeat.

        Raises:
            Overtaken: A later run of the task has restarted the flow.
            GlideMQError: As ``FlowProducer.submit``.
        """
        return drive(self.begin_steps(producer, spec))  # type: ignore[no-any-return]

    def current(self, producer: FlowProducer) -> Flow:
        """The current generation, whichever client began it.

        Raises:
            Overtaken: A later run of the task has restarted the flow.
            FlowNotFound: The flow no longer exists.
        """
        return drive(self.current_steps(producer))  # type: ignore[no-any-return]

    def cancel(self, producer: FlowProducer, reason: str) -> FlowStatus | None:
        """Cancel the generation of this attempt; returns the earlier status, or None if it was not submitted.

        If the attempt has several processes, set ``generation`` first.

        Raises:
            NotOwned: It belongs to a user, another client or another owner, or a later attempt waits for it.
            Superseded: It is no longer the current generation.
            FlowNotFound: There is no such flow.
        """
        return drive(self.cancel_steps(producer, reason))

    def end(self, producer: FlowProducer, reason: str) -> None:
        """``cancel`` for a task that ends anyway: errors are logged, not raised."""
        drive(self.end_steps(producer, reason))

    def shown(self, flow: Flow, status: FlowStatus) -> None:
        """Record that the task has succeeded with a generation in this status."""
        drive(self.note_steps(flow, status, is_shown=True))


class AsyncOrchestratedRun(RunSteps):
    """``OrchestratedRun`` for clients on an event loop; same arguments, same errors."""

    __slots__ = ()

    async def changes(
        self,
        producer: AsyncFlowProducer,
        spec: FlowSpec,
        *,
        timeout: Duration | None = None,  # noqa: ASYNC109  as in OrchestratedRun
        on_begin: Callable[[AsyncFlow], object] = lambda _: None,
        on_poll: Callable[[], object] = lambda: None,
    ) -> AsyncIterator[Changes]:
        """Begin, and yield whenever nodes end. If the flow did not complete, raise after the last yield.

        As ``OrchestratedRun.changes``; ``on_begin`` and ``on_poll`` may be coroutine functions. Await the
        ``results`` of a change. To end early, close the iterator: leaving the loop does not close it.
        """

        async def read(flow: AsyncFlow, names: Sequence[str]) -> Mapping[str, Any]:
            return await adrive(self.patience.steps(lambda: flow.results(names))) if names else {}

        course = Course(self, producer, spec, timeout, on_begin, on_poll, read)
        try:
            while (change := await adrive(course.advance())) is not None:
                yield change
        except (WaitTimeout, WorkersMissing) as exc:
            await self.end(producer, self.reason(exc))
            raise
        except GlideMQError:
            raise
        except BaseException as exc:
            await self.end(producer, self.reason(exc))
            raise
        finally:
            await adrive(course.close())

    async def begin(self, producer: AsyncFlowProducer, spec: FlowSpec) -> AsyncFlow:
        """Submit the flow, continue it, or begin a generation. As in ``OrchestratedRun``."""
        return await adrive(self.begin_steps(producer, spec))

    async def current(self, producer: AsyncFlowProducer) -> AsyncFlow:
        """The current generation, whichever client began it. As in ``OrchestratedRun``."""
        return await adrive(self.current_steps(producer))

    async def cancel(self, producer: AsyncFlowProducer, reason: str) -> FlowStatus | None:
        """Cancel the generation of this attempt. As in ``OrchestratedRun``."""
        return await adrive(self.cancel_steps(producer, reason))

    async def end(self, producer: AsyncFlowProducer, reason: str) -> None:
        """``cancel`` for a task that ends anyway: errors are logged, not raised."""
        await adrive(self.end_steps(producer, reason))

    async def shown(self, flow: AsyncFlow, status: FlowStatus) -> None:
        """Record that the task has succeeded with a generation in this status."""
        await adrive(self.note_steps(flow, status, is_shown=True))


ResultMode = Literal["none", "leaves", "all"]
Result: TypeAlias = ResultMode | Sequence[str]
UPSTREAM: Final = "upstream failed: "
"""The beginning of the reason of a node that could not run because another node had failed."""
MAX_NODES: Final = 3
MAX_LINES: Final = 20
MAX_CHARACTERS: Final = 10_000  # of a line; a traceback has at most 8,000


class ResultsTooLarge(Exception):
    """The results are too large for the database of an orchestrator.

    ``size`` and ``limit`` are bytes of JSON; ``sizes`` maps each node to the bytes of its result.
    """

    def __init__(self, size: int, limit: int, sizes: Mapping[str, int]) -> None:
        self.size, self.limit, self.sizes = size, limit, dict(sizes)
        super().__init__(f"the results are {size:,} bytes of JSON, and the limit is {limit:,}")


def json_size(value: object) -> int:
    """The number of bytes of a value as JSON."""
    return len(json.dumps(value).encode())


def check_size(results: Mapping[str, Any], limit: int) -> None:
    """Refuse results that are too large for the database of an orchestrator.

    Raises:
        ResultsTooLarge: They have more than ``limit`` bytes of JSON.
    """
    if (size := json_size(results)) > limit:
        sizes = {name: json_size(value) for name, value in results.items()}
        raise ResultsTooLarge(size, limit, sizes)


def leaves_of(spec: FlowSpec) -> list[str]:
    """The nodes of a specification without dependents."""
    inner = {str(name) for node in spec.nodes for name in node.after}
    return [node.name for node in spec.nodes if node.name not in inner]


def collect(flow: Flow, result: Result, leaves: Sequence[str] | None = None) -> dict[str, Any] | None:
    """Read the chosen results as ``{node: result}``; None for the mode ``none``.

    Args:
        flow: A flow that has ended.
        result: Which results: of the leaves, of all nodes, of the nodes with these names, or none.
        leaves: Its leaves, if known.
    """
    if result == "none":
        return None
    if result == "all":
        return dict(flow.results())
    if result == "leaves":
        return dict(flow.results(flow.leaves() if leaves is None else leaves))
    return dict(flow.results(result))


def is_cause(node: FailedNode) -> bool:
    """Whether the flow failed because of this node: it failed itself, and its failure is not ignored."""
    return not node.ignored and not node.reason.startswith(UPSTREAM)


def log_failures(
    flow: Flow, failed: Sequence[FailedNode], log: TaskLog, block: Callable[[Iterable[str]], str] = in_block
) -> None:
    """Log the last log lines of the first nodes that are causes of the failure; never fails.

    Args:
        flow: The flow.
        failed: Its nodes that did not complete.
        log: The log of the task.
        block: Joins the lines to one text.
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
