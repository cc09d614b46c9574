"""The handler of Spark jobs. Those named ``spark.python`` run ``module:function`` with a warm SparkSession.

The payload of such a job is::

    {"callable": "package.module:function", "arguments": {"month": 1}, "location": "/data/flights",
     "conf": {"spark.sql.shuffle.partitions": 8}}

``function(spark, ctx, **arguments)`` runs in a thread of a session host, a child process of the worker that
has the session and its JVM; what ends that process or its JVM harms no step of another. ``location``, the
directory or URI where it reads and writes, is ``ctx.data["location"]``; ``conf`` holds settings of Spark SQL
for this step alone, and of the session it needs, as ``session`` does (see ``hosts.session_request``);
``lineage`` names what it reads and writes (see the module ``lineage``). What it returns is the job's result:
small JSON, with the paths of large data. What it logs by ``logging``, from INFO on, is in the log of the job
too; the level of the worker's log counts.

Those named ``spark.sql`` run a statement; see the module ``sql``. Those named ``spark.submit`` run a program
with a driver of its own; see the package ``submit``.

A program that has a Spark session when its worker starts keeps it: then steps run on that, in threads of the
worker, and there are no hosts.

The module must be in a package that the worker was started with, by ``glidemq worker --allow-import package``
or ``Worker(allow_import=["package"])``; any other fails the job for good, without being imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from glidemq_orchestrate.settings import ENV_PREFIX, ENV_URL
from glidemq_orchestrate.spark.back_ends import engine_for
from glidemq_orchestrate.spark.ended import SessionClosed, SessionGone
from glidemq_orchestrate.spark.hosts.pool import hosts
from glidemq_orchestrate.spark.hosts.session_request import SessionRequest
from glidemq_orchestrate.spark.losses import Losses
from glidemq_orchestrate.spark.published.acceptance import accepted, make_versions
from glidemq_orchestrate.spark.published.catching_up import catch_up
from glidemq_orchestrate.spark.published.store import is_local
from glidemq_orchestrate.spark.published.version import Publication
from glidemq_orchestrate.spark.session import warm_session
from glidemq_orchestrate.spark.sql import JOB_NAME as SQL_JOB
from glidemq_orchestrate.spark.step import StepFailed, run_step
from glidemq_orchestrate.spark.submit.handler import handlers as submit_handlers
from glidemq_orchestrate.wire.codec import Json, decode
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.handler import Handlers, Serving
from glidemq_orchestrate.worker.handlers.signals import RetryLater

JOB_NAME: Final = "spark.python"
AFTER_LOSS: Final = timedelta(seconds=1)
FREE: Final = 2
GUESS: Final = (
    "its driver ran out of memory (spark.driver.memory in GLIDEMQ_SPARK_CONF), or the step ends the process "
    "or its JVM"
)
"""So many losses in a row cost a job no attempt, but for one of a session that it had to itself."""
GRACE: Final = timedelta(seconds=30)
"""How long a step that has timed out may take to end, before its next attempt may begin beside it."""

handlers = Handlers()
losses: Final = Losses()


class SessionLost(Exception):
    """The session was lost again while the step ran: it costs an attempt."""


@handlers.handler(JOB_NAME, grace=GRACE)
@handlers.handler(SQL_JOB, grace=GRACE)
def run_python_step(ctx: Context) -> Json:
    """Run the step that the payload names, and return its result.

    Raises:
        InvalidCall, StepCancelled, StepFailed: See ``run_step``. An error of the step's own as it is.
        RetryLater: The session was lost, maybe by another step: it costs no attempt.
        SessionLost: It was lost again while the step ran.
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
        return run_step(engine_for(), ctx)
    data = ctx.data if isinstance(ctx.data, dict) else {}
    title = f"step {data.get('callable') or data.get('file') or ctx.name}"
    result, published = hosts.run(ctx, title, SessionRequest.of(ctx.data), fresh=is_suspect)
    accepted.expect((ctx.queue, ctx.job_id, ctx.epoch), published)
    return decode(result, where=f"result of job {ctx.name}")


def _is_here() -> bool:
    """Whether the program has a session of its own, on which steps run."""
    return not hosts.is_running and warm_session.is_built


def _lost(gone: SessionGone, count: int) -> Exception:
    """What a step raises whose session was lost while it ran."""
    if count > FREE or (gone.is_alone and count > 1):
        return SessionLost(f"{gone}; so it was the last {count} times: {gone.explanation or GUESS}")
    why = f"{gone}: {gone.explanation}" if gone.explanation else f"{gone}"
    return RetryLater(AFTER_LOSS, f"{why}; it runs again", counts=False)


def _publish(places: Sequence[Publication], epoch: int | None) -> list[Publication]:
    """Make versions here, where that needs no session, or else in a host; see ``make_versions``."""
    if _is_here():
        return make_versions(places, warm_session.get(), epoch)
    settled = make_versions([place for place in places if is_local(place.location)], None, epoch)
    if far := [place for place in places if not is_local(place.location)]:
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
    """Make versions that an accepted result names and that its worker could not make."""
    catch_up.start(serving, _publish)


@handlers.on_stop
def stop_session() -> None:
    """End the sessions and their JVMs."""
    catch_up.stop()
    hosts.stop()
    warm_session.stop()


handlers.on_job(accepted.on_job)
handlers.include(submit_handlers)
