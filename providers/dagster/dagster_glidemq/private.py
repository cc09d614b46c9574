"""Everything that this package imports from private modules of Dagster, and its purpose.

Dagster documents neither how to write an executor or a run launcher, nor how its own commands run a step. No
other module imports from ``dagster._``. When a release moves a name, its import here fails at startup; its
comment says what needs the name and what to look for. Tested with Dagster 1.12 and 1.13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

# The requirements that ``@dg.executor`` checks for executors of several processes. If it is gone: the value
# of ``requirements`` of ``dg.multiprocess_executor``.
from dagster._core.definitions.executor_definition import multiple_process_executor_requirements

# The code of a job that a warm process loads. Public as ``dg.reconstructable``, but not as a class: only
# annotations need it.
from dagster._core.definitions.reconstruct import ReconstructableJob

# The position in the event log of a run from which an executor reads on. If it moves: see how
# ``StepDelegatingExecutor`` keeps its cursor.
from dagster._core.event_api import EventLogCursor

# The metadata of an engine event: links and counts in the first event of a flow. If it moves: see what
# ``DagsterEvent.engine_event`` and ``DagsterInstance.report_engine_event`` take.
from dagster._core.events import EngineEventData

# Warm processes disable the two processes that copy the output of each step. If ``tail_to_stream`` is gone,
# remove this; steps then take longer.
from dagster._core.execution import compute_logs

# The state of the steps before a step; a job carries it to the worker. See ``StepHandlerContext``.
from dagster._core.execution.plan.state import KnownExecutionState

# Whether steps are retried by the executor, and the field of its config. See ``dg.multiprocess_executor``.
from dagster._core.execution.retries import RetryMode, get_retries_config

# The field of an executor's config that decides when a step may start. See ``dg.multiprocess_executor``.
from dagster._core.execution.step_dependency_config import (
    StepDependencyConfig,
    get_step_dependency_config_field,
)

# The field of an executor's config that limits steps by their tags. See ``dg.multiprocess_executor``.
from dagster._core.execution.tags import get_tag_concurrency_limits_config

# The types in the signature of an executor's function. See ``dg.executor``.
from dagster._core.executor.base import Executor
from dagster._core.executor.init import InitExecutorContext

# The executor that delegates each step to a handler: ours adds a job to a queue. Used by dagster-k8s and
# dagster-docker too: see how theirs change.
from dagster._core.executor.step_delegating import (
    CheckStepHealthResult,
    StepDelegatingExecutor,
    StepHandler,
    StepHandlerContext,
)

# The name of the file whose changes make a warm process load the instance again. See ``DagsterInstance.get``.
from dagster._core.instance.config import DAGSTER_CONFIG_YAML_FILENAME

# The base of a run launcher and its arguments. Used by dagster-k8s and dagster-docker too.
from dagster._core.launcher import (
    CheckRunHealthResult,
    LaunchRunContext,
    ResumeRunContext,
    RunLauncher,
    WorkerStatus,
)

# The code location of a run: a job carries it to the worker. See ``DagsterRun.job_code_origin``.
from dagster._core.origin import JobPythonOrigin

# The environment file beside the code, read as Dagster's own commands do.
from dagster._core.secrets.env_file import get_env_var_dict

# Storages that number events in commit order: only for others does the executor look for late events. If one
# is gone, remove it from ``executor``.
from dagster._core.storage.event_log import (
    ConsolidatedSqliteEventLogStorage,
    InMemoryEventLogStorage,
    SqliteEventLogStorage,
)
from dagster._core.storage.legacy_storage import LegacyEventLogStorage

# The arguments of Dagster's command for one step; a warm process runs its body. See ``dagster._cli.api``.
from dagster._grpc.types import ExecuteStepArgs

# The serialization in which a job carries a run's origin and state to the worker, and the base of what is
# configured in ``dagster.yaml``: the run launcher.
from dagster._serdes import ConfigurableClass, ConfigurableClassData, deserialize_value, serialize_value

# An exception as stored in an event. See ``DagsterEvent``.
from dagster._utils.error import serializable_error_info_from_exc_info

# Loads the code of a run from its origin. See ``dagster._cli.api``.
from dagster._utils.hosted_user_process import recon_job_from_origin

# Turns the signal by which a run is terminated into an exception. See ``dagster._cli.api``.
from dagster._utils.interrupts import capture_interrupts

if TYPE_CHECKING:
    from types import ModuleType

    import dagster as dg

__all__ = [
    "DAGSTER_CONFIG_YAML_FILENAME",
    "CheckRunHealthResult",
    "CheckStepHealthResult",
    "ConfigurableClass",
    "ConfigurableClassData",
    "ConsolidatedSqliteEventLogStorage",
    "EngineEventData",
    "EventLogCursor",
    "ExecuteStepArgs",
    "Executor",
    "InMemoryEventLogStorage",
    "InitExecutorContext",
    "JobPythonOrigin",
    "KnownExecutionState",
    "LaunchRunContext",
    "LegacyEventLogStorage",
    "ReconstructableJob",
    "ResumeRunContext",
    "RetryMode",
    "RunLauncher",
    "SqliteEventLogStorage",
    "StepDelegatingExecutor",
    "StepDependencyConfig",
    "StepHandler",
    "StepHandlerContext",
    "WorkerStatus",
    "capture_interrupts",
    "compute_logs",
    "deserialize_value",
    "execute_run",
    "execute_step",
    "get_env_var_dict",
    "get_retries_config",
    "get_step_dependency_config_field",
    "get_tag_concurrency_limits_config",
    "import_commands",
    "multiple_process_executor_requirements",
    "reattach_module",
    "recon_job_from_origin",
    "serializable_error_info_from_exc_info",
    "serialize_value",
]


def import_commands() -> ModuleType:
    """Import Dagster's commands, which takes some time: warm processes do it before they fork."""
    from dagster._cli import api  # noqa: PLC0415

    return api


def execute_step(
    arguments: ExecuteStepArgs, instance: dg.DagsterInstance, run: dg.DagsterRun
) -> Iterator[Any]:
    """Execute a step as ``dagster api execute_step`` does. If the body moves, see what that command calls."""
    from dagster._cli.api import _execute_step_command_body  # noqa: PLC0415

    return iter(_execute_step_command_body(arguments, instance, run))


def execute_run(
    run_id: str, instance: dg.DagsterInstance, write: Callable[[Any], Any], *, resume: bool
) -> int:
    """Execute or resume a run as ``dagster api execute_run`` and ``resume_run`` do; returns the exit code."""
    from dagster._cli.api import _execute_run_command_body, _resume_run_command_body  # noqa: PLC0415

    body = _resume_run_command_body if resume else _execute_run_command_body
    return body(run_id, instance, write, True)


def reattach_module() -> ModuleType | None:
    """The functions with which Pipes clients record launches in the event log; None before Dagster 1.13.

    If its functions change: see what ``PipesK8sClient`` calls.
    """
    try:
        from dagster._core.pipes import reattach  # noqa: PLC0415  not in Dagster 1.12
    except ImportError:
        return None
    return reattach
