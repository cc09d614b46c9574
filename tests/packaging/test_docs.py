"""The commands, links and examples of the README and of docs/ work."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock

import pytest
import yaml

from glidemq_orchestrate import (
    Client,
    ConnectionSettings,
    Context,
    EmbeddedServer,
    FlowNode,
    FlowProducer,
    FlowSpec,
    FlowState,
    JobState,
    Queue,
    Worker,
    errors,
)
from glidemq_orchestrate.flows.forms.file import OptionsFile
from tests.command_line import glidemq_problems

if TYPE_CHECKING:
    from tests.conftest import Eventually

ROOT = Path(__file__).parents[2]
GLIDEMQ = str(Path(sys.executable).parent / "glidemq")
MINUTE = timedelta(minutes=1)
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
GENERATED = ROOT / "docs" / "reference" / "command-line.md"
ALL = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def blocks(language: str, text: str = ALL) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_the_readme_is_read_in_ten_minutes() -> None:
    assert len(README.splitlines()) <= 200


def test_every_example_in_python_is_python() -> None:
    for code in blocks("python"):
        compile(code, "example", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_the_quick_start_runs_as_printed() -> None:
    code = next(block for block in blocks("python") if "EmbeddedServer()" in block)
    assert len([line for line in code.splitlines() if line.strip()]) <= 22

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )

    assert (done.returncode, done.stdout.strip()) == (0, "7800"), done.stderr


def block_with(word: str) -> str:
    return next(block for block in blocks("python") if word in block)


def test_the_calls_of_a_queue_run_as_printed() -> None:
    with EmbeddedServer() as server:
        exec(block_with("add_many"), {"server": server})
        with Queue("etl", server.url) as queue:
            assert sum(queue.counts().values()) == 14


def test_the_queue_with_shards_runs_as_printed() -> None:
    with EmbeddedServer() as server:
        names: dict[str, Any] = {"server": server}
        exec(block_with("shards=16"), names)
        worker: Worker = names["worker"]
        worker.handler("clean")(lambda ctx: ctx.data)
        with worker.running(), Client(server.url) as client:
            assert client.flows.get("nightly-2026-01-01").wait(timeout=MINUTE).state is FlowState.COMPLETED
            assert client.queue("etl").shards() == 16


def test_the_middleware_runs_as_printed() -> None:
    with EmbeddedServer() as server:
        names: dict[str, Any] = {"server": server, "Worker": Worker, "timedelta": timedelta}
        exec(block_with("Middleware"), names)
        worker: Worker = names["worker"]

        @worker.handler("load")
        def load(_: Context) -> None:
            raise ConnectionRefusedError

        with worker.running(), Queue("etl", server.url) as queue:
            job_id = queue.add("load")
            end = time.monotonic() + 60
            while queue.get_job(job_id).state is not JobState.DELAYED:
                assert time.monotonic() < end
                time.sleep(0.02)
            assert queue.get_job(job_id).attempts_made == 0


def test_every_call_that_is_listed_exists() -> None:
    page = (ROOT / "docs" / "how-to" / "queues.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [a-z ]+ \|(.*)\|$", page, re.MULTILINE)
    names = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert len(names) > 40
    options = set(inspect.signature(Queue.search).parameters)
    assert {name for name in names - options if not callable(getattr(Queue, name, None))} == set()


def test_every_way_to_name_a_server_is_understood_as_printed() -> None:
    exec(code := block_with("ConnectionSettings("), {"secret": "hunter2"})
    urls = re.findall(r"^\| `([a-z+]+://[^`]+)`", ALL, re.MULTILINE)
    assert "+cluster://" in code
    assert {ConnectionSettings(url).kind for url in urls} == {"single", "cluster", "sentinel"}


def test_the_growing_flow_runs_as_printed() -> None:
    with EmbeddedServer() as server:
        worker = Worker(server.url, queues=["etl"])
        found = [1, 2, 3]
        names: dict[str, Any] = {"worker": worker, "find_items": lambda: found}
        names["find_many"] = AsyncMock(return_value=found)
        exec(block_with("months = map_over("), names)
        exec(block_with("async def split_many("), names)
        worker.handler("item")(lambda ctx: ctx.data)
        for job in ("extract", "clean", "report", "total"):
            worker.handler(job)(lambda ctx: sorted(ctx.inputs))
        thread = threading.Thread(target=worker.run)
        thread.start()
        with FlowProducer(server.url) as flows:
            assert len(flows.submit(names["spec"], flow_id="a").result(timeout=MINUTE)) == 14
            split, total = (
                FlowNode("split", queue="etl", job="split"),
                FlowNode("total", queue="etl", job="total", after=["split"]),
            )
            results = flows.submit(FlowSpec("growing", [split, total]), flow_id="b").result(timeout=MINUTE)
            many = FlowNode("split", queue="etl", job="split_many")
            report = flows.submit(FlowSpec("growing", [many]), flow_id="c").result(timeout=MINUTE)["report"]
        assert results["total"] == ["item[0]", "item[1]", "item[2]", "split"]
        assert report == sum(found)
        worker.stop()
        thread.join(30)


@pytest.mark.parametrize(
    "page", ["README.md", pytest.param("docs/tutorials/first-flow.md", marks=pytest.mark.long)]
)
def test_steps_and_flow_of_a_page_run_as_printed(
    page: str, tmp_path: Path, url: str, eventually: Eventually
) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    (steps,) = [code for code in blocks("python", text) if "Handlers()" in code]
    (tmp_path / "steps.py").write_text(steps)
    (tmp_path / "nightly.yaml").write_text(blocks("yaml", text)[0])
    lines = [line.split("#")[0] for block in blocks("console", text) for line in block.splitlines()]
    printed = [shlex.split(line[2:]) for line in lines if line.startswith("$ glidemq ")]
    (worker,) = [words for words in printed if words[1] == "worker" and "steps" in words]
    env = {**os.environ, "GLIDEMQ_URL": url}
    with subprocess.Popen([GLIDEMQ, *worker[1:]], cwd=tmp_path, env=env) as process:
        try:
            with Queue("etl", url) as queue:
                eventually(queue.workers, 60)  # it starts in a process of its own
            flow = [words for words in printed if words[1] == "flow" and "retry" not in words]
            shown = [run(words, tmp_path, env) for words in flow]
            again = [code for code in blocks("python", text) if 'submit(FlowSpec.from_file("' in code]
            printed_again = [python(code, tmp_path, env) for code in again]
        finally:
            process.terminate()
    assert len(shown) == 3
    assert "completed" in shown[1]
    assert printed_again == (["300\n"] if page != "README.md" else [])


def python(code: str, folder: Path, env: dict[str, str]) -> str:
    """What a program prints."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(words: list[str], folder: Path, env: dict[str, str]) -> str:
    """What a command prints."""
    done = subprocess.run(
        [GLIDEMQ, *words[1:]], cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_command_line_exists() -> None:
    text = "\n".join(blocks("console")).replace("\\\n", " ")
    lines = re.findall(r"^\$ (.*?)(?: #.*)?$", text, re.MULTILINE)
    commands = [shlex.split(line) for line in lines]
    assert len(commands) > 50
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"\n{words[1]}:" in makefile for words in commands if words[0] == "make")
    assert glidemq_problems(commands) == []


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    outside = [*ROOT.glob("*.md"), *ROOT.glob("providers/*/README.md"), ROOT / "docker" / "README.md"]
    broken = []
    for page in {*PAGES, *outside}:
        text = page.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)]*))?\)", text):
            file = (page.parent / target).resolve() if target else page
            if file == GENERATED:
                continue
            if not file.exists() or (anchor and anchor not in anchors(file)):
                broken.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    assert broken == []


