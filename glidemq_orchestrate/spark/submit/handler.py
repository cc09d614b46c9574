"""Runs ``spark.submit`` jobs: each program has its own driver, which ends with its job.

Each driver has a keeper, a process that outlives a killed worker for a while (see ``keeper``), and a folder.
The progress of the job stores the name of the driver and this machine before the driver starts. So an attempt
that follows one whose worker was killed, or stopped to be replaced, takes over the driver that runs here,
with its output and its result, and starts no second one. First it ends everything else of its job that is
left on this machine, which it finds by the tag. Where the driver may still run on another machine, the
attempt waits until that driver has certainly ended.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import glidemq_orchestrate
from glidemq_orchestrate.errors import ConfigurationError, DecodeError
from glidemq_orchestrate.spark.setup.jvm import require_java, sweep
from glidemq_orchestrate.spark.setup.spark_settings import SparkSettings, require_master, spark_home
from glidemq_orchestrate.spark.submit import driver_folder as folders
from glidemq_orchestrate.spark.submit.application import (
    JOB_NAME,
    Application,
)
from glidemq_orchestrate.spark.submit.driver_folder import DriverFolder, LineReader
from glidemq_orchestrate.spark.submit.keeper import (
    GRACE_SECONDS,
    MARK_VARIABLE,
    RESULT_VARIABLE,
    TAG_VARIABLE,
    end_marked,
)
from glidemq_orchestrate.spark.submit.output import Output
from glidemq_orchestrate.spark.submit.record import record_of, wait_for
from glidemq_orchestrate.wire.codec import MAX_PAYLOAD_BYTES, Json, decode
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.handler import Handlers
from glidemq_orchestrate.worker.handlers.named_call import InvalidCall
from glidemq_orchestrate.worker.handlers.registered import JobEvent, Serving

logger = logging.getLogger("glidemq_orchestrate.spark")

JOB_VARIABLE: Final = "GLIDEMQ_JOB"
POLL_SECONDS: Final = 0.1
START_SECONDS: Final = 60.0
_ROOT: Final = Path(glidemq_orchestrate.__file__).parents[1]
# The folder of the package comes last, so that modules beside it hide none of Python's.
_KEEPER: Final = "glidemq_orchestrate.spark.submit.keeper"
_START: Final = f"import sys; sys.path.append(sys.argv[1]); from {_KEEPER} import main; main()"


class DriverFailed(Exception):
    """The program did not succeed: the innermost cause, and the fix."""


class DriverCancelled(Exception):
    """The program was ended because its job was cancelled, timed out or moved to another worker.

    Or its worker stops and the program continues: the next worker takes it over.
    """


class Drivers:
    """The drivers of this worker. Any thread may call it."""

    def __init__(self) -> None:
        self._scope, self._has_java = "", False
        self._serving: Serving | None = None
        self._done: dict[tuple[str, str, int], DriverFolder] = {}
        self._ending: list[threading.Thread] = []

    def start(self, scope: str, serving: Serving | None = None) -> None:
        """Set the server of the jobs, and remove the files of drivers that were killed."""
        self._scope, self._serving = scope, serving
        sweep(SparkSettings.from_environment().of_users)
        with suppress(ConfigurationError):  # raised again when a driver starts
            folders.sweep()

    def run(self, ctx: Context, application: Application) -> Json:
        """Run a program to its end.

        Afterwards nothing of it runs on this machine, unless its worker stops. Its keeper stores the result
        until the server has it.

        Returns:
            What it has written to the file that ``GLIDEMQ_RESULT`` names; else an object with its Spark id as
            ``application_id``, null if it is unknown.

        Raises:
            DriverCancelled, DriverFailed: See there.
            RetryLater: Its driver may still run on another machine.
            InvalidCall: Its result is not JSON, or too large.
            JavaMissing, ConfigurationError: Spark cannot be started here.
        """
        settings = SparkSettings.from_environment()
        conf = {**settings.of_users, **application.conf, "spark.master": settings.master}
        digest = application.digest(conf)
        record = record_of(self._serving, ctx)
        output = Output(ctx, record.facts)
        folder = DriverFolder.take_over(record.name, digest) if record.is_here else None
        if folder is None:
            self._check(settings)
            tag = self.tag(ctx)
            if end_marked(TAG_VARIABLE, tag):
                ctx.log("ended the driver of an earlier attempt")
                folders.remove(tag)
                sweep(conf)
            record.wait(ctx.epoch, output.begin)
            folder = self._start_driver(ctx, application, settings, conf, digest, output)
        else:
            ctx.log("took over the driver of an earlier attempt")
        try:
            result = _follow(ctx, application.title, folder, output)
        except BaseException:
            if ctx.cancelled.is_stopping:
                folder.release()
            else:
                _end(folder)
                output.report(ended=True)
                if ctx.cancelled.is_set():  # its keeper was killed and has not removed its files
                    sweep(conf)
            raise
        if self._serving is not None:  # it will report the end of the job
            self._done[ctx.queue, ctx.job_id, ctx.epoch] = folder
        else:
            _end(folder)
        return result

    def on_job(self, event: JobEvent) -> None:
        """Remove the result of a program, in a thread, once the server has it."""
        if event.kind == "active" or not self._done:
            return
        folder = self._done.pop((event.queue, event.job_id, event.epoch), None)
        if folder is not None:
            act = folder.release if event.kind == "lost" else partial(_end, folder)
            thread = threading.Thread(target=act, name="glidemq-driver-done", daemon=True)
            self._ending = [other for other in self._ending if other.is_alive()] + [thread]
            thread.start()

    def stop(self) -> None:
        """Wait for drivers that are ending, and stop reading from the server. Repeatable."""
        self._serving = None
        while self._ending:
            self._ending.pop().join(GRACE_SECONDS)

    def tag(self, ctx: Context) -> str:
        """The tag of a job's drivers: equal for each attempt, and for a node in each generation."""
        whose = f"{ctx.flow_id}\n{ctx.node}" if ctx.flow_id else ctx.job_id
        text = f"{self._scope}\n{ctx.queue}\n{whose}"
        return f"glidemq-{hashlib.sha256(text.encode()).hexdigest()[:20]}"

    def _check(self, settings: SparkSettings) -> None:
        if not self._has_java:  # the check costs as much as a small program
            require_java()
            self._has_java = True
        require_master(settings.master)

    def _start_driver(  # noqa: PLR0913, PLR0917  what it is made of
        self,
        ctx: Context,
        application: Application,
        settings: SparkSettings,
        conf: Mapping[str, str],
        digest: str,
        output: Output,
    ) -> DriverFolder:
        """Start a driver with a keeper; returns its folder."""
        tag, patience = self.tag(ctx), folders.patience().total_seconds()
        folder = DriverFolder.create(f"{tag}-{ctx.epoch}", digest)
        try:
            output.begin(tag=tag, driver=folder.name, machine=folders.machine(), patience=patience)
            wait_for(self._serving, ctx, folder.name)
            ctx.check_owner()
            chosen = application.settings(ctx, conf, tag)
            order = {"folder": str(folder.path), "patience": patience, "conf": chosen}
            order |= {
                "command": [str(Path(_home(), "bin", "spark-submit"))],
                "arguments": application.arguments(),
            }
            environment = {**os.environ, **_environment(settings), **_job_variables(ctx)}
            environment |= {TAG_VARIABLE: tag, MARK_VARIABLE: folder.name}
            keeper = _start_keeper(folder, json.dumps(order), environment)
        except BaseException:
            folder.remove()
            raise
        output.report(pid=keeper)
        return folder


