"""What is told of the output of a driver: its log without greetings, and its cause."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from glidemq_orchestrate.errors import ConnectionFailed, LeaseLost
from glidemq_orchestrate.spark.submit.driver_folder import Line, LineReader, LineWriter
from glidemq_orchestrate.spark.submit.output import Output
from glidemq_orchestrate.worker.handlers.context import Context, Reporter

GREETING = "WARNING: Using incubator modules: jdk.incubator.vector"
PROFILE = "Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties"
NATIVE = "26/11/26 09:08:01 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform... "
PICKED = "Picked up JAVA_TOOL_OPTIONS: -Dx=1"


@dataclass
class Server(Reporter):
    """What has the log of the job."""

    lines: list[str] = field(default_factory=list)
    error: Exception | None = None

    def progress(self, _value: object) -> None:
        """Keep nothing of it."""

    def log(self, line: str) -> None:
        """Keep it, unless the server is away."""
        if self.error is None:
            self.lines.append(line)

    def check_owner(self) -> None:
        """Fail as the server does."""
        if self.error is not None:
            raise self.error


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def output(server: Server) -> Output:
    return Output(Context("jobs", "1", "spark.submit", 1, None, {}, None, None, server), {})


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[LineWriter]:
    writer = LineWriter(tmp_path)
    yield writer
    writer.close()


@pytest.fixture
def reader(driver: LineWriter, tmp_path: Path) -> LineReader:
    return LineReader(tmp_path)


def taken(output: Output, *lines: str) -> Output:
    """The output with these lines of the driver's log."""
    for line in lines:
        output.add(Line(line.encode(), True))
    return output


@pytest.mark.parametrize(
    ("code", "lines", "expected"),
    [
        (137, [GREETING], r"^it wrote no error; .* killed by signal 9, perhaps because memory ran out$"),
        (-9, [GREETING, "day 1"], r"killed by signal 9, perhaps because memory ran out$"),
        (143, [PICKED, GREETING], r"killed by signal 15$"),
        (-15, [], r"killed by signal 15$"),
        (137, ["ValueError: no day"], r"^ValueError: no day$"),
        (3, [PICKED, GREETING, PROFILE, NATIVE], r"^it wrote nothing$"),
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
    output.add(Line(GREETING.encode(), False))
    assert server.lines == ["a line", GREETING], "what a program prints is kept"


def test_nothing_is_taken_while_the_server_is_away(
    output: Output, server: Server, driver: LineWriter, reader: LineReader
) -> None:
    driver.write(b"one", is_log=False)
    assert not output.add_new(reader), "it is on its way"
    assert output.add_new(reader)
    server.error = ConnectionFailed("refused")
    driver.write(b"two", is_log=False)
    assert not output.add_new(reader)
    driver.write(b"three", is_log=True)
    server.error = None
    assert not output.add_new(reader)
    assert output.add_new(reader)
    assert server.lines == ["one", "two", "three"]


def test_what_was_on_its_way_as_the_server_went_is_logged_again(
    output: Output, server: Server, driver: LineWriter, reader: LineReader
) -> None:
    server.error = ConnectionFailed("refused")
    output.add(Line(b"one", False))
    driver.write(b"two", is_log=False)
    assert not output.add_new(reader)
    assert server.lines == []
    server.error = None
    assert not output.add_new(reader)
    assert output.add_new(reader)
    assert server.lines == ["one", "two"]


def test_an_attempt_that_has_ended_waits_for_no_server(
    output: Output, server: Server, driver: LineWriter, reader: LineReader
) -> None:
    server.error = LeaseLost("gone")
    driver.write(b"one", is_log=False)
    output.add_new(reader)
    assert output.add_new(reader)
