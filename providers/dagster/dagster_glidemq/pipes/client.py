"""PipesGlideMQClient: the Pipes client whose external processes are jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, TypedDict, Unpack
from weakref import WeakKeyDictionary

import dagster as dg
from dagster_pipes import PipesExtras
from pydantic import Field

from dagster_glidemq.durations import (
    ConfigDuration,
    OptionalPositiveConfigDuration,
    PositiveConfigDuration,
    in_seconds,
)
from dagster_glidemq.pipes.run import CompletedInvocation, Events, PipesRun
from dagster_glidemq.reexecution import StepContext
from dagster_glidemq.resource import GlideMQResource
from glidemq_orchestrate import FlowNode, FlowSpec, JobOptions
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.runs import Duration, JsonLike

RETENTION: Final = timedelta(days=7)
"""How long a job and its result are kept: as long as its messages."""
_BEGUN: Final[WeakKeyDictionary[Any, dict[str, FlowSpec]]] = WeakKeyDictionary()
"""The flows that each step of this process has run, by name."""


class PipesWork(TypedDict, total=False):
    """The job or flow that a step runs. ``PipesGlideMQClient.run`` describes the keys."""

    job: str
    queue: str
    data: Mapping[str, JsonLike] | None
    options: JobOptions | None
    name: str | None
    flow: FlowSpec | None
    flow_id: str | None
    timeout: Duration | None
    allow_retries: bool | None


class PipesGlideMQClient(GlideMQResource, dg.PipesClient):
    """Runs the code of an asset or op as a job, or as a flow of jobs, on workers of glidemq-orchestrate.

    A handler reports through ``open_pipes(ctx)`` of ``glidemq_orchestrate.pipes``. Its log lines appear
    immediately; its materializations and checks appear when its result is accepted. Reports of an attempt
    that fails, is killed or loses its job never become Dagster events. The step succeeds only if every job
    completes.

    The client is also a ``GlideMQResource``, with all its fields. A job is a flow of one node, so retries,
    re-executions, termination and kills follow the rules of ``run_flow``.

    Example:
        .. code-block:: python

            @dg.asset
            def clean(context: dg.AssetExecutionContext, pipes: PipesGlideMQClient):
                return pipes.run(
                    context=context, job="clean", queue="etl", data={"month": 1}
                ).get_materialize_result()

            defs = dg.Definitions(
                assets=[clean],
                resources={"pipes": PipesGlideMQClient(url=dg.EnvVar("GLIDEMQ_URL"))},
            )
    """

    forward_termination: bool = Field(
        default=True,
        description="Cancel the jobs when the step is terminated. Otherwise they continue after the step.",
    )
    termination_timeout: ConfigDuration = Field(
        default=20.0,
        description=(
            "How long a terminated step waits for the end of its jobs. Seconds, or a text such as 1m."
        ),
    )
    start_timeout: OptionalPositiveConfigDuration = Field(
        default=3_600.0,
        description=(
            "A job fails if no worker starts it within this time after it could run. Seconds, or a text such "
            "as 1h; None: no limit. A queue timeout of a node or flow takes precedence."
        ),
    )

    poll_interval: PositiveConfigDuration = Field(
        default=1.0,
        description="Time between reads of the logs of running jobs. Seconds, or a text such as 500ms.",
    )

    def run(  # type: ignore[override]  # the base takes any keywords
        self, *, context: StepContext, extras: PipesExtras | None = None, **work: Unpack[PipesWork]
    ) -> CompletedInvocation:
        """Run a job or a flow and wait until it has completed.

        Args:
            context: The step that waits.
            extras: JSON for the handlers, which read it with ``pipes.get_extra(name)``.
            work: The job or flow to run, as keywords:

                * ``job``, ``queue``: the name of a handler, and the queue of its job;
                * ``data``: an object for the handler; Pipes adds the key ``dagster_pipes``;
                * ``options``: attempts, timeout, priority and so on (``JobOptions``);
                * ``name``: distinguishes several jobs of one handler in one step; by default ``job``;
                * ``flow``: a ``FlowSpec`` instead of a job; each node may report whose data is an object or
                  nothing;
                * ``flow_id``: the id of the flow; by default derived from run, step and name;
                * ``timeout``: time after which all jobs are cancelled and the step fails; by default none;
                * ``allow_retries``: whether the retry policy of the step applies to a failure; by default
                  only when the same call may succeed later.

        Returns:
            The results. Assets without a report count as materialized, unless
            ``get_results(implicit_materializations=False)`` is used or a node was skipped. If a job reports
            nothing, the plain values in its result become their metadata.

        Raises:
            ConfigurationError: Neither a job nor a flow is given, or both; or this step has run another job
                or flow with the same name.
            dagster.Failure: The flow failed, was cancelled, or could not be submitted or watched; or a report
                is missing or invalid.
        """
        events = self._events(context, extras, work, as_they_come=False, implicit=False)
        while True:
            try:
                next(events)
            except StopIteration as stop:
                completed: CompletedInvocation = stop.value
                return completed

    def stream(
        self,
        *,
        context: StepContext,
        extras: PipesExtras | None = None,
        implicit_materializations: bool | None = None,
        **work: Unpack[PipesWork],
    ) -> Iterator[dg.PipesExecutionResult]:
        """``run`` as an iterator: yields results as nodes complete; a failure is raised after the last yield.

        So the assets of completed nodes are materialized even if other nodes fail, and a re-execution from
        asset failure runs only the others. Ending the iteration early cancels the flow.

        Args:
            context: The step that waits.
            extras: JSON for the handlers.
            implicit_materializations: Whether selected assets without a report count as materialized at the
                end; None: those of a job do, those of a flow do not.
            work: See ``run``.
        """
        is_flow = work.get("flow") is not None
        implicit = not is_flow if implicit_materializations is None else implicit_materializations
        yield from self._events(context, extras, work, as_they_come=True, implicit=implicit)

    def _events(
        self,
        context: StepContext,
        extras: PipesExtras | None,
        work: PipesWork,
        *,
        as_they_come: bool,
        implicit: bool,
    ) -> Events:
        spec = self._spec(work)
        _refuse_another(context, work.get("flow_id") or spec.name, spec)
        running = PipesRun(
            self,
            context,
            spec,
            extras,
            work.get("flow_id"),
            is_single=work.get("flow") is None,
            patience=self._patience(),
            poll_seconds=in_seconds("poll_interval", self.poll_interval),
            forward_termination=self.forward_termination,
            termination_seconds=in_seconds("termination_timeout", self.termination_timeout),
            options={"timeout": work.get("timeout"), "allow_retries": work.get("allow_retries")},
        )
        return running.events(as_they_come=as_they_come, implicit=implicit)

    def _spec(self, work: PipesWork) -> FlowSpec:
        """The flow, or the job as a flow of one node."""
        flow, job, queue, data = work.get("flow"), work.get("job"), work.get("queue"), work.get("data")
        start = self.start_timeout
        limit = None if start is None else timedelta(seconds=in_seconds("start_timeout", start))
        if flow is not None:
            if extra := sorted({"job", "queue", "data", "options", "name"} & set(work)):
                raise ConfigurationError(f"a flow takes no {', '.join(extra)}: these are of its nodes")
            return flow if flow.queue_timeout is not None else replace(flow, queue_timeout=limit)
        if not job or not queue:
            raise ConfigurationError("give a job and its queue, or a flow")
        if data is not None and not isinstance(data, Mapping):
            raise ConfigurationError(f"the data of a job must be an object, got {type(data).__name__}")
        node = FlowNode(
            job,
            queue=queue,
            job=job,
            data=dict(data or {}),
            options=work.get("options") or JobOptions(),
            queue_timeout=limit,
        )
        return FlowSpec(work.get("name") or job, nodes=[node], retention=RETENTION)


def _refuse_another(context: StepContext, name: str, spec: FlowSpec) -> None:
    """Refuse a second flow with the same name in this try of the step: both would have the same id."""
    step = context.op_execution_context.get_step_execution_context()
    if _BEGUN.setdefault(step, {}).setdefault(name, spec) != spec:
        raise ConfigurationError(
            f"this step has run another {name} before: give each a name, as in run(..., name='clean-2')"
        )
