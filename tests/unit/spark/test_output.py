"""What is told of the output of a driver: its log without greetings, and its cause."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest

from glidemq_orchestrate.spark.drivers.lines import Line
from glidemq_orchestrate.spark.submit.output import Output
from glidemq_orchestrate.worker.context import Context, Unheard

GREETING = "WARNING: Using incubator modules: jdk.incubator.vector"
PROFILE = "Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties"
NATIVE = "26/11/26 09:08:01 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform... "
PICKED = "Picked up JAVA_TOOL_OPTIONS: -Dx=1"


@dataclass
class Server(Unheard):
    """What has the log of the job."""

    lines: list[str] = field(default_factory=list)

    def progress(self, _value: object) -> None:
        """Keep nothing of it."""

    def log(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def output(server: Server) -> Output:
    return Output(Context("jobs", "1", "spark.submit", 1, None, {}, None, None, server), {})


def taken(output: Output, *lines: str) -> Output:
    """The output with these lines of the driver's log."""
    for line in lines:
        output.take(Line(line.encode(), True))
    return output


@pytest.mark.parametrize(
    ("code", "lines", "expected"),
    [
        (137, [GREETING], r"^it has written no error: .* killed by signal 9, maybe as memory ran out$"),
        (-9, [GREETING, "day 1"], r"killed by signal 9, maybe as memory ran out$"),
        (143, [PICKED, GREETING], r"killed by signal 15$"),
        (-15, [], r"killed by signal 15$"),
        (137, ["ValueError: no day"], r"^ValueError: no day$"),
        (3, [PICKED, GREETING, PROFILE, NATIVE], r"^it has written nothing$"),
        (
            1,
            [
                "Invalid maximum heap size: -Xmxlots",
                "Error: Could not create the Java Virtual Machine.",
                "Error: A fatal exception has occurred. Program will exit.",
            ],
            r"^Invalid maximum heap size: -Xmxlots$",
        ),
        (
            101,
            [
                GREETING,
                PROFILE,
                "26/11/26 09:07:38 WARN DependencyUtils: Local jar /opt/jobs/x.jar does not exist, skipping.",
                "Error: Failed to load class com.x.Y.",
            ],
            r"^the JAR /opt/jobs/x\.jar does not exist \(Error: Failed to load class com\.x\.Y\.\)$",
        ),
        (101, [GREETING, "Error: Failed to load class com.x.Y."], r"^Error: Failed to load class com\.x\.Y"),
    ],
)
def test_the_cause_is_no_greeting_and_no_afterword(
    output: Output, code: int, lines: list[str], expected: str
) -> None:
    assert re.search(expected, taken(output, *lines).cause(code))


def test_greetings_are_not_in_the_log_of_the_job(output: Output, server: Server) -> None:
    taken(output, PICKED, GREETING, PROFILE, NATIVE, "a line")
    output.take(Line(GREETING.encode(), False))
    assert server.lines == ["a line", GREETING], "what a program prints is kept"
