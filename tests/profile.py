"""How much the tests try: all of them with ``GLIDEMQ_TEST_PROFILE=all``, and more in each with ``long``.

With ``cluster`` they run on a cluster: see ``tests/clustered.py``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar
from zlib import crc32

import pytest

T = TypeVar("T")

PROFILE: Final = os.environ.get("GLIDEMQ_TEST_PROFILE", "")
IS_LONG: Final = PROFILE == "long"
IS_ALL: Final = IS_LONG or PROFILE == "all"
IS_CLUSTER: Final = PROFILE == "cluster"
if PROFILE not in {"", "all", "long", "cluster"}:
    message = f"GLIDEMQ_TEST_PROFILE is {PROFILE!r}. Fix: leave it out, or use all, long or cluster"
    raise ValueError(message)


# Tests that cannot hold on a cluster, by the reason: a file, a class, or a test.
NOT_ON_A_CLUSTER: Final[Mapping[str, Sequence[str]]] = {
    "a job and its parent in different slots": (
        "tests/server/queues/test_shards.py::test_a_child_in_another_queue_finds_its_parent_in_a_shard",
    ),
}


def sampled(whole: Sequence[T], step: int = 6) -> Sequence[T]:
    """The first, each ``step``-th after it and the last; all in the long profile.

    For the places at which somebody dies: what one of them finds, its neighbours mostly find too.
    """
    return whole if IS_LONG else [*whole[:-1:step], whole[-1]]


# What a test that uses such a fixture shows, it mostly shows with each of these values.
SHARED: Final[Mapping[str, Sequence[str]]] = {
    "path": ("staged", "portable"),
    "twins": ("sync", "async"),
    "slot_servers": ("cluster", "one server without our functions"),
}


def is_left_out(item: pytest.Item) -> bool:
    """Whether ``make test`` does without it: it is marked, or its neighbour with another value runs.

    The name of a test decides on which value it runs, so each value has its share of the tests.
    """
    if item.get_closest_marker("long"):
        return True
    if IS_CLUSTER and any(item.nodeid.startswith(tuple(names)) for names in NOT_ON_A_CLUSTER.values()):
        return True
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return False
    chosen = {mark.args[0] for mark in item.iter_markers("parametrize")}
    return any(
        item.callspec.params[name] != values[crc32(item.originalname.encode()) % len(values)]
        for name, values in SHARED.items()
        if name in item.callspec.params and name not in chosen and not (IS_CLUSTER and name == "path")
    )
