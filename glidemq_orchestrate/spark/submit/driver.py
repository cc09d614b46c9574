"""Runs programs by ``spark-submit``, each with a driver of its own, which ends with its job and its worker.

Each driver, and whatever it starts, has a tag in its environment that is made of the server, the queue and
the job. An attempt first ends what an earlier one of its job has left on this machine, by that tag.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from glidemq_orchestrate.codec import MAX_PAYLOAD_BYTES, Json, decode
from glidemq_orchestrate.errors import ConfigurationError, DecodeError
from glidemq_orchestrate.lifeline import guard
from glidemq_orchestrate.lifeline.lifeline import lifeline
from glidemq_orchestrate.spark.cluster import require_master, spark_home
from glidemq_orchestrate.spark.identity import identity_of
from glidemq_orchestrate.spark.scratch import Scratch, sweep
from glidemq_orchestrate.spark.session import SparkSettings, require_java
from glidemq_orchestrate.spark.submit.application import Application
from glidemq_orchestrate.spark.submit.output import Output
from glidemq_orchestrate.worker.context import Context
from glidemq_orchestrate.worker.imported import InvalidCall

TAG_VARIABLE: Final = "GLIDEMQ_SPARK_TAG"
JOB_VARIABLE: Final = "GLIDEMQ_JOB"
RESULT_VARIABLE: Final = "GLIDEMQ_RESULT"
LOOK_SECONDS: Final = 0.1
GRACE_SECONDS: Final = 10.0
"""How long a driver that is told to end may take before it is killed."""


class DriverFailed(Exception):
    """The program ended otherwise than by success: the innermost cause, and what to do."""


class DriverCancelled(Exception):
    """The program was ended because its job was cancelled, timed out or went to another worker."""


class Drivers:
    """The drivers of this worker. Any thread may call it."""

    def __init__(self) -> None:
        self._scope, self._has_java = "", False

    def start(self, scope: str) -> None:
        """Tell which server the jobs are of, and remove the files of drivers that were killed."""
        self._scope = scope
        sweep(SparkSettings.from_environment().of_users)

    def run(self, ctx: Context, application: Application) -> Json:
        """Run a program to its end.

        Afterwards nothing of it runs on this machine.

        Returns:
            What it has written to the file that ``GLIDEMQ_RESULT`` names; else an object with its id in Spark
            as ``application_id``, null if Spark did not tell it.

        Raises:
            DriverCancelled, DriverFailed: See there.
            InvalidCall: Its result is not JSON, or too large.
            JavaMissing, ConfigurationError: Spark cannot be started here.
        """
        settings = SparkSettings.from_environment()
        if not self._has_java:  # asking costs as much as a small program
            require_java()
            self._has_java = True
        require_master(settings.master)
        tag = self.tag(ctx)
        if end_marked(tag):
            ctx.log("ended the driver that an earlier attempt had left here")
        whose = identity_of(application.title, ctx)
        conf = {**settings.of_users, **application.conf, **whose, "spark.master": settings.master}
        with closing(Scratch(conf)) as scratch:
            result = scratch.folder / "result.json"
            command = _command(application, ctx, conf, tag, scratch.folder)
            environment = {**os.environ, **_environment(settings), **_told(ctx), **lifeline.mark}
            environment |= {**scratch.environment(), TAG_VARIABLE: tag, RESULT_VARIABLE: str(result)}
            output = Output(ctx, tag)
            code = _run(command, environment, ctx, output)
            if ctx.cancelled.is_set():
                raise DriverCancelled(f"{application.title} was cancelled")
            if code:
                raise DriverFailed(f"{application.title} {_how(code)}: {output.cause()}")
            return _result(application.title, result, output)

    def tag(self, ctx: Context) -> str:
        """The tag of a job's drivers, the same for each attempt."""
        text = f"{self._scope}\n{ctx.queue}\n{ctx.job_id}"
        return f"glidemq-{hashlib.sha256(text.encode()).hexdigest()[:20]}"


drivers: Final = Drivers()


def end_marked(tag: str) -> bool:
    """End every process on this machine that has the tag in its environment; whether there was one."""
    mark, spared = f"{TAG_VARIABLE}={tag}".encode(), {0, 1, os.getpid()}
    found = guard.left({}, mark, spared)
    if found:
        watched = {pid: guard.Watched(entry.started, GRACE_SECONDS) for pid, entry in found.items()}
        guard.end(watched, mark, spared, 0.0)
    return bool(found)


