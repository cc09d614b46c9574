"""What is missing is reported in one sentence, with what to do about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from glidemq_orchestrate.demo.preflight import ensure_disk, ensure_java, ensure_packages
from glidemq_orchestrate.errors import ConfigurationError, JavaMissing


def test_a_missing_java_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)

    with pytest.raises(JavaMissing, match="openjdk-17-jre-headless"):
        ensure_java()


def test_a_java_that_cannot_be_installed_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    apt = tmp_path / "apt-get"
    apt.write_text("#!/bin/sh\necho 'no network here' >&2\nexit 100\n")
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("shutil.which", lambda name, **_: str(apt) if name == "apt-get" else None)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    lines: list[str] = []

    with pytest.raises(JavaMissing, match=r"apt-get update failed: no network here"):
        ensure_java(lines.append)
    assert lines == ["Java is missing; installing openjdk-17-jre-headless with apt-get ..."]


def test_a_full_disk_says_how_much_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"GiB are free in .*, 1048576 are needed; free some space"):
        ensure_disk(tmp_path / "new", needed=2**50)
    assert (tmp_path / "new").is_dir()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigurationError, match=r"cannot create .*/file/below"):
        ensure_disk(tmp_path / "file" / "below")


def test_missing_packages_are_listed() -> None:
    with pytest.raises(ConfigurationError, match=r"packages no_such_one, nor_this; `make setup`"):
        ensure_packages(["json", "no_such_one", "nor_this"])
