"""glidemq_executor: each step of a job is a job of a queue, run by a warm worker."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import dagster as dg

from dagster_glidemq.connection import GlideMQConnection
from dagster_glidemq.durations import DAY, ZERO, duration_field, in_seconds
from dagster_glidemq.fields import LEASE_SECONDS, connection_fields, connection_of
from dagster_glidemq.launcher import GlideMQRunLauncher
from dagster_glidemq.private import (
    Executor,
    InitExecutorContext,
    RetryMode,
    StepDependencyConfig,
    get_retries_config,
    get_step_dependency_config_field,
    get_tag_concurrency_limits_config,
    multiple_process_executor_requirements,
)
from dagster_glidemq.queues import Queues
from dagster_glidemq.step_executor import GlideMQStepExecutor
from dagster_glidemq.step_handler import GlideMQStepHandler
from glidemq_orchestrate.errors import ConfigurationError

STEP_QUEUE: Final = "dagster-steps"
HEALTH_SECONDS: Final = 3

_CONFIG: Final[Mapping[str, dg.Field]] = {
    **connection_fields(),
    "queue": dg.Field(
        dg.StringSource,
        is_required=False,
        description=(
            "The queue of steps without the tag dagster-glidemq/queue; by default that of the run launcher "
            f"if it is GlideMQRunLauncher, else {STEP_QUEUE}."
        ),
    ),
    "poll_interval": duration_field(
        0.1,
        "How long from one read of the event log to the next: the time between a step and those after it.",
    ),
    "start_timeout": duration_field(
        300.0,
        "A step fails when no live worker has served its queue for so long; busy ones are waited for.",
    ),
    "lease": duration_field(
        LEASE_SECONDS,
        "A step is lost when nothing was heard of its worker for so long, at least 1; also when the server "
        "was away for so long.",
    ),
    "grace": duration_field(
        15.0, "How long a step may take to end when it is interrupted; then its process is killed."
    ),
    "max_concurrent": dg.Field(
        dg.Noneable(dg.Int),
        default_value=None,
        description="How many steps of one run are queued at a time; without it all that are ready.",
    ),
    "tag_concurrency_limits": get_tag_concurrency_limits_config(),  # type: ignore[no-untyped-call]  # of Dagster
    "retries": get_retries_config(),  # type: ignore[no-untyped-call]  # of Dagster
    "step_dependency_config": get_step_dependency_config_field(),  # type: ignore[no-untyped-call]  # of Dagster
}


@dg.executor(
    name="glidemq",
    config_schema=dict(_CONFIG),
    requirements=multiple_process_executor_requirements(),
)
def glidemq_executor(init_context: InitExecutorContext) -> Executor:
    """Run each step of a job as a job of a queue, in a process forked from a warm one.

    Workers run them: ``glidemq worker --app dagster_glidemq.worker --queue dagster-steps``. They need the
    code location and ``DAGSTER_HOME`` with the same storages. Where and how a step is queued is in its tags:
    ``dagster-glidemq/queue``, ``/priority`` (higher first), ``/concurrency_key``, ``/concurrency_limit``,
    ``/rate_limit``; those of its run count for what it does not say.

    A step whose worker is lost fails, and runs again only if its retry policy says so. The connection is that
    of the run launcher if it is ``GlideMQRunLauncher``, else ``GLIDEMQ_URL``, unless the config has one.

    Raises:
        ConfigurationError: There is no URL of a server, or a value is not usable.

    Example:
        .. code-block:: python

            @dg.job(executor_def=glidemq_executor.configured({"url": {"env": "GLIDEMQ_URL"}}))
            def nightly():
                report(clean(extract()))
    """
    config = init_context.executor_config
    launcher = _own_launcher(init_context)
    queue = config.get("queue") or (launcher.step_queue if launcher else STEP_QUEUE)
    if launcher is not None and queue == launcher.run_queue:
        raise ConfigurationError(
            f"steps and runs are both in queue {queue}: runs that wait for their steps would take all places"
        )
    handler = GlideMQStepHandler(
        Queues(_connection(config, launcher)),
        str(queue),
        start_timeout=_seconds(config, "start_timeout"),
        lease=timedelta(seconds=_seconds(config, "lease", min_=timedelta(seconds=1))),
        grace=_seconds(config, "grace", max_=DAY),
    )
    return GlideMQStepExecutor(
        handler,
        retries=RetryMode.from_config(_mapping(config, "retries")) or RetryMode.ENABLED,
        sleep_seconds=_seconds(config, "poll_interval"),
        check_step_health_interval_seconds=HEALTH_SECONDS,
        max_concurrent=config.get("max_concurrent"),
        tag_concurrency_limits=config.get("tag_concurrency_limits"),
        should_verify_step=True,
        step_dependency_config=StepDependencyConfig.from_config(_mapping(config, "step_dependency_config")),
    )


def _own_launcher(context: InitExecutorContext) -> GlideMQRunLauncher | None:
    """The run launcher of the instance, if it is ours."""
    launcher = context.instance.run_launcher
    return launcher if isinstance(launcher, GlideMQRunLauncher) else None


def _connection(config: Mapping[str, Any], launcher: GlideMQRunLauncher | None) -> GlideMQConnection:
    if config.get("url") is None and launcher is not None:
        return launcher.connection
    if config.get("url") is None and (url := os.environ.get("GLIDEMQ_URL")):
        return connection_of({**config, "url": url})
    if config.get("url") is None:
        raise ConfigurationError(
            "glidemq_executor needs the URL of a server: set url in its config, or GLIDEMQ_URL in the "
            "environment, or use GlideMQRunLauncher"
        )
    return connection_of(config)


def _mapping(config: Mapping[str, Any], name: str) -> Any:
    return config.get(name) or {}


def _seconds(
    config: Mapping[str, Any], name: str, *, min_: timedelta = ZERO, max_: timedelta = 7 * DAY
) -> float:
    return in_seconds(name, config[name], min_=min_, max_=max_)
