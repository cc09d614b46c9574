"""The handler of ``python`` jobs: runs ``module:function`` of an allowed package in a thread of the worker.

The function is called with keyword arguments; if it has a parameter ``ctx``, it also receives the ``Context``
of the job. An ``async def`` runs on a separate event loop. The return value is the result of the job. Log
records from INFO on also go to the log of the job, if the worker logs that level.

The module must be in a package that the worker allows: ``glidemq worker --allow-import package`` or
``Worker(allow_import=["package"])``. Any other module fails the job without retries, and is not imported. A
worker caches imported modules: restart it after a change of the module.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from typing import Any, Final

from glidemq_orchestrate.wire.codec import Json
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.handler import Handlers
from glidemq_orchestrate.worker.handlers.log import captured
from glidemq_orchestrate.worker.handlers.named_call import NamedCall
from glidemq_orchestrate.worker.handlers.results import REMEDY
from glidemq_orchestrate.worker.handlers.signals import HandlerSignal, Skip, Unrecoverable

JOB_NAME: Final = "python"
CONTEXT: Final = "ctx"
# Exceptions of Airflow, by name: the core does not import Airflow.
_OF_AIRFLOW: Final[Mapping[str, type[HandlerSignal]]] = {
    "AirflowSkipException": Skip,
    "AirflowFailException": Unrecoverable,
}

handlers = Handlers()


@handlers.handler(JOB_NAME)
def run_function(ctx: Context) -> Json:
    """Call the function that the payload names, and return its result.

    Raises:
        InvalidCall: The payload names no function that can be called in this way, or the result is not JSON.
    """
    call = NamedCall.of(ctx, "function")
    supplied = {CONTEXT: ctx} if _takes_context(call) else {}
    call.check(supplied=supplied)
    try:
        with captured(ctx):
            result = call.function(**{**call.arguments, **supplied})
            if inspect.iscoroutine(result):
                result = asyncio.run(result)
    except Exception as exc:
        for name in (kind.__name__ for kind in type(exc).__mro__):
            if signal := _OF_AIRFLOW.get(name):
                raise signal(str(exc)) from exc
        raise
    return call.checked(result, REMEDY)


def _takes_context(call: NamedCall) -> bool:
    try:
        parameters: Mapping[str, Any] = inspect.signature(call.function).parameters
    except ValueError:  # a built-in function without a signature
        return False
    return CONTEXT in parameters
