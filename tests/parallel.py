"""How the tests are shared out among the processes of pytest-xdist: a file goes to one, in one piece."""

from __future__ import annotations

import gc
import re
from collections.abc import Generator
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.profile import IS_ALL, is_left_out

__all__ = [
    "pytest_collection",
    "pytest_collection_modifyitems",
    "pytest_report_to_serializable",
    "pytest_xdist_make_scheduler",
]

# What takes longest comes first. Whole systems run one at a time. Spark has two sessions, each for about half
# of its tests; steps and programs that start a driver of their own run beside them.
OWN_DRIVERS: Final = ("tests/spark/hosts/", "tests/spark/submit/")
TABLES: Final = ("tests/spark/iceberg/", "tests/spark/published/", "tests/spark/test_sharing.py")
SYSTEMS: Final = (
    "tests/system/test_demo.py",
    "tests/system/test_airflow_flow.py",
    "tests/system/",
    "tests/providers/airflow/test_airflow_stack.py",
)
FIRST: Final = (
    *TABLES, "tests/spark/test_", *OWN_DRIVERS, *SYSTEMS, "tests/properties/", "tests/server/testing/",
    "tests/chaos/", "tests/server/lua/", "tests/typing/",
)  # fmt: skip
SERVER: Final = re.compile(r"[\[-](valkey|redis7|cluster)[\]-]")


def group_of(nodeid: str) -> str:
    """What must run in one process: tests with this in common share what is costly to start."""
    path, _, name = nodeid.partition("::")
    if path.startswith(SYSTEMS):
        return "systems"
    if path.startswith(OWN_DRIVERS):
        return "spark with other drivers"
    if path.startswith(TABLES):
        return "spark with tables"
    if path.startswith("tests/spark/"):
        return "spark"
    if path.startswith("tests/server/lua/") and (server := SERVER.search(name)):
        return f"lua on {server[1]}"
    return path


class Groups(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """An idle process gets the next group, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    """Use our groups, whatever ``--dist`` is."""
    config.option.loadscopereorder = False
    return Groups(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Leave garbage uncollected: what is imported here stays, and looking at it again and again costs 4 s."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is for ``make test-all``; what takes longest comes first, not alone at the end."""
    left_out = [item for item in items if not IS_ALL and is_left_out(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]

    def place(item: pytest.Item) -> int:
        found = [at for at, path in enumerate(FIRST) if item.nodeid.startswith(path)]
        return min(found, default=len(FIRST))

    items.sort(key=place)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Half a character in what a test logged must not end the process that reports it."""
    return _sendable((yield))


def _sendable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {name: _sendable(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_sendable, value))
    return value
