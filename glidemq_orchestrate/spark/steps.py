"""The handler of ``spark.python`` jobs: runs ``module:function`` with the worker's warm SparkSession.

The payload of such a job is::

    {"callable": "package.module:function", "arguments": {"month": 1}, "location": "/data/flights"}

``function(spark, ctx, **arguments)`` runs in a thread; ``location``, the directory or URI where it reads and
writes, is ``ctx.data["location"]``. What it returns is the job's result: small JSON, with the paths of
large data.

The module must be in a package that the worker was started with, by ``glidemq worker --allow-import package``
or ``Worker(allow_import=["package"])``; any other fails the job for good, without being imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from glidemq_orchestrate.codec import Json, encode
from glidemq_orchestrate.errors import EncodeError
from glidemq_orchestrate.importing import importing
from glidemq_orchestrate.spark.session import warm_session
from glidemq_orchestrate.worker.allowed_imports import ImportNotAllowed, follow, import_allowed
from glidemq_orchestrate.worker.context import Context
from glidemq_orchestrate.worker.handler import Handlers
from glidemq_orchestrate.worker.signals import Unrecoverable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB_NAME: Final = "spark.python"

handlers = Handlers()


class StepCancelled(Exception):
    """The step was stopped because its job was cancelled, timed out or went to another worker."""


class InvalidStep(Unrecoverable):
    """The payload does not describe a step that can be called; another attempt would fail the same way."""


@dataclass(frozen=True, slots=True)
class Step:
    """A checked payload: the callable as text, the function, and its arguments by name."""

    name: str
    function: Callable[..., Json]
    arguments: dict[str, Any]

    @classmethod
    def from_data(cls, data: Json, allowed: Sequence[str]) -> Step:
        """Check a payload and import its function from one of the allowed packages.

        Raises:
            InvalidStep: A field is missing or of the wrong type, the function is not in an allowed
                package or cannot be imported, or it does not accept the arguments. The message names the
                callable.
        """
        if not isinstance(data, dict):
            raise InvalidStep(
                f"a {JOB_NAME} job needs an object with callable, arguments and location as its data"
            )
        name = data.get("callable")
        if not isinstance(name, str) or not name:
            raise InvalidStep(f"a {JOB_NAME} job needs a callable: a string package.module:function")
        arguments = data.get("arguments")
        arguments = {} if arguments is None else arguments
        if not isinstance(arguments, dict):
            raise InvalidStep(f"step {name}: arguments must be an object of values by parameter name")
        if not isinstance(data.get("location", ""), str):
            raise InvalidStep(f"step {name}: location must be a string, a directory or URI")
        if unknown := sorted(set(data) - {"callable", "arguments", "location"}):
            raise InvalidStep(
                f"step {name}: unknown field {', '.join(unknown)}; arguments go under arguments"
            )
        function = _imported(name, allowed)
        _check_arguments(name, function, arguments)
        return cls(name, function, dict(arguments))


@handlers.handler(JOB_NAME)
def run_python_step(ctx: Context) -> Json:
    """Run the step that the payload names, on the warm session, and return its result.

    The step gets a session of its own on the shared context: steps that run at the same time do
    not share temporary views or settings.

    Raises:
        InvalidStep: See ``Step.from_data``; also when the result is not JSON.
        StepCancelled: The job was cancelled while the step ran.
    """
    with importing():
        from glidemq_orchestrate.spark.watch import watched  # noqa: PLC0415  not needed at start-up

    step = Step.from_data(ctx.data, ctx.allow_import)
    spark = warm_session.get().newSession()
    description = f"{ctx.node or step.name} ({ctx.job_id}, attempt {ctx.attempt})"
    try:
        with watched(spark.sparkContext, ctx, description):
            result = step.function(spark, ctx, **step.arguments)
    except Exception as exc:
        if ctx.cancelled.is_set():
            raise StepCancelled(f"step {step.name} was cancelled") from exc
        raise
    try:
        encode(result, where=f"result of step {step.name}")
    except EncodeError as exc:
        raise InvalidStep(f"{exc}. Write data to the location and return its path") from exc
    return result


@handlers.on_start
def start_session() -> None:
    """Build the session before the first job, so that no step waits for the JVM."""
    warm_session.get()


@handlers.on_stop
def stop_session() -> None:
    """End the session and its JVM."""
    warm_session.stop()


def _imported(name: str, allowed: Sequence[str]) -> Callable[..., Json]:
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise InvalidStep(f"step {name}: the callable must be written package.module:function")
    try:
        module = import_allowed(module_name, allowed)
    except ImportNotAllowed as exc:
        raise InvalidStep(f"step {name}: {exc}") from exc
    except Exception as exc:
        raise InvalidStep(
            f"step {name}: importing {module_name} failed: {type(exc).__name__}: {exc}"
        ) from exc
    try:
        target = follow(module, path, allowed)
    except ImportNotAllowed as exc:
        raise InvalidStep(f"step {name}: {exc}") from exc
    except AttributeError as exc:
        raise InvalidStep(f"step {name}: module {module_name} has no {path}") from exc
    if not callable(target):
        raise InvalidStep(f"step {name}: {path} is not a function")
    function: Callable[..., Json] = target
    return function


def _check_arguments(name: str, function: Callable[..., Json], arguments: dict[str, Any]) -> None:
    spark: SparkSession | None = None
    try:
        inspect.signature(function).bind(spark, None, **arguments)
    except TypeError as exc:
        raise InvalidStep(f"step {name}: it does not take these arguments: {exc}") from exc
    except ValueError:
        return  # a callable without a readable signature: the call itself will fail
