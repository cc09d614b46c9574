"""Dagster Pipes for handlers: sends the reports of a job to the Dagster step that waits for it.

The worker needs ``dagster-pipes`` (extra ``pipes``), a package without dependencies, but not Dagster. Reports
are messages of the attempt (``ctx.write_message``). Dagster shows log lines immediately, and accepts
materializations and checks only from the attempt whose result was accepted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

from dagster_pipes import (
    DAGSTER_PIPES_CONTEXT_ENV_VAR,
    DAGSTER_PIPES_MESSAGES_ENV_VAR,
    PipesContext,
    PipesDefaultContextLoader,
    PipesMessage,
    PipesMessageWriter,
    PipesMessageWriterChannel,
    PipesParams,
    PipesParamsLoader,
)

from glidemq_orchestrate.errors import ConfigurationError, PayloadTooLarge
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.named_call import PIPES

__all__ = ["MAX_MESSAGE_BYTES", "PIPES", "is_pipes_job", "open_pipes", "shortened"]

MAX_MESSAGE_BYTES: Final = 900_000
"""The max size of a message: Dagster's event log is not made for larger messages."""
_SHORTENED: Final = {"log": "message", "log_external_stream": "text"}
_CUT: Final = " ... (shortened)"


def open_pipes(ctx: Context) -> PipesContext:
    """The ``PipesContext`` of a job that a ``PipesGlideMQClient`` has submitted. Use it in a ``with`` block.

    Each job has its own context, so a worker may run many such jobs at the same time; ``PipesContext.get()``
    and ``open_dagster_pipes`` do not return it. It works in plain and async handlers, in handlers with
    ``process=True``, in ``python`` jobs and in Spark steps. Any thread may use it.

    All messages are on the server before the job completes. A log line longer than 900,000 bytes is
    shortened.

    Args:
        ctx: The argument of the handler.

    Raises:
        ConfigurationError: The job was not submitted by Dagster Pipes: its data has no object
            ``dagster_pipes``. See ``is_pipes_job``.

    The methods of the returned object raise:
        DagsterPipesError: The report is not valid.
        PayloadTooLarge: It is larger than 900,000 bytes. Store the data elsewhere and report its location.
        LeaseLost: Another attempt runs the job, or it was cancelled. Stop then.

    Example:
        >>> @handlers.handler  # doctest: +SKIP
        ... def clean(ctx):
        ...     with open_pipes(ctx) as pipes:
        ...         pipes.log.info("cleaning %s", pipes.asset_key)
        ...         pipes.report_asset_materialization(metadata={"rows": 3})
    """
    params = _params_of(ctx)
    if params is None:
        raise ConfigurationError(
            f"job {ctx.job_id} was not submitted by PipesGlideMQClient: its data has no object {PIPES}. "
            "Fix: check is_pipes_job(ctx) first if the handler has other callers"
        )
    return PipesContext(_Given(params), PipesDefaultContextLoader(), _Writer(ctx))


def is_pipes_job(ctx: Context) -> bool:
    """Whether a ``PipesGlideMQClient`` has submitted the job, so that ``open_pipes`` works."""
    return _params_of(ctx) is not None


def shortened(message: Mapping[str, Any]) -> str:
    """A message as JSON of at most ``MAX_MESSAGE_BYTES``; only log lines and stack traces are shortened.

    Raises:
        PayloadTooLarge: Another kind of message is larger.
    """
    text = json.dumps(message)
    if len(text) <= MAX_MESSAGE_BYTES:  # ASCII
        return text
    method, params = str(message.get("method")), dict(message.get("params") or {})
    if field := _SHORTENED.get(method):
        params[field] = _start_of(str(params[field]))
    elif method == "closed":
        error = dict(params.get("exception") or {})
        replaced: dict[str, Any] = {
            "message": _start_of(str(error.get("message"))),
            "stack": [],
            "cause": None,
            "context": None,
        }
        params["exception"] = error | replaced
    else:
        raise PayloadTooLarge(
            f"a {method} message has {len(text):,} bytes; the limit is {MAX_MESSAGE_BYTES:,}. Store the data "
            "elsewhere and report its location",
            where=method,
        )
    return json.dumps({**message, "params": params})


def _params_of(ctx: Context) -> Mapping[str, Any] | None:
    """The bootstrap parameters that a job carries."""
    found = ctx.data.get(PIPES) if isinstance(ctx.data, dict) else None
    is_complete = isinstance(found, dict) and isinstance(found.get(DAGSTER_PIPES_CONTEXT_ENV_VAR), dict)
    return cast("Mapping[str, Any]", found) if is_complete else None


def _start_of(text: str) -> str:
    """The beginning of a text, short enough even if every character is escaped."""
    return text[: MAX_MESSAGE_BYTES // 13] + _CUT


class _Given(PipesParamsLoader):
    """Loads the parameters of the job."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._params = params

    def is_dagster_pipes_process(self) -> bool:
        return True

    def load_context_params(self) -> PipesParams:
        return cast("PipesParams", self._params[DAGSTER_PIPES_CONTEXT_ENV_VAR])

    def load_messages_params(self) -> PipesParams:
        return cast("PipesParams", self._params.get(DAGSTER_PIPES_MESSAGES_ENV_VAR) or {})


class _Channel(PipesMessageWriterChannel):
    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    def write_message(self, message: PipesMessage) -> None:
        self._ctx.write_message(shortened(message))


class _Writer(PipesMessageWriter[_Channel]):
    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    @contextmanager
    def open(self, params: PipesParams) -> Iterator[_Channel]:  # noqa: ARG002  there are none
        yield _Channel(self._ctx)
