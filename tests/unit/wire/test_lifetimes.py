"""The table of keys: it has every key that the code makes, and the page shows it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from glidemq_orchestrate.wire import keys
from glidemq_orchestrate.wire.keys import KeyName, QueueKeys
from glidemq_orchestrate.wire.lifetimes import Lives, life_of, lives, page

ROOT = Path(__file__).parents[3]
ETL = QueueKeys("glide", "etl")
ENDS = ("", "x", "x:1")
IN_LUA = re.compile(r"\b\w*(?:prefix|home|base) \.\. '([a-z:-]+)'")


def lua_names() -> set[str]:
    """The names of keys that the libraries make from the prefix of a queue."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "lua").rglob("*.lua")]
    return {name for source in sources for name in IN_LUA.findall(source)}


def test_every_key_of_the_libraries_is_in_the_table() -> None:
    names = lua_names()
    assert {"dedup", "gmo:due", "job:", "gmo:dedup"} <= names
    missing = {name for name in names if not any(life_of(f"glide:{{q}}:{name}{end}") for end in ENDS)}
    assert missing == set()


def test_every_key_of_the_clients_is_in_the_table(subtests: pytest.Subtests) -> None:
    for name in get_args(KeyName):
        with subtests.test(name=name):
            assert life_of(ETL.key(name)) is not None


def test_keys_outside_a_queue_are_in_the_table() -> None:
    for key in (keys.flow_home("glide", "f"), keys.flow_homes("glide"), keys.queues_with_usage("glide")):
        assert life_of(key) is not None
    assert life_of("glide:{etl}:unheard-of") is None
    assert life_of("glide:unheard-of") is None


def test_the_closest_pattern_counts() -> None:
    found = life_of(ETL.job("1") + ":sub:a")
    assert found is not None
    assert found.name == "job:<id>:sub:<subscription>"


def test_what_stays_with_a_queue_is_bounded() -> None:
    rows = [row for _, part in lives() for row in part]
    assert {row.name for row in rows if (row.lives is Lives.QUEUE) != (row.max_elements is not None)} == set()
    assert len({row.name for row in rows}) == len(rows)


def test_the_page_shows_the_table() -> None:
    assert (ROOT / "docs" / "reference" / "keys.md").read_text(encoding="utf-8") == page(), (
        "make tables writes it again"
    )
