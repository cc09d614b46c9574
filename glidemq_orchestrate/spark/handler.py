"""The handlers of Spark jobs, and what a worker does for them when it starts and stops.

``spark.python`` jobs call a function and ``spark.sql`` jobs run a statement, both on a warm SparkSession: see
``steps.run`` and ``steps.sql`` for their payloads. ``spark.submit`` jobs run a program with a driver of its
own: see the package ``submit``.

Steps run in threads of session hosts: child processes of the worker, each with a session and its JVM. A step
that ends its process or JVM does not affect the steps of other hosts. If the program already has a Spark
session when its worker starts, steps run on that session, in threads of the worker, without hosts.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from glidemq_orchestrate.settings import ENV_PREFIX, ENV_URL
from glidemq_orchestrate.spark.failures import SessionClosed, SessionGone, StepFailed
from glidemq_orchestrate.spark.hosts.pool import hosts
from glidemq_orchestrate.spark.published.acceptance import accepted, make_versions
from glidemq_orchestrate.spark.published.catching_up import catch_up
from glidemq_orchestrate.spark.published.locations.store import is_local
from glidemq_orchestrate.spark.published.locations.version import Publication
from glidemq_orchestrate.spark.sessions.engines import engine_for
from glidemq_orchestrate.spark.sessions.warm import warm_session
from glidemq_orchestrate.spark.setup.request import SessionRequest
from glidemq_orchestrate.spark.steps.run import JOB_NAME, run_step
from glidemq_orchestrate.spark.steps.sql import SQL_JOB
from glidemq_orchestrate.spark.submit.handler import handlers as submit_handlers
from glidemq_orchestrate.wire.codec import Json, decode
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.handler import Handlers
from glidemq_orchestrate.worker.handlers.registered import Serving
from glidemq_orchestrate.worker.handlers.signals import RetryLater

MAX_KNOWN: Final = 10_000


class Losses:
    """Counts lost sessions by job, to find the job that ends them. Any thread may call it.

    The first loss costs no attempt, because any step of the session may be the cause; the job then runs in a
    separate session if possible, and loses only that one. Each process counts for itself.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: OrderedDict[str, int] = OrderedDict()

    def is_suspect(self, job: str) -> bool:
        """Whether a session was lost when the job last ran."""
        with self._lock:
            return job in self._counts

    def note(self, job: str) -> int:
        """Count a loss while the job ran; returns the number of losses in a row."""
        with self._lock:
            self._counts[job] = self._counts.pop(job, 0) + 1
            while len(self._counts) > MAX_KNOWN:
                self._counts.popitem(last=False)
            return self._counts[job]

    def forget(self, job: str) -> None:
        """Reset the count: the job has run, and the session still exists."""
        with self._lock:
            self._counts.pop(job, None)


AFTER_LOSS: Final = timedelta(seconds=1)
MAX_FREE_LOSSES: Final = 2
"""Up to this many losses in a row cost a job no attempt, unless it had the session to itself."""
LIKELY_CAUSE: Final = (
    "its driver ran out of memory (spark.driver.memory in GLIDEMQ_SPARK_CONF), or the step ends the process "
    "or its JVM"
)
GRACE: Final = timedelta(seconds=30)
"""How long a step that has timed out may take to end before its next attempt begins."""

handlers = Handlers(single_process=True)  # each process would start sessions of its own
losses: Final = Losses()


class SessionLost(Exception):
    """The session was lost again while the step ran: this costs an attempt."""


@handlers.handler(JOB_NAME, grace=GRACE)
@handlers.handler(SQL_JOB, grace=GRACE)
def run_python_step(ctx: Context) -> Json:
    """Run the step that the payload names, and return its result.

    Raises:
        InvalidCall, StepCancelled, StepFailed: See ``run_step``. An error of the step itself is raised
            unchanged.
        RetryLater: The session was lost, perhaps because of another step: this costs no attempt.
        SessionLost: The session was lost again while the step ran.
    """
    job = f"{ctx.queue}:{ctx.job_id}"
    try:
        result = _run(ctx, is_suspect=losses.is_suspect(job))
    except SessionClosed as exc:
        losses.forget(job)
        raise StepFailed(f"{exc}: {exc.explanation}") from exc
    except SessionGone as exc:
        raise _lost(exc, losses.note(job)) from exc
    except BaseException:
        losses.forget(job)
        raise
    losses.forget(job)
    return result


def _run(ctx: Context, *, is_suspect: bool) -> Json:
    if _is_here():
        return run_step(engine_for().step, ctx)
    data = ctx.data if isinstance(ctx.data, dict) else {}
    title = f"step {data.get('callable') or data.get('file') or ctx.name}"
    result, published = hosts.run(ctx, title, SessionRequest.of(ctx.data), fresh=is_suspect)
    accepted.expect((ctx.queue, ctx.job_id, ctx.epoch), published)
    return decode(result, where=f"result of job {ctx.name}")


def _is_here() -> bool:
    """Whether the program already has a session, on which the steps run."""
    return not hosts.is_running and warm_session.is_built


def _lost(gone: SessionGone, count: int) -> Exception:
    """The error of a step whose session was lost while it ran."""
    if count > MAX_FREE_LOSSES or (gone.is_alone and count > 1):
        return SessionLost(f"{gone} ({count} times in a row): {gone.explanation or LIKELY_CAUSE}")
    why = f"{gone}: {gone.explanation}" if gone.explanation else f"{gone}"
    return RetryLater(AFTER_LOSS, f"{why}; it runs again", counts=False)


def _publish(publications: Sequence[Publication], epoch: int | None) -> list[Publication]:
    """Make versions here if that needs no session, else in a host; see ``make_versions``."""
    if _is_here():
        return make_versions(publications, warm_session.get(), epoch)
    settled = make_versions([one for one in publications if is_local(one.location)], None, epoch)
    if far := [one for one in publications if not is_local(one.location)]:
        settled += hosts.publish(far, epoch)
    return settled


accepted.make = _publish


@handlers.on_start
def start_session(serving: Serving) -> None:
    """Build the session before the first job, so that no step waits for the JVM."""
    if not _is_here():
        settings = serving.settings
        server = {ENV_URL: settings.whole_url, ENV_PREFIX: settings.prefix}
        hosts.start(f"{settings.where} {settings.prefix}", server)


@handlers.on_start
def watch_results(serving: Serving) -> None:
    """Make the versions of accepted results that their workers could not make."""
    catch_up.start(serving, _publish)


@handlers.on_stop
def stop_session() -> None:
    """End the sessions and their JVMs."""
    catch_up.stop()
    hosts.stop()
    warm_session.stop()


handlers.on_job(accepted.on_job)
handlers.include(submit_handlers)
