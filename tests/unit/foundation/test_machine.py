"""Cores and memory, where cgroups of both versions allow less than the machine has."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psutil
import pytest

from glidemq_orchestrate.foundation import machine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MIB = 2**20


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Writes a file of a machine with eight cores, 8 GiB of memory, and what the test says of cgroups."""
    monkeypatch.setattr(machine, "PROC", tmp_path / "proc")
    monkeypatch.setattr(machine, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)

    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    write("proc/meminfo", f"MemTotal: 99 kB\nMemAvailable:    {8 * 2**20} kB\n")
    return write


@pytest.mark.usefixtures("write")
def test_without_cgroups_everything_of_the_machine_counts() -> None:
    assert machine.cores() == 8
    assert machine.available_memory() == 8192 * MIB


def test_the_quota_of_a_cgroup_limits_the_cores(write: Callable[[str, str], None]) -> None:
    write("proc/self/cgroup", "0::/pods/mine\n")
    write("cgroup/pods/mine/cpu.max", "max 100000\n")
    assert machine.cores() == 8
    write("cgroup/pods/cpu.max", "250000 100000\n")
    assert machine.cores() == 3, "two and a half cores, by a cgroup above"
    write("cgroup/pods/mine/cpu.max", "20000 100000\n")
    assert machine.cores() == 1


def test_so_does_one_of_version_1_which_a_container_sees_as_the_root(
    write: Callable[[str, str], None],
) -> None:
    write("proc/self/cgroup", "4:cpu,cpuacct:/docker/abc\n5:memory:/docker/abc\n0::/\n")
    write("cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    write("cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert machine.cores() == 8
    write("cgroup/cpu/cpu.cfs_quota_us", "400000\n")
    assert machine.cores() == 4
    write("cgroup/memory/memory.limit_in_bytes", f"{512 * MIB}\n")
    write("cgroup/memory/memory.usage_in_bytes", f"{400 * MIB}\n")
    write("cgroup/memory/memory.stat", f"cache 1\ntotal_inactive_file {100 * MIB}\n")
    assert machine.available_memory() == 212 * MIB


def test_the_affinity_limits_them_too(
    write: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    write("proc/self/cgroup", "0::/\n")
    write("cgroup/cpu.max", "600000 100000")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {1, 5}, raising=False)
    assert machine.cores() == 2


def test_a_cgroup_leaves_what_is_neither_used_nor_cached(write: Callable[[str, str], None]) -> None:
    write("proc/self/cgroup", "0::/mine\n")
    write("cgroup/mine/memory.max", "max\n")
    write("cgroup/mine/memory.current", f"{900 * MIB}\n")
    assert machine.available_memory() == 8192 * MIB
    write("cgroup/mine/memory.max", f"{1024 * MIB}\n")
    write("cgroup/mine/memory.stat", f"anon 5\ninactive_file {300 * MIB}\nactive_file 7\n")
    assert machine.available_memory() == 424 * MIB
    write("cgroup/mine/memory.current", f"{2000 * MIB}\n")
    assert machine.available_memory() == 0


@pytest.mark.usefixtures("write")
def test_memory_is_unknown_where_nothing_tells_of_it(tmp_path: Path) -> None:
    (tmp_path / "proc" / "meminfo").unlink()
    assert machine.available_memory() is None


def test_the_memory_of_this_process_is_what_others_measure() -> None:
    assert machine.resident_memory() == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)


@pytest.mark.usefixtures("write")
def test_without_proc_it_is_the_most_that_it_has_used() -> None:
    assert machine.resident_memory() >= psutil.Process().memory_info().rss * 0.9