def test_the_pages_of_the_providers_on_pypi_link_to_no_file() -> None:
    for page in ROOT.glob("providers/*/README.md"):
        assert re.findall(r"\]\((?!https?:|#)[^)]*\)", page.read_text(encoding="utf-8")) == [], page


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.long
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = ["-m", "mkdocs", "build", "--quiet", "--strict", "-f", ".mkdocs.yml", "-d", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "reference" / "python.html").exists()
    commands = (tmp_path / "reference" / "command-line.html").read_text(encoding="utf-8")
    assert "glidemq flow submit" in commands


def test_the_page_on_errors_has_every_error() -> None:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    known = {
        name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)
    }
    assert set(re.findall(r"`([A-Z][a-z]\w+)`", page)) == known


def test_the_page_on_settings_has_every_variable() -> None:
    page = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    rooms = [ROOT / "glidemq_orchestrate", ROOT / "providers"]
    sources = [
        path.read_text("utf-8") for room in rooms for path in room.rglob("*.py") if "flights" not in str(path)
    ]
    read = set(re.findall(r': Final = "(GLIDEMQ_[A-Z_]+)"', "\n".join(sources)))
    internal = {"GLIDEMQ_SPARK_TAG", "GLIDEMQ_SPARK_DRIVER", "GLIDEMQ_CHAOS", "GLIDEMQ_SPARK_SESSION"}
    assert read - internal - set(re.findall(r"`(GLIDEMQ_[A-Z_]+)`", page)) == set()


def test_the_page_on_settings_has_every_option_of_the_connection() -> None:
    page = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    options = {part.name for part in fields(ConnectionSettings) if part.init} - {"url"}
    assert options - set(re.findall(r"`([a-z_]+)`", page)) == set()


def test_the_page_on_flow_files_has_a_valid_example_of_each_option() -> None:
    page = (ROOT / "docs" / "reference" / "flow-files.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| in `options` \|.*\n\|---.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    cells = [row.split("|")[1] for row in table.splitlines()]
    examples = [yaml.safe_load(code) for cell in cells for code in re.findall(r"`([^`]+)`", cell)]
    for options in examples:
        FlowSpec.from_dict({"name": "n", "nodes": [{"name": "load", "queue": "etl", "options": options}]})
    assert {name for options in examples for name in options} == set(OptionsFile.model_fields)


def test_the_page_on_the_context_has_all_of_it() -> None:
    page = (ROOT / "docs" / "reference" / "context.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`ctx\.(\w+)", page))
    public = {name for name in dir(Context) if not name.startswith("_")} - {"reporter"}
    assert {name for name in public if name not in named and not name.endswith("_async")} == set()
    assert named <= {*public, *Context.__dataclass_fields__}
