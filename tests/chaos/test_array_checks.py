"""The checker sees broken promises of arrays: each is put where all is well."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from glidemq_orchestrate.testing.chaos.ledger import LedgerEntry
from tests.chaos.array_checks import _at_once
from tests.chaos.campaign import undisturbed
from tests.chaos.checker import Checker
from tests.chaos.leftovers import leftovers
from tests.chaos.round import Round
from tests.chaos.size import Size

pytestmark = pytest.mark.long  # a round takes seconds

Entries = list[LedgerEntry]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Round]:
    """A round in which nothing goes wrong."""
    size = Size(flows=1, seconds=2, widest=3, arrays=2, node_workers=0, longs=0)
    with undisturbed(363, tmp_path_factory.mktemp("round"), size) as done:
        yield done


def problems(played: Round, entries: Entries) -> str:
    return "\n".join(Checker(played.world.url, played.world.plan, entries).violations())


def accepted(entries: Entries) -> LedgerEntry:
    """The accepted end of an element, of a flow that nobody has changed."""
    steered = {entry["flow"] for entry in entries if entry["kind"] == "steered"}
    return next(
        entry
        for entry in entries
        if entry["kind"] == "completed" and entry["job"][-1] == "]" and entry["flow"] not in steered
    )


def test_nothing_is_found_where_nothing_went_wrong(played: Round) -> None:
    assert not problems(played, played.entries)
    assert not list(leftovers(played.servers[0].client, played.world.plan.all_queues))


def test_an_element_that_was_accepted_twice(played: Round) -> None:
    assert "accepted 2 times" in problems(played, [*played.entries, accepted(played.entries)])


def test_a_result_that_no_run_has_written(played: Round) -> None:
    run = accepted(played.entries)["run"]
    entries = [one for one in played.entries if one["kind"] != "begin" or one["run"] != run]
    assert "which no run of it has written" in problems(played, entries)


def test_a_result_of_an_attempt_that_another_has_replaced(played: Round) -> None:
    run = accepted(played.entries)["run"]
    begin = next(one for one in played.entries if one["kind"] == "begin" and one["run"] == run)
    later = begin | {"run": "another", "epoch": begin["epoch"] + 1}
    assert "another had taken the job over" in problems(played, [*played.entries, later])


def test_counts_that_do_not_add_up(played: Round) -> None:
    client, job = played.servers[0].client, accepted(played.entries)
    key = f"glide:{{{job['queue']}}}:gmo:array:{job['job'].rpartition('[')[0]}"
    client.hincrby(key, "completed", 1)
    try:
        assert "results and" in problems(played, played.entries)
    finally:
        client.hincrby(key, "completed", -1)


def test_a_slice_that_is_left(played: Round) -> None:
    client, key = played.servers[0].client, "glide:{etl}:job:x~a{1}"
    client.hset(key, "state", "active")
    try:
        assert any("slice of an array" in text for text in leftovers(client, ["etl"]))
    finally:
        client.delete(key)


def test_how_many_ran_at_once() -> None:
    assert _at_once([(0, 5), (5, 9), (6, 7), (8, 12)]) == 2
