"""The engine for Spark Connect: ``sc://host:15002``, where the driver is a server that many clients share.

A client that is killed leaves its query running on the server. So each step has a session whose id is derived
from its job: the next attempt of the job finds the session of the one before, ends what runs there, and
closes it. From then on the server refuses calls of an earlier process that was stopped and continues. The
server closes idle sessions, after an hour by default, so the session of a running step is called regularly.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import math
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from glidemq_orchestrate.errors import ConfigurationError, LeaseLost
from glidemq_orchestrate.foundation.importing import importing
from glidemq_orchestrate.spark.failures import SessionClosed, SessionGone
from glidemq_orchestrate.spark.sessions.progress import POLL_SECONDS, REPORT_SECONDS, summed
from glidemq_orchestrate.spark.sessions.sharing.activity import active, install_for_connect
from glidemq_orchestrate.spark.setup.request import StepRequest, configure, identify
from glidemq_orchestrate.spark.setup.spark_settings import (
    CONF_VARIABLE,
    MASTER_VARIABLE,
    SparkSettings,
    require_master,
)
from glidemq_orchestrate.spark.source.registration import offer_for_connect
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.named_call import InvalidCall

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

USED: Final = "spark.glidemq.epoch"
"""The setting of a session with the number of the attempt that uses it."""
MAX_ATTEMPTS: Final = 1_000
TIMEOUT: Final = "spark.connect.session.manager.defaultSessionTimeout"
CALL_SECONDS: Final = 60.0
"""How often the session of a running step is called; more often if the server's time-out is short."""
CLOSED: Final = (
    f"it closes sessions that were idle for {TIMEOUT}: raise that on the server if the process of the step "
    "may be stopped for so long; or another client has closed the session"
)
"""Why a session may be closed although it is called regularly."""
GONE: Final = "the server has ended, was restarted or cannot be reached: its log shows why"
_CLOSED: Final = "INVALID_HANDLE.SESSION_CLOSED"
_END_SECONDS: Final = 10.0
_SECONDS: Final = {
    "us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400,
}  # fmt: skip
_DURATION: Final = re.compile(rf"(?P<count>\d+)(?P<unit>{'|'.join(_SECONDS)})?")


class ConnectEngine:
    """Steps on a Spark Connect server, each with its own session there; methods as ``ClassicEngine``."""

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._session: SparkSession | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """See ``ClassicEngine.start``."""
        self.session()

    def is_alive(self) -> bool:
        """See ``ClassicEngine.is_alive``."""
        with suppress(Exception):  # gRPC has many
            return bool(self.session().version)
        return False

    def session(self) -> SparkSession:
        """See ``ClassicEngine.session``."""
        with self._lock:
            if self._session is None:
                require_master(self._settings.master)
                spark = self._open(str(uuid.uuid4()))
                try:
                    configure(CONF_VARIABLE, spark, self._settings.conf)
                    logger.info("Spark %s replies", spark.version)
                except InvalidCall as exc:
                    raise ConfigurationError(str(exc)) from exc
                except Exception as exc:
                    raise ConfigurationError(
                        f"the Spark Connect server of {MASTER_VARIABLE} does not reply: {_first_line(exc)}"
                    ) from exc
                self._session = spark
            return self._session

    @contextmanager
    def step(self, ctx: Context, request: StepRequest) -> Iterator[SparkSession]:
        """See ``ClassicEngine.step``.

        Raises:
            SessionClosed: The server still runs, and has closed the session.
        """
        spark, end = None, _close
        try:
            spark = self._session_of(ctx)
            configure(request.title, spark, request.conf)
            identify(spark, request.identity)
            with _kept_alive(spark), _watch_step(spark, ctx), active(spark):
                yield spark
        except Exception as exc:
            if not _is_gone(exc):
                raise
            end = _disconnect
            if _condition(exc) == _CLOSED:
                raise SessionClosed(
                    "the Spark Connect server has closed the session of the step", CLOSED
                ) from exc
            raise SessionGone(
                f"the session on the Spark Connect server was lost: {_first_line(exc)}", GONE
            ) from exc
        finally:
            if spark is not None:
                end(spark)

    def stop(self) -> None:
        """See ``ClassicEngine.stop``."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            _close(session)

    def _session_of(self, ctx: Context) -> SparkSession:
        """A session that no other attempt of the job uses; sessions of earlier attempts are closed.

        Raises:
            LeaseLost: A later attempt has one.
        """
        for number in range(MAX_ATTEMPTS):
            spark = self._open(self._id_of(ctx, number))
            try:
                used_by = int(spark.conf.get(USED, "0") or 0)
                if used_by == 0:
                    spark.conf.set(USED, str(ctx.epoch))
                    ctx.check_owner()  # a process that was stopped between the two is no longer the owner
                    configure(CONF_VARIABLE, spark, self._settings.conf)
                    return spark
            except Exception as exc:
                _disconnect(spark)
                if _condition(exc) != _CLOSED:
                    raise
                continue  # an earlier attempt had it, and has ended
            if used_by > ctx.epoch:
                _disconnect(spark)
                raise LeaseLost(f"another attempt runs job {ctx.job_id}")
            logger.info("ending the session of an earlier attempt of job %s", ctx.job_id)
            with suppress(Exception):
                spark.interruptAll()
            _close(spark)
        raise InvalidCall(f"job {ctx.job_id} has had {MAX_ATTEMPTS} sessions on this server")

    def _id_of(self, ctx: Context, number: int) -> str:
        """The id of a session for a job. A server refuses ids that were closed, so there are several."""
        parts = (self._settings.scope, ctx.queue, ctx.flow_id, ctx.generation, ctx.job_id, number)
        return str(uuid.UUID(bytes=hashlib.sha256(repr(parts).encode()).digest()[:16], version=4))

    def _open(self, session_id: str) -> SparkSession:
        try:
            with importing():
                from pyspark.sql.connect.session import SparkSession as Sessions
        except ImportError as exc:
            raise ConfigurationError(
                f"{MASTER_VARIABLE} names a Spark Connect server: pip install 'glidemq-orchestrate[connect]'"
            ) from exc
        install_for_connect()
        offer_for_connect()
        master = self._settings.master.rstrip(";")
        separator = ";" if "/;" in master or master.endswith("/") else "/;"
        try:
            spark: Any = Sessions.builder.remote(f"{master}{separator}session_id={session_id}").create()
        except ValueError:  # its message has the URL, with its secrets
            raise ConfigurationError(
                f"{MASTER_VARIABLE} is not the URL of a Spark Connect server: sc://HOST:PORT/;name=value;name=value"
            ) from None
        opened: SparkSession = spark
        return opened


class _Counts:
    """The progress of a step's operations on the server, counted as by the classic engine."""

    def __init__(self) -> None:
        self._operations: dict[str, tuple[int, int, int, int]] = {}

    def __call__(self, stages: Any, inflight_tasks: int, operation_id: str | None, done: object) -> None:
        del inflight_tasks
        found = list(stages or ())
        if not found and (done or operation_id is None):
            return
        tasks = sum(stage.num_tasks for stage in found)
        self._operations[operation_id or ""] = (
            len(found) if done else sum(stage.done for stage in found),
            len(found),
            tasks if done else sum(stage.num_completed_tasks for stage in found),
            tasks,
        )

    def read(self) -> dict[str, int]:
        return summed(list(self._operations.values()))


