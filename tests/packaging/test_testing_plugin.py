"""The pytest plugin as a user of the package meets it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest


def run(folder: Path, code: str, *, finds_it: bool = False) -> str:
    """Run pytest on a test file of a user, in a process of its own; its output.

    Unless pytest has to find the plugin by itself, none but this is loaded: others take most of the time.
    """
    (folder / "test_mine.py").write_text(textwrap.dedent(code))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"]
    environment = dict(os.environ)
    if not finds_it:
        command += ["-p", "glidemq_orchestrate.testing"]
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout + done.stderr


def test_three_lines_are_enough(tmp_path: Path) -> None:
    output = run(
        tmp_path,
        """
        from glidemq_orchestrate import Queue

        def test_it(glidemq_url, run_worker):
            run_worker(["etl"], {"double": lambda ctx: ctx.data * 2})
            assert Queue("etl", glidemq_url).add_and_wait("double", 21) == 42

        def test_the_next_one_begins_with_nothing(glidemq_url):
            assert sum(Queue("etl", glidemq_url).counts().values()) == 0
        """,
        finds_it=True,
    )
    assert "2 passed" in output, output


def test_waiting_in_vain_reports_the_last_value(tmp_path: Path) -> None:
    output = run(
        tmp_path,
        """
        def test_it(eventually):
            eventually(lambda: [], timeout=0.1)
        """,
    )
    assert "not within 0.1 s; last value: []" in output, output


@pytest.mark.long
def test_a_worker_that_cannot_start_fails_the_test(tmp_path: Path) -> None:
    output = run(
        tmp_path,
        """
        from glidemq_orchestrate import Handlers

        def test_it(run_worker):
            handlers = Handlers()
            @handlers.on_start
            def broken():
                raise RuntimeError("no licence")
            run_worker(["etl"], handlers)
        """,
    )
    assert "the worker did not start" in output, output
    assert "no licence" in output


@pytest.mark.long
@pytest.mark.parametrize(("option", "ending"), [("", "1 error"), (", may_leave_active=True", "1 passed")])
def test_a_job_that_is_left_active_fails_the_test(tmp_path: Path, option: str, ending: str) -> None:
    output = run(
        tmp_path,
        f"""
        from redis import Redis
        from glidemq_orchestrate import Queue

        def test_it(glidemq_url, run_worker):
            run_worker(["etl"], {{"work": lambda ctx: 1}}{option}).stop()
            queue = Queue("etl", glidemq_url)
            queue.add("work")
            with Redis.from_url(glidemq_url.replace("valkey", "redis")) as somebody:
                stream = "glide:{{etl}}:stream"
                somebody.xreadgroup("workers", "somebody", {{stream: ">"}})
        """,
    )
    assert ending in output, output
    assert ("left 1 jobs active" in output) is (option == "")


@pytest.mark.long
def test_a_run_that_does_not_use_it_pays_nothing(tmp_path: Path) -> None:
    output = run(
        tmp_path,
        """
        import sys

        def test_it():
            heavy = {"redis", "networkx", "pydantic", "croniter"} & set(sys.modules)
            assert "glidemq_orchestrate.testing" in sys.modules
            assert heavy == set()
        """,
        finds_it=True,
    )
    assert "1 passed" in output, output


@pytest.mark.long
def test_a_worker_that_a_failed_test_left_behind_takes_nothing_from_the_next(tmp_path: Path) -> None:
    output = run(
        tmp_path,
        """
        import threading
        from glidemq_orchestrate import Queue, Worker

        left = []

        def test_one(glidemq_url):
            worker = Worker(glidemq_url, queues=["etl"], concurrency=32)
            worker.handler("who")(lambda ctx: "the worker of the first test")
            threading.Thread(target=worker.run, daemon=True).start()
            assert worker.ready.wait(60)
            left.append(worker)
            assert not "what was meant to work"

        def test_two(glidemq_url, run_worker, eventually):
            run_worker(["etl"], {"who": lambda ctx: "its own"}, concurrency=1)
            with Queue("etl", glidemq_url) as queue:
                assert {queue.add_and_wait("who") for _ in range(50)} == {"its own"}
                assert [worker.id for worker in queue.workers()] != [left[0].id]
        """,
    )
    assert "1 failed, 1 passed" in output, output
    assert "FAILED test_mine.py::test_one" in output


@pytest.mark.long
def test_a_failed_test_does_not_keep_its_workers(tmp_path: Path) -> None:
    output = run(
        tmp_path,
        """
        import threading

        def test_one(run_worker):
            run_worker(["etl"], {"work": lambda ctx: None})
            assert not "what was meant to work"

        def test_two():
            assert [t.name for t in threading.enumerate() if t is not threading.main_thread()] == []
        """,
    )
    assert "1 failed, 1 passed" in output, output


@pytest.mark.long
def test_every_worker_ends_and_every_fault_is_reported(tmp_path: Path) -> None:
    output = run(
        tmp_path,
        """
        import asyncio
        import pytest
        from glidemq_orchestrate.testing import plugin

        @pytest.fixture(autouse=True)
        def impatient(monkeypatch):
            monkeypatch.setattr(plugin, "END_SECONDS", 1.0)

        kept = []

        async def for_ever():
            while True:
                await asyncio.sleep(60)

        async def broken():
            raise RuntimeError("the disk is full")

        def test_one(run_worker):
            kept.extend(run_worker([name], {"work": lambda ctx: None}) for name in ("a", "b", "c"))
            first, second, _ = kept
            first.worker.close = for_ever
            second.worker.close = broken

        def test_two():
            assert [running._thread.is_alive() for running in kept] == [False] * 3
        """,
    )
    assert "2 passed, 1 error" in output, output
    assert "the worker did not end within 1 s" in output
    assert "the disk is full" in output
