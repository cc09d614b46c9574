"""How a Spark step fails: the errors of steps, and what Spark's own errors mean and how to fix them.

Spark wraps the cause of a failure in up to a dozen others, each with a Java stack. The reason of a job has
the innermost first; the whole text goes to the log of the job.
"""

from __future__ import annotations

import re
from typing import Final


class SessionGone(Exception):
    """The session, or its process, ended while a step ran.

    Attributes:
        explanation: Why, and the fix, if the error of the step shows it.
        is_alone: Whether the step had the session to itself.
    """

    is_alone = False

    def __init__(self, what: str, explanation: str = "") -> None:
        super().__init__(what)
        self.explanation = explanation


class SessionClosed(SessionGone):
    """Only the session of this step was closed. This costs an attempt, unlike the loss of a driver."""


class SessionUnfit(SessionGone):
    """This step cannot continue in a session that others have used, but can run in another one."""


class StepCancelled(Exception):
    """The step was stopped because its job was cancelled, timed out or moved to another worker."""


class StepFailed(Exception):
    """Spark failed: the innermost cause, and the fix. ``__cause__`` is the error of PySpark."""


NO_EXECUTORS: Final = (
    "other applications hold all cores of the cluster, or it has no worker with the memory and the cores "
    "that spark.executor.memory and spark.executor.cores ask for"
)
"""Why a session may have no executors."""


MAX: Final = 1_500
"""Characters of a reason without its fix."""
LINES: Final = 400
"""Lines of the whole text that go to the log of the job."""

_NAMED: Final = r"(?P<name>[\w.$]+)(?:: (?P<text>.*?))?"
_LOST_TASK: Final = r"most recent failure: Lost task .*? \(TID \d+\) \([^)]*\): "
_THROWN: Final = re.compile(
    rf"(?:^|\n)(?::|Caused by:) {_NAMED}(?=\n\s+at |\nCaused by:|\n\s*\.\.\. \d|\Z)", re.DOTALL
)
_OF_TASK: Final = re.compile(rf"{_LOST_TASK}{_NAMED}(?=\n\s+at |\Z)", re.DOTALL)
_OF_EXECUTOR: Final = re.compile(rf"{_LOST_TASK}(?P<text>Executor.*)")
_STACK: Final = re.compile(r"\n\s+at |\n\nJVM stacktrace:|\nDriver stacktrace:")
_CONDITION: Final = re.compile(r"\[[A-Z_0-9.]+\]")
_STATE: Final = re.compile(r"\s*SQLSTATE: \w{5};?")
_PLAN: Final = re.compile(r"(?:; line \d+ pos \d+)?;\n(?=\W*'?[A-Z])")  # contains values of the statement
_OVERWRITE: Final = ' Set mode as "overwrite" to overwrite the existing path.'  # the fix states when
_TRACEBACK: Final = "Traceback (most recent call last):"
_FRAME: Final = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)')
_RAISED: Final = re.compile(r"^(?P<error>[A-Za-z_][\w.]*(?:: .*)?)$", re.MULTILINE)
_NOT_OF_USERS: Final = re.compile(r"[\\/](?:pyspark|py4j)[\\/]")
_FROM_JAVA: Final = re.compile(r"^py4j\.protocol\.Py4JJavaError: ", re.MULTILINE)
_PYTHON_ENDED: Final = re.compile(r"Python worker exited unexpectedly(?: \(crashed\): (?P<why>\S[^\n]*))?")
_UNANSWERED: Final = re.compile(
    r"\A(?:An error occurred while calling None\.None|Answer from Java side is empty)\s*\Z"
)

