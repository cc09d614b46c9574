"""How much the tests try: all of them with ``GLIDEMQ_TEST_PROFILE=all``, and more in each with ``long``.

With ``cluster`` they run on a cluster, with ``shards`` each queue has four shards; ``cluster-shards`` is
both: see ``tests/clustered.py``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar
from zlib import crc32

import pytest

T = TypeVar("T")

PROFILES: Final = ("all", "long", "cluster", "shards", "cluster-shards")
PROFILE: Final = os.environ.get("GLIDEMQ_TEST_PROFILE", "")
IS_LONG: Final = PROFILE == "long"
IS_ALL: Final = IS_LONG or PROFILE == "all"
IS_CLUSTER: Final = PROFILE in {"cluster", "cluster-shards"}
IS_SHARDED: Final = PROFILE in {"shards", "cluster-shards"}
if PROFILE not in {"", *PROFILES}:
    message = f"GLIDEMQ_TEST_PROFILE is {PROFILE!r}. Fix: leave it out, or use one of {', '.join(PROFILES)}"
    raise ValueError(message)


# Tests that cannot hold on a cluster, by the reason: a file, a class, or a test.
NOT_ON_A_CLUSTER: Final[Mapping[str, Sequence[str]]] = {
    "a cluster has one database": (
        "tests/server/clients/test_events.py::test_the_logs_of_two_databases_that_take_turns_stay_short",
    ),
    "connections to one server are cut": (
        "tests/server/flows/arrays/test_long_elements.py::test_a_lost_reply_to_an_early_report_changes_nothing",
        "tests/server/flows/arrays/test_long_elements.py::test_the_end_of_a_kept_element_waits_for_the_early_report",
    ),
    "a job and its parent in different slots": (
        "tests/server/queues/test_shards.py::test_a_child_in_another_queue_finds_its_parent_in_a_shard",
    ),
}


# Tests that cannot hold where queues have shards, by the reason.
NOT_WITH_SHARDS: Final[Mapping[str, Sequence[str]]] = {
    "priorities, ordering keys, limits, batches and dependencies of jobs hold within a shard": (
        "tests/server/flows/arrays/test_priorities.py::test_jobs_and_arrays_with_a_priority_run_in_its_order",
        "tests/server/flows/test_limits.py::TestPlaces",
        "tests/server/flows/test_waits.py::test_a_rate_limit_of_the_queue_says_until_when",
        "tests/server/queues/test_dependencies.py",
        "tests/server/worker/test_places.py::test_a_limit_that_is_changed_counts_at_once",
        "tests/server/worker/test_time_limits.py::test_the_limit_of_a_batch_is_the_longest_of_its_jobs",
    ),
    "jobs, nodes and usage name their shard": (
        "tests/server/clients/test_contract.py::TestFlows::test_a_flow_is_submitted_watched_and_read",
        "tests/server/clients/test_contract.py::TestQueues::test_an_added_job_waits_with_its_data",
        "tests/server/flows/generations/test_keeping.py::test_another_home_queue_and_name",
        "tests/server/flows/generations/test_keeping.py::test_with_another_home_queue_it_is_submitted_as_often_as_you_like",
        "tests/server/flows/test_read_by_name.py::test_single_nodes_and_chosen_results_are_read_by_name",
        "tests/server/queues/test_usage.py::TestSummary::test_the_minutes_asked_for_are_summed_over_queues",
        "tests/server/worker/test_log_lines.py::test_each_attempt_ends_with_a_line_that_names_node_flow_outcome_and_seconds",
    ),
    "each shard has its own order, bounds and events": (
        "tests/server/clients/test_contract.py::TestEvents",
        "tests/server/queues/test_history.py::test_the_first_entry_and_the_newest_are_kept",
        "tests/server/queues/test_listing.py::test_an_invalid_bound_is_refused",
        "tests/server/queues/test_open_arrays.py::test_of_many_arrays_only_some_are_counted",
        "tests/server/queues/test_tags.py",
    ),
    "it counts on a queue without shards, or on no queue": (
        "tests/server/clients/test_client.py::test_a_client_passes_on_its_prefix_and_the_arguments_of_each_kind",
        "tests/server/queues/test_listing.py::test_the_queues_of_a_server_are_listed_by_name",
        "tests/server/worker/test_fencing.py::test_a_handler_is_told_that_it_does_not_own_its_job",
    ),
}  # fmt: skip
# Tests with these fixtures look at the keys of a queue, not of its shards.
LOOKS_INSIDE: Final = frozenset({"redis_client", "hand", "dump", "raw"})


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
    if IS_SHARDED and any(item.nodeid.startswith(tuple(names)) for names in NOT_WITH_SHARDS.values()):
        return True
    if IS_SHARDED and not LOOKS_INSIDE.isdisjoint(getattr(item, "fixturenames", ())):
        return True
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return False
    chosen = {mark.args[0] for mark in item.iter_markers("parametrize")}
    return any(
        item.callspec.params[name] != values[crc32(item.originalname.encode()) % len(values)]
        for name, values in SHARED.items()
        if name in item.callspec.params and name not in chosen and not (IS_CLUSTER and name == "path")
    )
