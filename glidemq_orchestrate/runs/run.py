"""OrchestratedRun and AsyncOrchestratedRun: one attempt of a task of an orchestrator that runs a flow."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from glidemq_orchestrate.errors import FailedNode, GlideMQError, WaitTimeout, WorkersMissing
from glidemq_orchestrate.foundation.names import in_block
from glidemq_orchestrate.runs.course import Course, RunSteps
from glidemq_orchestrate.runs.following import Changes
from glidemq_orchestrate.runs.steps import adrive, drive

if TYPE_CHECKING:
    from glidemq_orchestrate.clients.flows import AsyncFlow, AsyncFlowProducer, Flow, FlowProducer
    from glidemq_orchestrate.flows.spec import FlowSpec
    from glidemq_orchestrate.flows.status import FlowStatus
    from glidemq_orchestrate.foundation.durations import Duration
    from glidemq_orchestrate.runs.steps import TaskLog
    from glidemq_orchestrate.wire.codec import Json


class OrchestratedRun(RunSteps):
    """One attempt of a task of an orchestrator that runs a flow. For integrators: both providers use it.

    Make one for each attempt, and one more in each process that continues it. ``changes`` does all; the
    other methods are for orchestrators that wait in another process than the one that submits.

    An attempt submits the flow, repairs what an earlier one began, begins a generation, waits for what others
    have begun, or yields to a later attempt: see ``Decision``. It is cancelled with its task only if the task
    owns it, and nobody else does: see ``cancel``.

    Args:
        attempt: The attempt, as the orchestrator knows it; see ``CountedAttempt``.
        flow_id: The flow: the same for all attempts of the task. See ``derived_id``.
        owner: The owner of the flow; None: the task ends nothing, and its end leaves the flow running. See
            ``owner_of``.
        on_existing: What to do with an existing flow of this id; None: as the attempt decides.
        require_workers: Whether live workers must serve all queues and have all handlers at the beginning.
        worker_timeout: How long no live worker may serve what is to run; then the flow is cancelled. None:
            without limit, but with a warning.
        patience: How long the server may be away.
        last_patience: How long it may be when the flow is cancelled.
        log: The log of the task.
        counts: Whether the flow still has another owner, so that it is not cancelled.
        reason: Why a flow is cancelled whose task ends with this exception.

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
        look: Callable[[], object] = lambda: None,
    ) -> Iterator[Changes]:
        """Begin, and yield as nodes end. A flow that did not complete is raised after the last yield.

        Generations that others begin are followed. Ending the iteration early cancels the flow.

        Args:
            producer: A client.
            spec: The flow.
            timeout: Time after which the flow is cancelled; None: no limit.
            on_begin: Called with the flow when it has begun.
            look: Called at least once a second; what it raises ends the iteration and cancels the flow.

        Raises:
            FlowFailed, FlowCancelled: It ended so.
            WaitTimeout, WorkersMissing: It did not end in time, or nobody ran it; it was cancelled.
            Overtaken: A later run of the task has begun it.
            GlideMQError: Anything else; a running flow continues, and the next attempt finds it.
        """

        def read(flow: Flow, names: Sequence[str]) -> Mapping[str, Json]:
            return self.patience(lambda: flow.results(names)) if names else {}

        course = Course(self, producer, spec, timeout, on_begin, look, read)
        try:
            while (change := drive(course.advance())) is not None:
                yield change
        except (WaitTimeout, WorkersMissing) as exc:
            self.end(producer, self.reason(exc))
            raise
        except GlideMQError:
            raise  # if it still runs, the next attempt continues it
        except BaseException as exc:
            self.end(producer, self.reason(exc))
            raise
        finally:
            drive(course.close())

    def begin(self, producer: FlowProducer, spec: FlowSpec) -> Flow:
        """Submit the flow, continue it, or begin a generation. Safe to repeat.

        Raises:
            Overtaken: A later run of the task has begun it.
            GlideMQError: As ``FlowProducer.submit``.
        """
        return drive(self.begin_steps(producer, spec))  # type: ignore[no-any-return]

    def current(self, producer: FlowProducer) -> Flow:
        """The current generation, by any client.

        Raises:
            Overtaken: A later run of the task has begun it.
            FlowNotFound: The flow no longer exists.
        """
        return drive(self.current_steps(producer))  # type: ignore[no-any-return]

    def cancel(self, producer: FlowProducer, reason: str) -> FlowStatus | None:
        """Cancel the generation that this attempt has begun or found; returns the status before.

        None: it was not submitted yet. For several processes of one attempt, set ``generation``.

        Raises:
            NotOwned: A person, another client, or another owner has it; or a later attempt waits for it.
            Superseded: It is not the current generation any more.
            FlowNotFound: There is no such flow.
        """
        return drive(self.cancel_steps(producer, reason))

    def end(self, producer: FlowProducer, reason: str) -> None:
        """``cancel`` for a task that ends anyway: what goes wrong is logged."""
        drive(self.end_steps(producer, reason))

    def shown(self, flow: Flow, status: FlowStatus) -> None:
        """Note that the task has succeeded with a generation, as it was then."""
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
        look: Callable[[], object] = lambda: None,
    ) -> AsyncIterator[Changes]:
        """Begin, and yield as nodes end. A flow that did not complete is raised after the last yield.

        As ``OrchestratedRun.changes``; ``on_begin`` and ``look`` may be coroutine functions. Await the
        ``results`` of a change. Close the iterator to end early: a loop that is left does not.
        """

        async def read(flow: AsyncFlow, names: Sequence[str]) -> Mapping[str, Json]:
            return await adrive(self.patience.steps(lambda: flow.results(names))) if names else {}

        course = Course(self, producer, spec, timeout, on_begin, look, read)
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
        """The current generation, by any client. As in ``OrchestratedRun``."""
        return await adrive(self.current_steps(producer))

    async def cancel(self, producer: AsyncFlowProducer, reason: str) -> FlowStatus | None:
        """Cancel the generation that this attempt has begun or found. As in ``OrchestratedRun``."""
        return await adrive(self.cancel_steps(producer, reason))

    async def end(self, producer: AsyncFlowProducer, reason: str) -> None:
        """``cancel`` for a task that ends anyway: what goes wrong is logged."""
        await adrive(self.end_steps(producer, reason))

    async def shown(self, flow: AsyncFlow, status: FlowStatus) -> None:
        """Note that the task has succeeded with a generation, as it was then."""
        await adrive(self.note_steps(flow, status, is_shown=True))


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
