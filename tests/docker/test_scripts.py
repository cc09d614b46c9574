"""The two programs beside the compose file."""

from __future__ import annotations

import importlib.util
import stat
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DOCKER = Path(__file__).parents[2] / "docker"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCKER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def healthcheck() -> ModuleType:
    return load("healthcheck")


def test_a_worker_is_healthy_while_it_serves_its_queue(
    healthcheck: ModuleType, url: str, run_worker: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLIDEMQ_URL", url)
    assert healthcheck.main(["spark"]) == 1
    worker = run_worker(["spark"], {"step": lambda _: None})
    assert healthcheck.main(["spark"]) == 0
    assert healthcheck.main(["spark", "other"]) == 1
    monkeypatch.setattr(healthcheck.socket, "gethostname", lambda: "another-container")
    assert healthcheck.main(["spark"]) == 1
    monkeypatch.undo()
    monkeypatch.setenv("GLIDEMQ_URL", url)
    worker.stop()
    assert healthcheck.main(["spark"]) == 1


def test_without_a_server_or_a_queue_it_is_not_healthy(
    healthcheck: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GLIDEMQ_URL", "valkey://:secret@127.0.0.1:1")
    assert healthcheck.main(["spark"]) == 1
    assert healthcheck.main([]) == 1
    monkeypatch.delenv("GLIDEMQ_URL")
    assert healthcheck.main(["spark"]) == 1
    assert "secret" not in capsys.readouterr().out


def test_queues_are_read_from_a_command_line(healthcheck: ModuleType) -> None:
    command = ["python", "glidemq", "worker", "--queue", "etl", "--queue=spark", "--app", "x"]
    assert healthcheck.options(command, "--queue") == ["etl", "spark"]


def test_secrets_are_fresh_usable_and_private(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from cryptography.fernet import Fernet  # noqa: PLC0415  here only

    make_env = load("make_env")
    for name in ("one", "two"):
        make_env.main(tmp_path / name)
    first, second = ((tmp_path / name).read_text() for name in ("one", "two"))
    values = dict(line.split("=", 1) for line in first.splitlines() if not line.startswith("#"))
    Fernet(values["AIRFLOW_FERNET_KEY"])
    assert values["POSTGRES_PASSWORD"].isalnum()
    assert not set(values.values()) & {line.split("=", 1)[-1] for line in second.splitlines()}
    assert stat.S_IMODE((tmp_path / "one").stat().st_mode) == 0o600
    make_env.main(tmp_path / "one")
    assert (tmp_path / "one").read_text() == first
    assert "is kept" in capsys.readouterr().out