def _run(command: Sequence[str], environment: Mapping[str, str], ctx: Context, output: Output) -> int:
    """Run the command until it has ended, or until the job is cancelled; its exit code."""
    output.tell()
    ctx.check_owner()
    with subprocess.Popen(  # noqa: S603  spark-submit, with a program that the worker allows
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    ) as process:
        lifeline.watch(process.pid, grace=GRACE_SECONDS)
        output.tell(pid=process.pid)
        readers = [
            threading.Thread(target=output.read, args=(stream,), kwargs={"is_log": is_log}, daemon=True)
            for stream, is_log in ((process.stdout, False), (process.stderr, True))
        ]
        try:
            for reader in readers:
                reader.start()
            while process.poll() is None and not ctx.cancelled.wait(LOOK_SECONDS):
                pass
        finally:
            end_marked(environment[TAG_VARIABLE])  # the driver, or what it has left
            process.wait()
            lifeline.forget(process.pid)
            for reader in readers:
                reader.join()
    return process.returncode


def _command(
    application: Application, ctx: Context, settings: Mapping[str, str], tag: str, folder: Path
) -> list[str]:
    name = f"{ctx.queue}: {ctx.node or application.path.rpartition('/')[2]} ({ctx.job_id})"
    conf = {"spark.app.name": name, "spark.ui.port": "0", "spark.ui.showConsoleProgress": "false"}
    conf |= settings
    if conf["spark.master"].startswith("yarn"):
        conf["spark.yarn.tags"] = ",".join(filter(None, (conf.get("spark.yarn.tags"), tag)))
    file = folder / "spark.conf"  # not in the command line, which every user of the machine can read
    file.write_text("".join(f"{_escaped(key)} {_escaped(value)}\n" for key, value in conf.items()))
    command = [str(Path(_home(), "bin", "spark-submit")), "--properties-file", str(file)]
    if application.main_class:
        command += ["--class", application.main_class]
    if application.py_files:
        command += ["--py-files", ",".join(application.py_files)]
    return [*command, application.path, *application.args]


def _escaped(text: str) -> str:
    """A key or a value as ``java.util.Properties`` reads it (its method ``load``)."""
    units = text.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[place : place + 2], "big") for place in range(0, len(units), 2)]
    return "".join(chr(code) if chr(code).isalnum() and code < 127 else f"\\u{code:04x}" for code in codes)


def _home() -> str:
    """Where Spark is.

    Raises:
        ConfigurationError: Nowhere.
    """
    found = spark_home()
    if found is None or not Path(found, "bin", "spark-submit").is_file():
        raise ConfigurationError(
            "spark-submit was not found: set SPARK_HOME, or pip install 'glidemq-orchestrate[spark]'"
        )
    return found


def _environment(settings: SparkSettings) -> dict[str, str]:
    """For a driver with the Python of this worker, and on this machine without a name that resolves."""
    chosen = {"SPARK_HOME": _home(), "PYSPARK_DRIVER_PYTHON": sys.executable, **settings.environment()}
    return {name: value for name, value in chosen.items() if name not in os.environ}


def _told(ctx: Context) -> dict[str, str]:
    """What a program may know of its job."""
    names = ("queue", "job_id", "flow_id", "node", "attempt", "generation", "epoch", "token")
    return {JOB_VARIABLE: json.dumps({name: getattr(ctx, name) for name in names})}


def _result(title: str, file: Path, output: Output) -> Json:
    if not file.exists():
        return {"application_id": output.application_id}
    if file.stat().st_size > MAX_PAYLOAD_BYTES:
        raise InvalidCall(f"{title}: its result has more than {MAX_PAYLOAD_BYTES} bytes")
    try:
        return decode(file.read_text(encoding="utf-8"), where=f"result of {title}")
    except (UnicodeDecodeError, DecodeError) as exc:
        raise InvalidCall(f"{title}: what it wrote to the file in {RESULT_VARIABLE} is not JSON") from exc


def _how(code: int) -> str:
    return f"ended with exit code {code}" if code > 0 else f"was killed by signal {-code}"
