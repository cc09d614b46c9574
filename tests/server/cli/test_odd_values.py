"""Every command with odd values in every place: one sentence and exit code 2, never a traceback.

The commands and their parameters are those of the command line itself: a new one needs no word here.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, Self

import pytest
import typer.main
from typer.testing import CliRunner

from glidemq_orchestrate import EmbeddedServer, FlowNode, FlowProducer, FlowSpec, Queue, Schedule
from glidemq_orchestrate.cli import app
from glidemq_orchestrate.clients import Schedules
from glidemq_orchestrate.errors import ConfigurationError

HUGE = "9" * 5000
NUMBERS = ["", "-1", "0", "1.5", "1e999", "nan", "-inf", "1e300", "1_0", " 1", "²", "٣", HUGE, "x"]
TEXTS = [
    "", "--", "-1", HUGE, "a\n\x1b[31mred\u202e\x9b", "\udcff", "a:b", "a{b}", "*", "/dev/null",
    '{"a": NaN}', "[/]", "%s",
]  # fmt: skip
URLS = [
    "", "x", "valkey://:99999", "http://x", "valkey://\udcff", "unix:///dev/null", "valkey://h?password=x#y",
    "valkey://[", "valkey://h/x", "valkey+cluster://,", "valkey+sentinel://h", f"valkey://{HUGE}",
]  # fmt: skip
MORE = {
    "label": ["=", "=a", "a="],
    "since": [f"{HUGE}d", "9999999999d", "٣d", "9999-99-99", "0001-01-01", "9999-12-31T23:59:59-23:59"],
    "after": ["0-0", "0-x", "-1-1", "5-99999999999999999999", "1.2"],
    "start": ["0-0", "0-x", "-1-1", "5-99999999999999999999", "$"],
    "app_names": ["os", "os:path", ":", "os.nope", "a..b", ".", ".a", "handlers:nope"],
    "file": ["missing.yaml", ".", "handlers.py"],
    "source": ["missing.yaml", ".", "handlers.py", "nobody"],
    "state": ["COMPLETED", "skipped"],
    "log_level": ["INFO", "loud"],
}
BREAKING = {chr(code) for code in (*range(9), 11, 12, *range(14, 32), *range(127, 160), 0x202E)}


def odd_values(path: tuple[str, ...], param: Any) -> list[str]:
    """Numbers where a number is meant, URLs where a URL is, else all sorts of texts."""
    if param.name in ("url", "prefix"):  # read in one place for all commands
        values = URLS if param.name == "url" else TEXTS
        return values if path == ("queue", "pause") else values[-4:]
    is_number = isinstance(param.default, int | float) or param.metavar == "SECONDS" or param.name == "limit"
    return (NUMBERS if is_number else TEXTS) + MORE.get(param.name, [])


FLAGS = {"yes": True, "follow": False, "wait": False, "watch": False, "no_args_is_help": False}
DOCUMENTED = {
    0,
    1,  # the server refused: there is no such flow, job, scheduler, library
    2,
    3,  # --timeout has passed
    4,  # no server is there
}


def leaves(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    if hasattr(command, "commands"):
        for name, part in command.commands.items():
            yield from leaves(part, *path, name)
    else:
        yield path, command


COMMANDS = dict(leaves(typer.main.get_command(app)))
GOOD = {
    "queue": "etl", "flow_id": "f1", "job_id": "1", "file": "flow.yaml", "source": "f1", "name": "a",
    "app_names": "handlers", "home": "home", "project": ".", "data": "null",
}  # fmt: skip
GOOD_OF = {("library", "print", "name"): "glidemq", ("server", "data"): "data"}


def words_of(path: tuple[str, ...], odd: str, value: str, url: str) -> list[str]:
    """The command with one odd value, and with good ones wherever it needs or would wait for something."""
    words, arguments = list(path), list[str]()
    for param in COMMANDS[path].params:
        name = str(param.name)
        good = GOOD_OF.get((*path, name), GOOD.get(name, "x"))
        if param.param_type_name == "argument":
            arguments.append(value if name == odd else good)
        elif name == odd:
            words += [param.opts[0], value]
        elif name == "url" and odd != "url":
            words += ["--url", url]
        elif getattr(param, "is_flag", False) and name in FLAGS:
            words += [param.opts[0] if FLAGS[name] else param.secondary_opts[0]]
        elif param.required:
            words += [param.opts[0], good]
    return [*words, "--", *arguments] if arguments else words


GROUPS = sorted({path[0] for path in COMMANDS})


class Directory(EmbeddedServer):
    """Only looks at its directory."""

    url = "valkey://h"

    def start(self) -> Self:
        self._check_disk()
        return self


def no_stage(*_: object) -> NoReturn:
    """All that the command was given has been read by then."""
    raise ConfigurationError("no chaos here")


@pytest.fixture
def world(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A server with a flow that has ended; and nothing runs for ever."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flow.yaml").write_text("name: x\nnodes: [{name: a, queue: etl, job: j}]\n")
    (tmp_path / "handlers.py").write_text("from glidemq_orchestrate import Handlers\nhandlers = Handlers()\n")
    monkeypatch.setattr("glidemq_orchestrate.worker.services.worker.Worker.run", lambda _: None)
    monkeypatch.setattr("glidemq_orchestrate.worker.services.supervisor.Supervisor.run", lambda _: None)
    monkeypatch.setattr("glidemq_orchestrate.chasquimq.worker.ChasquiWorker.run", lambda _: None)
    monkeypatch.setattr("glidemq_orchestrate.demo.run.run_demo", lambda *_, **__: None)
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: None)
    monkeypatch.setattr("glidemq_orchestrate.cli.process.EmbeddedServer", Directory)
    monkeypatch.setattr("glidemq_orchestrate.testing.chaos.campaign.Stage", no_stage)
    monkeypatch.setattr("glidemq_orchestrate.cli.process.signal.signal", lambda *_: None)
    ended = SimpleNamespace(wait=lambda _: True, set=lambda: None)
    monkeypatch.setattr("glidemq_orchestrate.cli.process.threading", SimpleNamespace(Event=lambda: ended))
    with Queue("etl", url) as queue, FlowProducer(url) as flows:
        queue.add("j")
        flow = flows.submit(
            FlowSpec("x", [FlowNode("a", queue="etl", job="j")]), flow_id="f1", require_workers=False
        )
        flow.cancel()
    return url


@pytest.mark.long
@pytest.mark.parametrize("group", GROUPS)
def test_an_odd_value_is_reported_in_one_sentence(group: str, world: str) -> None:
    for path, command in COMMANDS.items():
        for param in command.params if path[0] == group else []:
            for value in [] if getattr(param, "is_flag", False) else odd_values(path, param):
                done: Any = CliRunner().invoke(app, words_of(path, param.name, value, world))
                case = f"{path} {param.name}={value[:80]!r}: code {done.exit_code}\n{done.output[:3000]}"
                ended = done.exception is None or isinstance(done.exception, SystemExit)
                assert ended, f"{case}{done.exception!r}"
                assert done.exit_code in DOCUMENTED, case
                assert "Traceback" not in done.output, case
                assert "ProtocolError" not in done.output, case
                assert not set(done.output) & BREAKING, case


HOSTILE = "a\x1b[31m\x9b2J\u202eb"


def test_names_and_reasons_from_outside_are_printed_harmless(world: str, redis_client: Any) -> None:
    with Queue("etl", world) as queue, FlowProducer(world) as flows:
        queue.add(HOSTILE)
        queue.add_log(queue.add("j"), HOSTILE)
        node = FlowNode("n\x9b", queue="etl", job=HOSTILE, data=HOSTILE)
        spec = FlowSpec(HOSTILE, [node], labels={"k": HOSTILE})
        flows.submit(spec, flow_id="f2", require_workers=False).cancel(HOSTILE)
    with Schedules("etl", world) as schedulers:
        schedulers.upsert(HOSTILE, Schedule(every=timedelta(hours=1)))
    fields = {"id": "odd", "name": HOSTILE, "state": "failed", "data": "null", "opts": "{}", "timestamp": "1"}
    redis_client.hset("glide:{etl}:job:odd", mapping=fields | {"failedReason": HOSTILE})
    redis_client.zadd("glide:{etl}:failed", {"odd": 1})
    for words in (
        ["queue", "jobs", "etl"], ["queue", "jobs", "etl", "--state", "failed"],
        ["job", "show", "etl", "odd"], ["flow", "list"], ["flow", "show", "f2"],
        ["events", "--queue", "etl", "--from", "0-0", "--no-follow"],
        ["flow", "graph", "f2"], ["flow", "graph", "f2", "--format", "dot"], ["flow", "watch", "f2"],
        ["flow", "node", "f2", "n\x9b"], ["queue", "list"], ["scheduler", "list", "--queue", "etl"],
    ):  # fmt: skip
        shown: Any = CliRunner().invoke(app, [*words, "--url", world])
        assert shown.exit_code in (0, 1), shown.output
        assert shown.exception is None or isinstance(shown.exception, SystemExit)
        assert not set(shown.output) & BREAKING, words
        assert words[1] in ("list", "graph") or "\ufffd" in shown.output
        if "graph" not in words:
            exact: Any = CliRunner().invoke(app, [*words, "--url", world, "--json"])
            assert not set(exact.output) & BREAKING, words
            assert words[:2] == ["queue", "list"] or "\\u009b" in exact.output
