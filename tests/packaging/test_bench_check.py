"""``make bench-check`` fails for a figure that is far exceeded, and where its figures do not hold."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks import bench_check
from benchmarks.instructions import WORKS

HERE = {"python": "3.11.7, GCC", "valkey": "9.1.0"}


@pytest.fixture
def figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Figures of one work, for the versions of here."""
    path = tmp_path / "instructions.json"
    known = {"drain": {"client": 200_000, "server": 400_000}}
    path.write_text(json.dumps({"versions": HERE, "instructions": known}))
    monkeypatch.setattr(bench_check, "FIGURES", path)
    monkeypatch.setattr(bench_check, "versions_here", lambda: HERE)
    monkeypatch.setattr(shutil, "which", lambda _: "valgrind")
    return path


def count(monkeypatch: pytest.MonkeyPatch, *times: float) -> None:
    """Let each count find so many times the figures."""
    left = list(times)

    def counted(works: list[str]) -> bench_check.Costs:
        if not works:
            return {}
        now = left.pop(0)
        return {work: {"client": int(200_000 * now), "server": 400_000} for work in works}

    monkeypatch.setattr(bench_check, "counted", counted)


@pytest.mark.usefixtures("figures")
def test_a_tenth_more_passes_and_a_fifth_more_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    count(monkeypatch, 1.1)
    bench_check.main(works="drain")
    count(monkeypatch, 1.2, 1.2)
    with pytest.raises(SystemExit, match=r"drain: the client takes 1\.20 times the instructions"):
        bench_check.main(works="drain")


@pytest.mark.usefixtures("figures")
def test_what_is_exceeded_is_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    count(monkeypatch, 1.2, 1.0)
    bench_check.main(works="drain")


@pytest.mark.usefixtures("figures")
def test_with_other_versions_it_says_so_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_check, "versions_here", lambda: HERE | {"valkey": "9.2.0"})
    count(monkeypatch)
    with pytest.raises(SystemExit, match=r"hold for valkey 9\.1\.0, not 9\.2\.0: nothing was compared"):
        bench_check.main(works="drain")


def test_renewing_writes_the_versions_and_keeps_other_figures(
    figures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count(monkeypatch, 1.0)
    bench_check.main(renew=True, works="add")
    written = json.loads(figures.read_text())
    assert written["versions"] == HERE
    assert written["instructions"].keys() == {"drain", "add"}


def test_what_workers_and_submissions_take_is_checked_for_both_sides() -> None:
    known = json.loads(bench_check.FIGURES.read_text())
    assert known["versions"].keys() == HERE.keys()
    assert {"drain", "submit fan-in"} <= known["instructions"].keys() <= set(WORKS)
    assert all(set(costs) == set(bench_check.SIDES) for costs in known["instructions"].values())
