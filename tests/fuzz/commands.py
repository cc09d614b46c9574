"""The command line with odd arguments, options, files and URLs: documented exit codes, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import strategies as st
from typer.testing import CliRunner

from glidemq_orchestrate import ConnectionSettings
from glidemq_orchestrate.cli import app
from glidemq_orchestrate.errors import ConfigurationError
from tests.command_line import build_commands_once
from tests.fuzz import addresses, flow_files, odd
from tests.fuzz.entry import Entry, Target
from tests.fuzz.secret import ALL, NEVER, refuse
from tests.fuzz.violation import Violation, undocumented
from tests.fuzz.world import World, world
from tests.server.cli.test_odd_values import BREAKING, COMMANDS, DOCUMENTED, FLAGS, Directory, no_stage
from tests.server.lua.keyspace import changes

GOOD: Final = {
    "queue": "etl",
    "flow_id": "f1",
    "job_id": "done",
    "file": "flow.yaml",
    "source": "flow.yaml",
    "name": "a",
    "app_names": "handlers",
    "home": "home",
    "project": ".",
    "data": "null",
    "timeout": "0.01",
    "label": "dag=x",
    "state": "failed",
    "format_": "dot",
    "since": "1h",
    "start": "0-0",
    "log_level": "info",
    "orchestrator": "airflow",
}
GOOD_OF: Final = {
    ("library", "print", "name"): "glidemq",
    ("server", "data"): "data",
    ("scheduler", "show", "name"): "s1",
    ("scheduler", "pause", "name"): "s1",
    ("scheduler", "resume", "name"): "s1",
    ("scheduler", "remove", "name"): "s1",
}
PRINT_A_FLOW: Final = (
    *("show", "watch", "submit", "cancel", "retry", "restart", "rerun"),
    *("complete-node", "skip-node", "cancel-node"),
)
SHOW: Final = {("job", "show"), ("flow", "node"), ("events",), *(("flow", name) for name in PRINT_A_FLOW)}
"""The commands that exist to show data and results, or do so with ``--json``."""
RUN_ON: Final = {("server",), ("worker",), ("supervise",), ("demo",)}
ARGUMENTS: Final = odd.STRINGS | st.sampled_from(
    [
        "--",
        "-1",
        "--help",
        "-",
        "--json",
        "--url",
        "handlers",
        "handlers:nope",
        "os",
        "a..b",
        "missing.yaml",
        ".",
        "f2",
        "etl",
        "dead",
        "idle",
        "failed",
        "done",
        "later",
        "first",
        "waiting",
        "s1",
        "s2",
        "9" * 30 + "d",
        "0001-01-01",
        "9999-12-31T23:59:59-23:59",
        "=",
        "a=",
        "=a",
        '{"a": NaN}',
        "{",
        "1e300",
        "-0.0",
        "²",
        "1_0",
        "flow.yaml",
        "nan",
    ]
)


class Command(NamedTuple):
    """A command, its parameters that are not good, the content of its flow file, and how it is run."""

    path: tuple[str, ...]
    given: dict[str, str]
    flags: list[str]
    file: bytes | None
    as_process: bool


def _is_harmless(url: str) -> bool:
    """Whether the URL is refused or names a server that is not there, without asking a resolver."""
    try:
        settings = ConnectionSettings(url)
    except ConfigurationError:
        return True
    return all(str(place).startswith(("/", "127.0.0.1:1", "[::1]:1")) for place in settings.places)


URLS: Final = addresses.urls().filter(_is_harmless)


@st.composite
def commands(draw: st.DrawFn) -> Command:
    """A command of any name with one to three odd parameters."""
    path = draw(st.sampled_from(sorted(COMMANDS)))
    names = [str(param.name) for param in COMMANDS[path].params if not getattr(param, "is_flag", False)]
    flags = [
        param.opts[0]
        for param in COMMANDS[path].params
        if getattr(param, "is_flag", False) and param.name not in FLAGS
    ]
    wanted = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)) if names else []
    given = {name: draw(URLS if name == "url" else ARGUMENTS) for name in wanted}
    file = None
    if path in {("flow", "submit"), ("flow", "graph")}:
        file = draw(
            st.none()
            | flow_files.files().filter(lambda one: one.suffix != ".json").map(lambda one: one.content)
        )
    some = draw(st.lists(st.sampled_from(flags), max_size=2, unique=True)) if flags else []
    is_text = all("\0" not in value and _is_argument(value) for value in given.values())
    as_process = is_text and path not in RUN_ON and draw(st.integers(0, 199)) == 199
    return Command(path, given, some, file, as_process)


def _is_argument(value: str) -> bool:
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return False
    return len(value) < 10_000


def words_of(command: Command) -> list[str]:
    """What is typed; the URL comes from the environment unless it is odd."""
    words, arguments = list(command.path), list[str]()
    for param in COMMANDS[command.path].params:
        name = str(param.name)
        good = GOOD_OF.get((*command.path, name), GOOD.get(name, "x"))
        if param.param_type_name == "argument":
            arguments.append(command.given.get(name, good))
        elif name in command.given:
            words += [param.opts[0], command.given[name]]
        elif getattr(param, "is_flag", False) and name in FLAGS:
            words += [param.opts[0] if FLAGS[name] else param.secondary_opts[0]]
        elif param.required or name == "timeout":
            words += [param.opts[0], good]
    return [*words, *command.flags, *(["--", *arguments] if arguments else [])]


def run(here: World, directory: Path, command: Command) -> None:
    """Run a command and look at its exit code, its output, and what it changed."""
    content = b"name: x\nnodes: [{name: a, queue: idle, job: j}]\n" if command.file is None else command.file
    (directory / "flow.yaml").write_bytes(content)
    words, shown = words_of(command), list[str]()
    try:
        code = _as_process(here, words, shown) if command.as_process else _in_process(here, words, shown)
        output = "".join(shown)
        where, place = f"the output of {' '.join(command.path)}", f"code {code}"
        refuse(where, output, NEVER if command.path in SHOW or command.file else ALL, place=place)
        if code not in DOCUMENTED:
            raise Violation(
                f"exit code {code} of {words!r:.300}: {output[-300:]!r}", f"exit code {code} of {words[:2]}"
            )
        if "Traceback" in output:
            raise Violation(f"a traceback of {words!r:.300}: {output[-500:]!r}", f"traceback of {words[:2]}")
        if found := set(output) & BREAKING - {"\x1b"}:
            raise Violation(f"{words!r:.300} printed {found!r}", f"control characters of {words[:2]}")
        if code == 2 and (found_keys := changes(here.base, here.dump())):
            raise Violation(
                f"refused {words!r:.300} and changed {found_keys!r:.300}", f"{words[:2]} changed keys"
            )
    finally:
        if here.dump() != here.base:
            here.restore()


def _in_process(here: World, words: list[str], shown: list[str]) -> int:
    done: Any = CliRunner().invoke(app, words, env={"GLIDEMQ_URL": here.url})
    shown.append(done.output)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise undocumented(done.exception) from done.exception
    return int(done.exit_code)


def _as_process(here: World, words: list[str], shown: list[str]) -> int:
    environment = os.environ | {"GLIDEMQ_URL": here.url}
    command = [sys.executable, "-m", "glidemq_orchestrate", *words]
    done = subprocess.run(command, capture_output=True, env=environment, timeout=60, check=False)
    shown += [done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")]
    return done.returncode


@contextmanager
def opened() -> Iterator[Target]:
    """Needs a server and a directory; nothing that a command starts runs on."""
    build_commands_once()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory()))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        here = stack.enter_context(world())
        stack.enter_context(chdir(directory))
        patch.syspath_prepend(str(directory))
        (directory / "handlers.py").write_text(
            "from glidemq_orchestrate import Handlers\nhandlers = Handlers()\n"
        )
        ended = SimpleNamespace(wait=lambda *_: True, set=lambda: None)
        patch.setattr("glidemq_orchestrate.worker.services.worker.Worker.run", lambda _: None)
        patch.setattr("glidemq_orchestrate.worker.services.supervisor.Supervisor.run", lambda _: None)
        patch.setattr("glidemq_orchestrate.demo.run.run_demo", lambda *_, **__: None)
        patch.setattr("glidemq_orchestrate.cli.process.EmbeddedServer", Directory)
        patch.setattr("glidemq_orchestrate.testing.chaos.campaign.Stage", no_stage)
        patch.setattr("glidemq_orchestrate.cli.process.signal.signal", lambda *_: None)
        patch.setattr("glidemq_orchestrate.cli.process.threading", SimpleNamespace(Event=lambda: ended))
        yield Target(commands(), lambda command: run(here, directory, command))


ENTRY: Final = Entry("commands", "the command line", 4, opened)
