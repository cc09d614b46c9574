"""The output of a driver as it is written: lines go to the log of its job, facts in them to the progress."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from glidemq_orchestrate.errors import GlideMQError, TransportError
from glidemq_orchestrate.spark.failures import LINES, cause_and_fix
from glidemq_orchestrate.spark.submit.driver_folder import Line, LineReader
from glidemq_orchestrate.wire.codec import Json
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.log import MAX_LINES

_CHATTER: Final = re.compile(r"\S+ \S+ (?:INFO|DEBUG|TRACE) ")
_APPLICATION: Final = re.compile(
    r"\b(?:app-\d{14}-\d{4,}|application_\d+_\d+|spark-[0-9a-f]{32}|local-\d{13})\b"
)
_LOGGED: Final = re.compile(r"^\S+ \S+ (?:WARN|ERROR|FATAL) ", re.MULTILINE)
_UI: Final = re.compile(r"Successfully started service 'SparkUI' on port (\d+)")
_RAISED: Final = re.compile(r'Exception in thread "[^"]*" ')
_BEGINS: Final = re.compile(r'^(?:Traceback \(most recent call last\):|Exception in thread ")', re.MULTILINE)
_GREETING: Final = re.compile(
    r"WARNING: Using incubator modules: |(?:NOTE: )?Picked up \w+: |Using Spark's default log4j profile: "
    r"|\S+ \S+ WARN NativeCodeLoader: "
)
"""What a JVM and Spark print at every start."""
_AFTERWORD: Final = re.compile(
    r"Error: (?:Could not create the Java Virtual Machine\.|A fatal exception has occurred\.)"
)
"""What a JVM prints after the cause if it does not start."""
_ERROR: Final = re.compile(r"error|exception|fatal|\bkilled\b", re.IGNORECASE)
_NO_JAR: Final = re.compile(r"Local jar (\S+) does not exist, skipping")
_NO_CLASS: Final = re.compile(r"Error: Failed to load class ")
_KILLED: Final = {
    137: "signal 9, perhaps because memory ran out",
    143: "signal 15",
    -9: "signal 9, perhaps because memory ran out",
    -15: "signal 15",
}
"""Exit codes of killed processes, in the form of a shell and of Python."""


class Output:
    """Writes the output of a driver to the log of the job, without Spark's chatter; keeps the last lines."""

    def __init__(self, ctx: Context, facts: Mapping[str, Json]) -> None:
        self._ctx, self._lines, self._is_cut_off = ctx, 0, False
        self._unconfirmed: list[str] = []  # lines logged since the server last answered
        self._last: deque[str] = deque(maxlen=LINES)
        self._facts: dict[str, Json] = {"host": os.uname().nodename, **facts}

    @property
    def application_id(self) -> str | None:
        """The id in Spark, once it is known."""
        found = self._facts.get("application_id")
        return found if isinstance(found, str) else None

    def begin(self, **facts: Json) -> None:
        """Replace the facts: this is another driver."""
        self._facts = {"host": os.uname().nodename}
        self.report(**facts)

    def report(self, **facts: Json) -> None:
        """Add facts to the progress of the job."""
        self._facts |= facts
        with suppress(GlideMQError, RuntimeError):  # an ended attempt reports nothing
            self._ctx.progress(self._facts)

    def add_new(self, reader: LineReader) -> bool:
        """Add the new lines, but not while the server cannot be reached, because they would be lost.

        After an outage, lines that may have been lost are logged again, so some may appear twice.

        Returns:
            Whether the server has them all.
        """
        if not self._can_log(has_new=reader.has_new()):
            return False
        for line in reader.new():
            self.add(line)
        return not self._unconfirmed

    def _can_log(self, *, has_new: bool) -> bool:
        if not self._unconfirmed and (not has_new or self._lines >= MAX_LINES):
            return True
        try:
            self._ctx.check_owner()
        except TransportError:
            self._is_cut_off = True
            return False
        except (GlideMQError, RuntimeError):  # an ended attempt logs nothing
            self._unconfirmed, self._is_cut_off = [], False
            return True
        if self._is_cut_off:
            self._is_cut_off = False
            self._log(*self._unconfirmed)
        else:
            self._unconfirmed = []
        return True

    def restore(self, line: Line) -> None:
        """Add a line that an earlier attempt has logged, for the cause of a failure."""
        text = line.text.decode(errors="replace")
        if not (line.is_log and (_CHATTER.match(text) or _GREETING.match(text))):
            self._last.append(text)

    def add(self, line: Line) -> None:
        """Add a line: facts in it go to the progress, and all but Spark's chatter goes to the log."""
        text = line.text.decode(errors="replace")
        if line.is_log and _CHATTER.match(text):
            if self.application_id is None and (found := _APPLICATION.search(text)):
                self.report(application_id=found[0])
            elif "ui" not in self._facts and (page := _UI.search(text)):
                self.report(ui=f"http://{self._facts['host']}:{page[1]}")
            return
        if line.is_log and _GREETING.match(text):
            return
        self._last.append(text)  # Spark sends the standard error of Python to the output
        self._lines += 1
        if self._lines <= MAX_LINES:
            self._unconfirmed.append(text)
            self._log(text)
        if self._lines == MAX_LINES:
            self._log("further output is not logged")

    def _log(self, *lines: str) -> None:
        with suppress(GlideMQError, RuntimeError):
            for line in lines:
                self._ctx.log(line)

    def cause(self, code: int) -> str:
        """The cause of an exit code: the last error in the output."""
        text = "\n".join(self._last)
        begins = [found.start() for found in _BEGINS.finditer(text)]
        if begins:
            error = _LOGGED.split(text[begins[-1] :], 1)[0]
            return cause_and_fix(_RAISED.sub("Caused by: ", error))
        last = [line for line in self._last if line.strip() and not _AFTERWORD.match(line)]
        if code in _KILLED and not any(map(_ERROR.search, last)):
            return f"it wrote no error; the exit code is that of a process killed by {_KILLED[code]}"
        if last and _NO_CLASS.match(last[-1]) and (jar := _NO_JAR.search(text)):
            return f"the JAR {jar[1]} does not exist ({last[-1]})"
        return last[-1] if last else "it wrote nothing"