@contextmanager
def _watch_step(spark: SparkSession, ctx: Context) -> Iterator[None]:
    """Report progress while the block runs, and interrupt it when it is cancelled."""
    counts, done = _Counts(), threading.Event()
    sessions: Any = spark
    sessions.registerProgressHandler(counts)

    def watch() -> None:
        shown, due = summed(()), time.monotonic() + REPORT_SECONDS
        ended = False
        while not ended:
            ended = done.wait(POLL_SECONDS)
            if ctx.cancelled.is_set():
                with suppress(Exception):  # the server is away
                    spark.interruptAll()  # each time: what the step begins later must end too
            elif ended or time.monotonic() >= due:
                due = time.monotonic() + REPORT_SECONDS
                if (read := counts.read()) != shown:
                    shown = read
                    with suppress(Exception):
                        ctx.progress(dict(read))

    with _in_background(watch, done, f"watch-{ctx.job_id}"):
        yield


@contextmanager
def _kept_alive(spark: SparkSession) -> Iterator[None]:
    """Call a session regularly while the block runs."""
    done, pause = threading.Event(), min(CALL_SECONDS, _timeout(spark) / 4)

    def call() -> None:
        while not done.wait(pause):
            with suppress(Exception):  # the step gets the same error
                spark.conf.get(USED, "")

    with _in_background(call, done, "connect-session"):
        yield


@contextmanager
def _in_background(run: Callable[[], None], done: threading.Event, name: str) -> Iterator[None]:
    """Run a function in a thread beside the block; ``done`` is set at the end of the block."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(_END_SECONDS)  # PySpark may be retrying while the server is away


def _timeout(spark: SparkSession) -> float:
    """The idle seconds after which the server closes a session."""
    found = _DURATION.fullmatch((spark.conf.get(TIMEOUT, "") or "").strip().lower())
    return float(found["count"]) * _SECONDS[found["unit"] or "ms"] if found else math.inf


def _close(spark: SparkSession) -> None:
    """Close a session on the server, and the connection."""
    sessions: Any = spark
    with suppress(Exception):  # the server is away, and closes it after its time-out
        sessions.client.release_session()  # ends what threads of the step left running
    _disconnect(spark)


def _disconnect(spark: SparkSession) -> None:
    sessions: Any = spark
    with suppress(Exception):
        sessions.client.close()
    # PySpark registers each client to be closed at exit, and keeps it until then.
    atexit.unregister(sessions.client._on_exit)  # noqa: SLF001


def _condition(exc: BaseException) -> str:
    """The name of Spark's error, empty for any other."""
    from pyspark.errors import PySparkException

    return (exc.getCondition() or "") if isinstance(exc, PySparkException) else ""


def _is_gone(exc: BaseException) -> bool:
    """Whether an error means that the session or its server no longer exists."""
    if type(exc).__module__.partition(".")[0] == "grpc":
        return "UNAVAILABLE" in _first_line(exc)
    condition = _condition(exc)
    if condition:
        return condition.startswith("INVALID_HANDLE.") or condition == "OPERATION_CANCELED"
    return type(exc).__name__ == "SparkConnectGrpcException" and "UNAVAILABLE" in _first_line(exc)


def _first_line(exc: BaseException) -> str:
    return (str(exc).strip().splitlines() or [type(exc).__name__])[0][:300]
