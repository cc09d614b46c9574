"""``@task.glidemq`` and ``@task.glidemq_spark``: functions that run on glide-mq workers, by import path."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory

from airflow_provider_glidemq.functions import NamedFunction
from airflow_provider_glidemq.operators.glidemq import GlideMQOperator, GlideMQSparkOperator
from glidemq_orchestrate.foundation.values import MAX_NAME

if TYPE_CHECKING:
    from airflow.sdk import Context

    from glidemq_orchestrate import FlowSpec


class _Named(DecoratedOperator):
    """The common base of both: the job's data are the function's name and arguments."""

    is_spark: ClassVar[bool] = False
    is_function: ClassVar[tuple[str, ...]] = ("job", "data")
    """Parameters of the operator that the function itself determines."""

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._function = NamedFunction.of(python_callable, is_spark=self.is_spark)
        super().__init__(
            python_callable=self._function.stand_in(), op_args=op_args, op_kwargs=op_kwargs, **kwargs
        )
        self.python_callable = python_callable

    def _described(self, context: Context) -> FlowSpec:
        self._function.check_found()
        described: FlowSpec = super()._described(context)  # type: ignore[misc]  # of the operator beside this
        return described

    def _call(self) -> dict[str, Any]:
        """The name of the node, and the data of its job."""
        self._function.check_context(self.op_args, self.op_kwargs)
        data = self._function.data(self.op_args, self.op_kwargs)
        return {"name": self.python_callable.__name__[:MAX_NAME], "data": data}


class _GlideMQDecoratedOperator(_Named, GlideMQOperator):
    custom_operator_name = "@task.glidemq"
    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        *(name for name in GlideMQOperator.template_fields if name not in ("job", "data")),
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **GlideMQOperator.template_fields_renderers,
        **DecoratedOperator.template_fields_renderers,
    }

    def __init__(self, *, queue_name: str, **kwargs: Any) -> None:
        super().__init__(queue_name=queue_name, job="", **kwargs)

    def _parts(self) -> dict[str, Any]:
        return {"queue": self.queue_name, "job": self._function.job, **self._call()}


class _GlideMQSparkDecoratedOperator(_Named, GlideMQSparkOperator):
    custom_operator_name = "@task.glidemq_spark"
    is_spark = True
    is_function = ("application", "arguments")
    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        *(
            field
            for field in GlideMQSparkOperator.template_fields
            if field not in ("application", "arguments")
        ),
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **GlideMQSparkOperator.template_fields_renderers,
        **DecoratedOperator.template_fields_renderers,
    }

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(application="", **kwargs)

    def _step(self) -> dict[str, Any]:
        return self._call()


def glidemq_task(
    python_callable: Callable[..., Any] | None = None,
    multiple_outputs: bool | None = None,  # noqa: FBT001  as Airflow calls it
    **kwargs: Any,
) -> TaskDecorator:
    """Run the function as a ``python`` job on a glide-mq worker, and return its result.

    Workers for it: ``glidemq worker --app glidemq_orchestrate.python --allow-import MODULE --queue QUEUE``,
    with the module of the function on their path. They call the function by name; nothing is pickled. The
    arguments are JSON, templated, and may be outputs of other tasks. A parameter ``ctx`` gets the job's
    ``Context``, for its log and progress. Airflow's context is not available: pass what the function needs,
    such as ``day="{{ ds }}"``.

    Args:
        python_callable: The function, at the top level of a module.
        multiple_outputs: See ``@task``.
        kwargs: ``queue_name``, and all arguments of ``GlideMQOperator`` except ``job`` and ``data``.

    Raises:
        ConfigurationError: No worker could find or call the function; the message has the reason and the fix.
    """
    return _decorator(_GlideMQDecoratedOperator, python_callable, multiple_outputs, kwargs)


def glidemq_spark_task(
    python_callable: Callable[..., Any] | None = None,
    multiple_outputs: bool | None = None,  # noqa: FBT001  as Airflow calls it
    **kwargs: Any,
) -> TaskDecorator:
    """Run the function as a Spark step on a warm session of a glide-mq worker, and return its result.

    Like ``glidemq_task``, for ``function(spark, ctx, ...)`` and the workers of
    ``glidemq worker --app glidemq_orchestrate.spark --allow-import MODULE --queue spark``.

    Args:
        python_callable: The function, at the top level of a module; the worker supplies its first two
            parameters.
        multiple_outputs: See ``@task``.
        kwargs: All arguments of ``GlideMQSparkOperator`` except ``application`` and ``arguments``.

    Raises:
        ConfigurationError: See ``glidemq_task``.
    """
    return _decorator(_GlideMQSparkDecoratedOperator, python_callable, multiple_outputs, kwargs)


def _decorator(
    operator: type[_Named],
    function: Callable[..., Any] | None,
    multiple_outputs: bool | None,  # noqa: FBT001
    kwargs: dict[str, Any],
) -> TaskDecorator:
    """As ``task_decorator_factory``, with the check of the function at once: mapped tasks are made later."""
    if unwanted := [name for name in operator.is_function if name in kwargs]:
        raise TypeError(f"{unwanted[0]} is not for a decorator: the function and its arguments are the job")

    def decorate(function: Callable[..., Any]) -> TaskDecorator:
        if callable(function):
            NamedFunction.of(function, is_spark=operator.is_spark)
        return task_decorator_factory(
            python_callable=function,
            multiple_outputs=multiple_outputs,
            decorated_operator_class=operator,
            **kwargs,
        )

    return cast("TaskDecorator", decorate) if function is None else decorate(function)
