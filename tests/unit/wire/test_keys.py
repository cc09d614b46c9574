"""Names of keys, and what may be part of one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glidemq_orchestrate.errors import ConfigurationError, InvalidJob
from glidemq_orchestrate.wire.keys import (
    TABLES_OF_FLOWS,
    QueueKeys,
    check_flow_id,
    check_job_id,
    check_queue_name,
    flow_home,
    generation_id,
    is_node_id,
    node_job_id,
    read_generation,
)

KEYS = QueueKeys("glide", "etl")
ROOT = Path(__file__).parents[3]


def test_every_key_of_a_queue_has_its_hash_tag() -> None:
    made = [
        KEYS.key("stream"),
        KEYS.job("7"),
        KEYS.log("7"),
        KEYS.worker("w1"),
        KEYS.workers(),
        KEYS.flow("f:1"),
    ]
    assert made == [
        "glide:{etl}:stream",
        "glide:{etl}:job:7",
        "glide:{etl}:log:7",
        "glide:{etl}:w:w1",
        "glide:{etl}:gmo:workers",
        "glide:{etl}:gmo:flow:f:1",
    ]
    assert flow_home("glide", "f:1") == "glide:gmo:home:{f:1}"
    assert QueueKeys("other", "etl").base == "other:{etl}"


def test_a_usable_queue_name_comes_back(subtests: pytest.Subtests) -> None:
    for name in ("a", "x" * 256, "with space", "a.b-c_d", "größe", "a/b"):
        with subtests.test(name=name):
            assert check_queue_name(name) == name


def test_a_bad_queue_name_is_refused(subtests: pytest.Subtests) -> None:
    for name in ("", "x" * 257, "a:b", "a{b", "a}b"):
        with subtests.test(name=name), pytest.raises(ConfigurationError, match="queue name"):
            check_queue_name(name)


def test_a_usable_job_id_comes_back(subtests: pytest.Subtests) -> None:
    for job_id in ("1", "x" * 256, "nightly~clean", "a|b", "a b"):
        with subtests.test(job_id=job_id):
            assert check_job_id(job_id) == job_id


def test_a_bad_job_id_is_refused(subtests: pytest.Subtests) -> None:
    for job_id in ("", "x" * 257, "a:b", "a{b", "a}b", "a\nb", "a\x7f", "a||b"):
        with subtests.test(job_id=job_id), pytest.raises(InvalidJob, match="job id"):
            check_job_id(job_id)


def test_a_usable_flow_id_comes_back(subtests: pytest.Subtests) -> None:
    for flow_id in ("f", "manual__2026-01-01T00:00:00+00:00", "x" * 256):
        with subtests.test(flow_id=flow_id):
            assert check_flow_id(flow_id) == flow_id


def test_a_bad_flow_id_is_refused(subtests: pytest.Subtests) -> None:
    for flow_id in ("", "x" * 257, "a{b", "a}b", "a\nb", "a\x00"):
        with subtests.test(flow_id=flow_id), pytest.raises(ConfigurationError, match="flow id"):
            check_flow_id(flow_id)


def test_a_flow_id_cannot_name_the_table_of_another_flow(subtests: pytest.Subtests) -> None:
    for table in TABLES_OF_FLOWS:
        with subtests.test(table=table):
            with pytest.raises(ConfigurationError, match="flow id"):
                check_flow_id(f"other:{table}")
            assert check_flow_id(f"other-{table}")


def test_the_job_id_of_a_node_is_readable_where_the_names_allow_it() -> None:
    assert node_job_id("nightly-2026-01-01", "clean") == "nightly-2026-01-01~clean"


@given(st.text(min_size=1, max_size=256), st.text(min_size=1, max_size=256))
def test_the_job_id_of_any_node_is_a_job_id(flow_id: str, node: str) -> None:
    job_id = node_job_id(flow_id.replace("\ud800", "x"), node)
    assert check_job_id(job_id) == job_id
    assert job_id == node_job_id(flow_id.replace("\ud800", "x"), node)


def test_the_job_ids_of_different_nodes_differ() -> None:
    names = ["a", "b", "a~b", "b~c", "ä", "a:b", "x" * 120, "x" * 121]
    ids = {node_job_id(flow_id, node) for flow_id in names for node in names}
    assert len(ids) == len(names) ** 2


def test_a_hashed_job_id_shows_that_it_is_one() -> None:
    assert re.fullmatch(r"gmo-[0-9a-f]{32}", node_job_id("manual__2026-01-01T00:00:00+00:00", "clean"))


def test_the_id_of_a_generation_is_read_back(subtests: pytest.Subtests) -> None:
    for flow_id in ("f", "a:b", "é" * 256, "a.1", "x@3.0a1b2c3d"):
        for number in (0, 1, 17, 99_999):
            with subtests.test(flow_id=flow_id, number=number):
                stored = generation_id(flow_id, number, "restart")
                assert read_generation(stored) == (flow_id, number)
                assert (stored == flow_id) is (number == 0)
                assert QueueKeys("p", "q").generations(stored) == f"p:{{q}}:gmo:generations:{flow_id}"
                assert flow_home("p", stored) == flow_home("p", flow_id)
                check_job_id(node_job_id(stored, "n" * 120))


def test_jobs_of_generations_have_ids_of_their_own() -> None:
    first, second = (generation_id("f", 1, origin) for origin in ("a", "b"))
    found = {node_job_id(flow_id, "n") for flow_id in ("f", first, second, generation_id("f", 2, "a"))}
    assert len(found) == 4
    assert node_job_id(first, "n").startswith("f@1.")
    taken = node_job_id(first, "n").removesuffix("~n")
    assert node_job_id(taken, "n") not in found  # a flow that a user named like it


def test_the_tables_of_a_flow_are_those_that_the_library_removes() -> None:
    text = (ROOT / "lua/glidemq_orchestrate/parts/retain.lua").read_text()
    found = re.search(r"local TABLES = \{([^}]*)\}", text)
    assert found is not None
    assert set(re.findall(r"'(\w+)'", found[1])) == set(TABLES_OF_FLOWS)


def test_the_ids_of_the_nodes_of_a_flow_are_told_from_those_of_children(subtests: pytest.Subtests) -> None:
    for flow in ("nightly", "run:1", generation_id("nightly", 3, "x")):
        for own in ("clean", "clean it"):
            with subtests.test(flow=flow, own=own):
                mine = node_job_id(flow, own)
                assert all(is_node_id(mine, node_job_id(flow, other)) for other in ("load", "load it"))
                assert not is_node_id(mine, "17")
                assert not is_node_id("nightly~clean", "other~clean")