REMEDIES: Final = (
    (
        _PYTHON_ENDED.pattern,
        (
            "if it was killed for its memory, use smaller partitions or a larger "
            "spark.executor.memoryOverhead; if a function or a library crashes in it, "
            "spark.python.worker.faulthandler.enabled=true shows where"
        ),
    ),
    (
        _UNANSWERED.pattern,
        (
            "it may have run out of memory: raise spark.driver.memory in GLIDEMQ_SPARK_CONF, or collect "
            "less; the log of the worker has the JVM's message"
        ),
    ),
    (
        r"OutOfMemoryError|GC overhead limit|exited with code 137",
        (
            "give it more memory (spark.driver.memory or spark.executor.memory in GLIDEMQ_SPARK_CONF), or "
            "use smaller partitions and collect less"
        ),
    ),
    (
        r"spark\.driver\.maxResultSize",
        "write the data instead of collecting it, or raise the limit in GLIDEMQ_SPARK_CONF",
    ),
    (
        r"PYTHON_VERSION_MISMATCH|Python in worker has different version",
        "set PYSPARK_PYTHON to the same Python for the worker and the executors",
    ),
    (
        r"ModuleNotFoundError: No module named",
        "the Python of the executors lacks it: install it there, or set PYSPARK_PYTHON to one that has it",
    ),
    (
        r"[Cc]ould not serialize object|Task not serializable|cannot pickle|NotSerializableException",
        (
            "a function for the executors uses something that cannot be sent there, such as a session, lock "
            "or connection: create it inside the function"
        ),
    ),
    (
        r"DATA_SOURCE_NOT_FOUND|No suitable driver|ClassNotFoundException|NoClassDefFoundError",
        (
            "the session lacks the library: name it in spark.jars.packages or spark.jars of "
            "GLIDEMQ_SPARK_CONF, and restart the worker"
        ),
    ),
    (
        r"UnsupportedClassVersionError",
        "a library needs a newer Java: point JAVA_HOME to it, and restart the worker",
    ),
    (
        r"FAILED_READ_FILE\.FILE_NOT_EXIST|It is possible the underlying files have been updated",
        (
            "the files were replaced while they were read: write each step's output to its own path, and "
            "never overwrite the input of a step"
        ),
    ),
    (
        r"is not a Parquet file|CANNOT_READ_FILE_FOOTER|Malformed (?:ORC|Avro)|FAILED_READ_FILE",
        "the file is damaged or has another format: write it again, or remove it",
    ),
    (
        r"PATH_NOT_FOUND|Input path does not exist",
        "check that the step that writes it comes before this one, and that the worker can reach the path",
    ),
    (
        r"/attempts/\d+-[0-9a-f]{12}\b\S* already exists",
        "this attempt has already published there: publish once per location and attempt",
    ),
    (
        r"PATH_ALREADY_EXISTS|FileAlreadyExistsException",
        'an earlier attempt may have written it: write with mode("overwrite"), or to another path',
    ),
    (
        r"Permission denied|AccessControlException|AccessDenied|Mkdirs failed to create",
        "give the user of the worker and of the executors permission to write there",
    ),
    (
        r"ParentNotDirectoryException|NotADirectoryError|Not a directory",
        "the location, or a parent of it, is a file: name a directory, or remove the file",
    ),
    (
        r"UnknownHostException",
        "check the host in the URI, and that the worker and the executors can resolve it",
    ),
    (
        r"No space left on device",
        (
            "free space on the full disk: that of the location, or that of the temporary files, which "
            "spark.local.dir can move"
        ),
    ),
    (
        r"Master removed our application|Max number of executor failures",
        "its executors end when they start: their stderr, on the pages of the cluster, shows why",
    ),
    (
        r"All masters are unresponsive|Failed to connect to (?:the )?master",
        "no Spark master replies: check that it runs, and that GLIDEMQ_SPARK_MASTER names it",
    ),
)
"""Patterns in the text of errors, and their fixes. The first match counts."""


def cause_of(text: str) -> str:
    """The innermost cause in the text of an error from Spark: its class and message, without stacks."""
    if _TRACEBACK in text:
        return _of_python(text)
    if found := _PYTHON_ENDED.search(text):
        why = f": {found['why']}" if found["why"] else ""
        return _short(f"the Python worker of an executor crashed or was killed{why}")
    if _UNANSWERED.search(text):
        return f"the JVM of the session did not answer ({text.strip()})"
    head = _STACK.split(text, 1)[0].strip()
    thrown = [(found["name"], found["text"] or "") for found in _THROWN.finditer(text)]
    if found := _OF_TASK.search(text):
        thrown.insert(1, (found["name"], found["text"] or ""))
    elif found := _OF_EXECUTOR.search(text):
        return _short(f"the executor was lost: {found['text']}")
    if not thrown:
        return _short(_one_line(head))
    named = [_line(name, message) for name, message in thrown]
    inner = named[-1]
    outer = next((line for line in named if _CONDITION.search(line) and line != inner), "").rstrip(".")
    return _short(inner if not outer or outer in inner else f"{inner} ({outer})")


def remedy_of(text: str) -> str:
    """The fix for an error from Spark; empty if there is no general one."""
    return next((remedy for pattern, remedy in REMEDIES if re.search(pattern, text)), "")


def cause_and_fix(text: str) -> str:
    """The cause and the fix in a sentence or two."""
    cause, remedy = cause_of(text), remedy_of(text)
    return f"{cause.rstrip('.')}. Fix: {remedy}" if remedy else cause


def _of_python(text: str) -> str:
    """The error of the last traceback, or the Java exception in it, with the place in the user's code."""
    _, _, whole = text.rpartition(_TRACEBACK)
    traced = _STACK.split(whole, 1)[0]
    errors = _RAISED.findall(traced)
    places = [frame for frame in _FRAME.finditer(traced) if not _NOT_OF_USERS.search(frame["file"])]
    if found := _FROM_JAVA.search(traced):
        error = cause_of(whole[found.end() :])
    else:
        error = errors[-1] if errors else traced.strip().splitlines()[-1]
    if not places:
        return _short(error)
    place = places[-1]
    return _short(f"{error} (in {place['name']}, {place['file']}:{place['line']})")


def _line(name: str, message: str) -> str:
    message = _one_line(message)
    short = name.rpartition(".")[2]
    return f"{short}: {message}" if message else short


def _one_line(message: str) -> str:
    """A message on one line, without the plan and the statement that may follow it."""
    ends = _STATE.search(message)
    message = message[: ends.start()] if ends else message
    message = _PLAN.split(_STACK.split(message, 1)[0].split("\n== SQL", 1)[0], maxsplit=1)[0]
    line = " ".join(message.split()).replace(_OVERWRITE, "")
    return f"{line[:-2]}." if re.search(r"[^.]\.\.$", line) else line


def _short(text: str) -> str:
    return text if len(text) <= MAX else f"{text[:MAX]}…"
