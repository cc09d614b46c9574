"""AsyncFlow: one flow on the server, for asynchronous code."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from uuid import uuid4

from glidemq_orchestrate.attempts import client_supervision as tendings
from glidemq_orchestrate.clients.facade import AsyncFacade
from glidemq_orchestrate.errors import ConfigurationError, GlideMQError
from glidemq_orchestrate.flows import generations, owners
from glidemq_orchestrate.flows import nodes as single
from glidemq_orchestrate.flows import watch as watching
from glidemq_orchestrate.flows.backend import backend_of
from glidemq_orchestrate.flows.change import FlowChange, NodeChange
from glidemq_orchestrate.flows.choice import check_dependents, choice, starts
from glidemq_orchestrate.flows.node_change import Change
from glidemq_orchestrate.flows.owners import Ownership, owner_of
from glidemq_orchestrate.flows.ref import FlowRef, raise_unless_completed
from glidemq_orchestrate.flows.spec import FlowNode, FlowOutcome, FlowState, FlowStatus, NodeStatus
from glidemq_orchestrate.flows.waits import Wait
from glidemq_orchestrate.foundation.arguments import explain_methods
from glidemq_orchestrate.foundation.names import NOTE, check_request, short_reason
from glidemq_orchestrate.jobs.bounds import milliseconds
from glidemq_orchestrate.jobs.job import JobLogs
from glidemq_orchestrate.queues import waits as waiting
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.codec import Json, JsonLike, encode
from glidemq_orchestrate.wire.stored import as_time

__all__ = ["AsyncFlow"]


@explain_methods
class AsyncFlow:
    """``Flow`` with awaitable calls; same arguments, same errors."""

    def __init__(self, producer: AsyncFacade, ref: FlowRef, owned: Ownership | None = None) -> None:
        self._ref, self._clock = ref, producer._clock  # noqa: SLF001  the flow's own producer
        self._backend, self._owned = backend_of(ref), owned
        self._tending = tendings.for_flow(ref, self._clock)
        self._run = producer._run  # noqa: SLF001

    @property
    def id(self) -> str:
        """See ``Flow.id``."""
        return self._ref.public_id

    @property
    def generation(self) -> int:
        """See ``Flow.generation``."""
        return self._ref.generation

    @property
    def home(self) -> str:
        """See ``Flow.home``."""
        return self._ref.home.queue

    async def now(self) -> datetime:
        """See ``Flow.now``."""
        return as_time(self._clock.now_ms())

    async def status(self) -> FlowStatus:
        """See ``Flow.status``."""
        return await self._run(self._backend.status(self._ref))

    async def node(self, name: str) -> NodeStatus:
        """See ``Flow.node``."""
        return (await self._run(single.named(self._ref, [name])))[0]

    async def nodes(self, names: Iterable[str] | None = None) -> list[NodeStatus]:
        """See ``Flow.nodes``."""
        if names is None:
            return await self._run(self._backend.nodes(self._ref))
        return await self._run(single.named(self._ref, names))

    async def leaves(self) -> list[str]:
        """See ``Flow.leaves``."""
        return await self._run(single.leaves(self._ref))

    async def results(self, names: Iterable[str] | None = None) -> Mapping[str, Json]:
        """See ``Flow.results``."""
        if names is None:
            return await self._run(self._backend.results(self._ref))
        return await self._run(single.results(self._ref, names))

    async def waits(self, nodes: Iterable[NodeStatus] | None = None) -> Mapping[str, Wait]:
        """See ``Flow.waits``."""
        found = await self.nodes() if nodes is None else nodes
        return await self._run(waiting.waits(self._ref, found, self._clock.now_ms()))

    async def logs(self, after: Mapping[str, int], *, limit: int = 100) -> Mapping[str, JobLogs]:
        """See ``Flow.logs``."""
        return await self._run(single.logs(self._ref, after, limit))

    async def outcome(self) -> FlowOutcome:
        """See ``Flow.outcome``."""
        return await self._run(
            self._backend.outcome(self._ref, await self._run(self._backend.status(self._ref)))
        )

    async def wait(self, *, timeout: timedelta | None = None) -> FlowOutcome:  # noqa: ASYNC109  the server waits
        """See ``Flow.wait``."""
        limit = None if timeout is None else milliseconds(timeout)
        try:
            return await self._run(tendings.wait(self._tending, self._waiting, limit))
        finally:
            await self._resign()

    def _waiting(self, limit: int | None) -> Op[FlowOutcome]:
        if self._owned is not None:
            return self._owned.wait(self._ref, limit, self._clock)
        return self._backend.wait(self._ref, limit, self._clock)

    async def _resign(self) -> None:
        """Let others supervise at once; the locks expire by themselves if that fails."""
        if self._tending.led:
            with suppress(GlideMQError):
                await self._run(tendings.resign(self._tending))

    async def supervise(self) -> None:
        """See ``Flow.supervise``."""
        await self._run(tendings.once(self._tending))

    async def is_supervised(self) -> bool:
        """See ``Flow.is_supervised``."""
        return await self._run(tendings.is_supervised(self._ref))

    def watch(
        self, *, after: str | None = None, timeout: timedelta | None = None
    ) -> AsyncIterator[NodeChange | FlowChange]:
        """See ``Flow.watch``; for ``async for``."""
        limit = None if timeout is None else milliseconds(timeout)
        return self._changes(watching.begin(self._ref, after, limit, self._clock))

    def watch_batches(
        self,
        *,
        after: str | None = None,
        timeout: timedelta | None = None,
        rest: timedelta = timedelta(seconds=5),
    ) -> AsyncIterator[Sequence[NodeChange | FlowChange]]:
        """See ``Flow.watch_batches``; for ``async for``."""
        limit = None if timeout is None else milliseconds(timeout)
        rest_ms = min(milliseconds(rest), watching.REST_MS)
        return self._batches(watching.begin(self._ref, after, limit, self._clock, rest_ms=rest_ms), rest)

    async def _batches(
        self, watch: watching.Watch, rest: timedelta
    ) -> AsyncIterator[Sequence[NodeChange | FlowChange]]:
        quiet = watching.Quiet(self._clock, rest)
        try:
            while not watch.is_over:
                if self._owned is not None:
                    await self._run(self._owned.renew_if_due(self._ref, self._clock))
                changes = await self._run(tendings.step(self._tending, watch))
                if changes or quiet.is_over():
                    yield changes
                    quiet.begin()
        finally:
            await self._resign()

    async def _changes(self, watch: watching.Watch) -> AsyncIterator[NodeChange | FlowChange]:
        async for batch in self._batches(watch, timedelta.max):
            for change in batch:
                yield change

    async def result(self, *, timeout: timedelta | None = None) -> Mapping[str, Json]:  # noqa: ASYNC109  see wait
        """See ``Flow.result``."""
        outcome = await self.wait(timeout=timeout)
        raise_unless_completed(outcome)
        return outcome.results

    async def cancel(self, reason: str = "", *, generation: int | None = None) -> FlowState:
        """See ``Flow.cancel``."""
        await self._run(generations.fenced(self._ref, generation))
        return await self._run(self._backend.cancel(self._ref, short_reason(reason), self._clock))

    async def renew(self) -> FlowState:
        """See ``Flow.renew``."""
        if self._owned is None:
            raise ConfigurationError("no owner was given: submit or get the flow with owner=Owner(...)")
        return await self._run(self._owned.own(self._ref, self._clock))

    async def owners(self) -> Sequence[str]:
        """See ``Flow.owners``."""
        return await self._run(self._backend.owners(self._ref))

    async def note(self, text: str) -> None:
        """See ``Flow.note``."""
        await self._run(owners.note(self._ref, NOTE.check(text)))

    async def history(self) -> Sequence[FlowStatus]:
        """See ``Flow.history``."""
        return await self._run(generations.history(self._ref))

    async def retry_failed(self, *, generation: int | None = None) -> FlowState:
        """See ``Flow.retry_failed``."""
        await self._run(generations.fenced(self._ref, generation))
        return await self._run(self._backend.retry_failed(self._ref, self._clock, owner_of(self._owned)))

    async def restart(
        self, *, nodes: Iterable[str] | None = None, request: str = "", generation: int | None = None
    ) -> FlowState:
        """See ``Flow.restart``."""
        self._ref = await self._run(
            generations.restart(
                self._ref,
                check_request(request),
                self._clock,
                owner_of(self._owned),
                again=starts(nodes),
                generation=generation,
            )
        )
        return (await self.status()).state

    async def rerun(  # noqa: PLR0913  the ways of choosing nodes
        self,
        node: str | None = None,
        *,
        nodes: Iterable[str] = (),
        pattern: str = "",
        state: str = "",
        error: str = "",
        dependents: bool = True,
        request: str = "",
        generation: int | None = None,
    ) -> Sequence[str]:
        """See ``Flow.rerun``."""
        picked = choice(node, nodes=nodes, pattern=pattern, state=state, error=error)
        change = Change.rerun(check_request(request) or uuid4().hex, dependents=check_dependents(dependents))
        await self._run(generations.fenced(self._ref, generation))
        return await self._run(owners.change(self._ref, picked, change, self._clock, self._owned))

    async def cancel_node(  # noqa: PLR0913  the ways of choosing nodes
        self,
        node: str | None = None,
        reason: str = "",
        *,
        nodes: Iterable[str] = (),
        pattern: str = "",
        state: str = "",
        generation: int | None = None,
    ) -> Sequence[str]:
        """See ``Flow.cancel_node``."""
        picked = choice(node, nodes=nodes, pattern=pattern, state=state)
        change = Change("failed", uuid4().hex, f"cancelled: {short_reason(reason)}")
        await self._run(generations.fenced(self._ref, generation))
        return await self._run(owners.change(self._ref, picked, change, self._clock, self._owned))

    async def complete_node(  # noqa: PLR0913  the ways of choosing nodes
        self,
        node: str | None = None,
        result: JsonLike = None,
        *,
        nodes: Iterable[str] = (),
        pattern: str = "",
        state: str = "",
        error: str = "",
        generation: int | None = None,
    ) -> Sequence[str]:
        """See ``Flow.complete_node``."""
        picked = choice(node, nodes=nodes, pattern=pattern, state=state, error=error)
        change = Change("completed", uuid4().hex, encode(result, where="the result"))
        await self._run(generations.fenced(self._ref, generation))
        return await self._run(owners.change(self._ref, picked, change, self._clock, self._owned))

    async def skip_node(  # noqa: PLR0913  the ways of choosing nodes
        self,
        node: str | None = None,
        reason: str = "",
        *,
        nodes: Iterable[str] = (),
        pattern: str = "",
        state: str = "",
        error: str = "",
        generation: int | None = None,
    ) -> Sequence[str]:
        """See ``Flow.skip_node``."""
        picked = choice(node, nodes=nodes, pattern=pattern, state=state, error=error)
        change = Change("skipped", uuid4().hex, short_reason(reason) or "skipped by hand")
        await self._run(generations.fenced(self._ref, generation))
        return await self._run(owners.change(self._ref, picked, change, self._clock, self._owned))

    async def extend(self, nodes: Iterable[FlowNode]) -> FlowState:
        """See ``Flow.extend``."""
        return await self._run(self._backend.extend(self._ref, nodes, self._clock))
