"""Tests that leave something running behind, in runs of pytest of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from tests import processes
from tests.conftest import Eventually
from tests.processes import is_alive, spawned

ROOT = Path(__file__).parents[2]
CONFTEST = """
from tests import guard
from tests.conftest import *
from tests.conftest import redis_client, run_worker, server, server_or_cluster, url

guard.PATIENCE = 0.5
"""
COMMAND = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"]


def prepare(folder: Path, code: str) -> dict[str, str]:
    """Write a file of tests that are guarded as ours are; returns the environment of its run."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_mine.py").write_text(textwrap.dedent(code))
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def run(folder: Path, code: str, *options: str) -> str:
    done = subprocess.run(
        [*COMMAND, *options],
        cwd=folder,
        env=prepare(folder, code),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


def test_a_process_that_is_left_behind_fails_its_test_and_ends(tmp_path: Path) -> None:
    output = run(
        tmp_path,
        """
        import subprocess
        import sys

        left = []

        def test_one():
            left.append(subprocess.Popen(["sleep", "4711"]))

        def test_two():
            assert left[0].wait(20) == -9

        def test_of_one_whose_starter_is_dead():
            code = "import subprocess; subprocess.Popen(['sleep', '4712'], start_new_session=True)"
            subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)

        def test_of_one_that_was_waited_for():
            subprocess.run(["true"], check=True)
        """,
    )
    assert "4 passed, 2 errors" in output, output
    assert "(sleep 4711), started in test_mine.py::test_one (call)" in output
    assert "(sleep 4712), started in test_mine.py::test_of_one_whose_starter_is_dead (call)" in output


def test_a_thread_that_is_left_behind_fails_its_test_and_no_other(tmp_path: Path) -> None:
    output = run(
        tmp_path,
        """
        import threading

        over = threading.Event()

        def test_one():
            threading.Thread(target=over.wait, name="the one that waits", daemon=True).start()

        def test_two():
            over.set()
        """,
    )
    assert "2 passed, 1 error" in output, output
    assert "ERROR test_mine.py::test_one" in output
    assert "the test left behind: thread the one that waits" in output


def test_a_client_that_is_left_connected_fails_its_test_and_is_cut_off(tmp_path: Path) -> None:
    output = run(
        tmp_path,
        """
        import gc
        from redis import Redis

        left = []

        def test_one(url):
            left.append(Redis.from_url(url.replace("valkey", "redis")))
            left[0].ping()

        def test_two(redis_client):
            assert [int(c["id"]) for c in redis_client.client_list()] == [redis_client.client_id()]
            left.pop().close()

        def test_of_one_that_nobody_refers_to(url):
            Redis.from_url(url.replace("valkey", "redis")).ping()
        """,
    )
    assert "3 passed, 1 error" in output, output
    assert "ERROR test_mine.py::test_one" in output
    assert "the test left connected: client" in output
    assert "(last command ping" in output


def test_what_fixtures_of_a_wider_scope_start_may_last(tmp_path: Path) -> None:
    output = run(
        tmp_path,
        """
        import subprocess
        import threading
        import pytest

        over = threading.Event()

        @pytest.fixture(scope="module")
        def lasting():
            thread = threading.Thread(target=over.wait)
            thread.start()
            with subprocess.Popen(["sleep", "4711"]) as process:
                yield process
                process.kill()
            over.set()
            thread.join()

        def test_one(request):
            request.getfixturevalue("lasting")

        def test_two(lasting, redis_client):
            assert lasting.poll() is None
            assert redis_client.ping()
        """,
    )
    assert "2 passed" in output, output
    assert "error" not in output


@pytest.mark.long
@pytest.mark.parametrize("option", ["-n0", "-n1"])
def test_what_runs_ends_when_the_tests_are_killed(
    tmp_path: Path, option: str, eventually: Eventually
) -> None:
    environment = prepare(
        tmp_path,
        """
        import os
        import subprocess
        from pathlib import Path
        from tests.processes import spawned

        def test_it(server):
            apart = subprocess.Popen(["sleep", "4711"], start_new_session=True)
            with spawned(["sh", "-c", "sleep 4712; sleep 4713"]) as process:
                Path("new").write_text(f"{os.getpid()} {server.pid} {apart.pid} {process.pid}")
                os.rename("new", "pids")
                process.wait()
        """,
    )
    command = [*COMMAND, option]
    with spawned(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL) as running:
        eventually((tmp_path / "pids").exists, timeout=60)
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        shell = psutil.Process(pids[-1])
        pids.append(eventually(lambda: [child.pid for child in shell.children()])[0])
        assert all(map(is_alive, pids))
        running.kill()  # and not its group
        eventually(lambda: not any(map(is_alive, pids)), timeout=60)


def test_a_process_ends_with_all_that_it_started(eventually: Eventually) -> None:
    with spawned(["sh", "-c", "sleep 4711 & exec sleep 4712"]) as first:
        child = eventually(psutil.Process(first.pid).children)[0]
    assert first.returncode == -9
    eventually(lambda: not is_alive(child.pid))
    with spawned(["sh", "-c", "sleep 4711 & echo $!"], stdout=subprocess.PIPE) as second:
        assert second.stdout is not None
        left = psutil.Process(int(second.stdout.readline()))
        assert second.wait() == 0
        assert left.is_running()
    eventually(lambda: not is_alive(left.pid))


def test_a_program_that_takes_too_long_ends_with_all_that_it_started(
    tmp_path: Path, eventually: Eventually
) -> None:
    program = f"sleep 4711 & echo $! > {tmp_path / 'pid'}; sleep 4712"
    with pytest.raises(subprocess.TimeoutExpired):
        processes.run(["sh", "-c", program], timeout=2)
    eventually(lambda: not is_alive(int((tmp_path / "pid").read_text())))


def test_the_outcome_of_a_program_is_returned(tmp_path: Path) -> None:
    done = processes.run(["sh", "-c", "pwd; echo oh >&2; exit 3"], timeout=60, cwd=tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == (f"{tmp_path}\n", "oh\n", 3)


@pytest.mark.long
def test_half_a_character_ends_no_process_of_pytest_xdist(tmp_path: Path) -> None:
    output = run(
        tmp_path,
        """
        def test_one():
            raise ValueError("\\ud800")

        def test_two():
            pass
        """,
        "-n1",
    )
    assert "1 failed, 1 passed" in output, output


@pytest.mark.long
def test_a_process_that_ends_while_it_is_looked_at_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(process: psutil.Process) -> dict[str, str]:
        raise FileNotFoundError(f"/proc/{process.pid}/environ")

    with spawned(["sleep", "60"]) as process:
        assert process.pid in [one.process.pid for one in processes.marked(processes.RUN, {process.pid})]
        monkeypatch.setattr(psutil.Process, "environ", gone)
        assert processes.marked(processes.RUN, {process.pid}) == []
        monkeypatch.undo()