drivers: Final = Drivers()


def _end(folder: DriverFolder) -> None:
    """End what is left of a driver, including its keeper, and remove its folder."""
    end_marked(MARK_VARIABLE, folder.name)
    folder.remove()


def _start_keeper(folder: DriverFolder, order: str, environment: Mapping[str, str]) -> int:
    """Start a keeper, and return its process id."""
    process = subprocess.Popen(  # noqa: S603  this package's own
        [sys.executable, "-P", "-c", _START, str(_ROOT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # neither Ctrl-C nor the end of the worker reaches it
        text=True,
    )
    threading.Thread(target=process.wait, name=f"spark-driver-{process.pid}", daemon=True).start()
    if process.stdin is not None:
        with suppress(BrokenPipeError), process.stdin as stream:
            stream.write(order)
    until = time.monotonic() + START_SECONDS
    while not folder.is_locked("keeper"):
        if process.poll() is not None or time.monotonic() > until:
            raise DriverFailed(
                f"the keeper of the driver ended while it started, with exit code {process.poll()}"
            )
        time.sleep(0.02)
    return process.pid


def _follow(ctx: Context, title: str, folder: DriverFolder, output: Output) -> Json:
    """Follow a driver until it has ended or the job is cancelled, and return its result."""
    reader = LineReader(folder.path)
    for line in reader.earlier():
        output.restore(line)
    is_complete = False
    while not is_complete:
        # Checked before the lines are read: then they are all there.
        is_over = folder.code is not None or not folder.is_locked("keeper")
        is_complete = output.add_new(reader) and is_over
        if not is_complete and ctx.cancelled.wait(POLL_SECONDS):
            if is_over:
                break
            reader.save_position()
            if ctx.cancelled.is_stopping:
                logger.info("%s continues: the next worker on this machine takes over its driver", title)
            raise DriverCancelled(f"{title} was cancelled")
    for line in reader.new():  # for the cause; an ended attempt logs nothing
        output.add(line)
    code = folder.code
    if code is None:
        raise DriverFailed(f"{title}: the keeper of its driver was killed")
    if code:
        raise DriverFailed(f"{title} {_describe_exit(code)}: {output.cause(code)}")
    return _result(title, folder.result, output)


def _home() -> str:
    """The folder of Spark.

    Raises:
        ConfigurationError: There is none.
    """
    found = spark_home()
    if found is None or not Path(found, "bin", "spark-submit").is_file():
        raise ConfigurationError(
            "spark-submit was not found: set SPARK_HOME, or pip install 'glidemq-orchestrate[spark]'"
        )
    return found


def _environment(settings: SparkSettings) -> dict[str, str]:
    """Variables for a driver: the Python of this worker, and an address that needs no host name."""
    chosen = {"SPARK_HOME": _home(), "PYSPARK_DRIVER_PYTHON": sys.executable, **settings.environment()}
    return {name: value for name, value in chosen.items() if name not in os.environ}


def _job_variables(ctx: Context) -> dict[str, str]:
    """The environment variable with the job of a program."""
    names = ("queue", "job_id", "flow_id", "node", "attempt", "generation", "epoch", "token")
    return {JOB_VARIABLE: json.dumps({name: getattr(ctx, name) for name in names})}


def _result(title: str, file: Path, output: Output) -> Json:
    if not file.exists():
        return {"application_id": output.application_id}
    if not file.is_file():
        raise InvalidCall(f"{title}: the path in {RESULT_VARIABLE} is not a file: write JSON to it")
    if file.stat().st_size == 0:
        raise InvalidCall(
            f"{title}: the file in {RESULT_VARIABLE} is empty, which is not JSON: write null for no result, "
            "or no file"
        )
    if file.stat().st_size > MAX_PAYLOAD_BYTES:
        raise InvalidCall(f"{title}: its result has more than {MAX_PAYLOAD_BYTES} bytes")
    try:
        return decode(file.read_text(encoding="utf-8"), where=f"result of {title}")
    except (UnicodeDecodeError, DecodeError) as exc:
        raise InvalidCall(f"{title}: what it wrote to the file in {RESULT_VARIABLE} is not JSON") from exc


def _describe_exit(code: int) -> str:
    return f"ended with exit code {code}" if code > 0 else f"was killed by signal {-code}"


GRACE: Final = timedelta(seconds=30)
"""How long a driver that has timed out may take to end before its next attempt begins."""

handlers = Handlers()


@handlers.handler(JOB_NAME, grace=GRACE)
def run_application(ctx: Context) -> Json:
    """Run the program that the payload names, and return its result; see ``Drivers.run``.

    Raises:
        InvalidCall: The payload names no program that this worker may run.
    """
    with ExitStack() as stack:
        return drivers.run(ctx, Application.of(ctx, stack))


@handlers.on_start
def name_server(serving: Serving) -> None:
    """Set the server, because jobs on another server may have the same ids."""
    drivers.start(f"{serving.settings.where} {serving.settings.prefix}", serving)


handlers.on_job(drivers.on_job)
handlers.on_stop(drivers.stop)
