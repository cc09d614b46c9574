"""CONTRIBUTING.md and the record of decisions name what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PAGES = sorted((ROOT / "docs" / "decisions").glob("*.md"))
# Within a room that the sentence has named before.
WITHIN = (
    "glidemq_orchestrate",
    "glidemq_orchestrate/cli",
    "glidemq_orchestrate/worker",
    "lua/glidemq_orchestrate",
    "providers/airflow",
    "providers/dagster",
)


def paths(text: str) -> set[str]:
    """What stands in backticks and looks like a path."""
    return {
        word for word in re.findall(r"`([\w./-]+)`", text) if "/" in word or word.endswith((".py", ".md"))
    }


@pytest.mark.parametrize("page", [ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda page: page.name)
def test_every_path_that_is_named_is_there(page: Path) -> None:
    named = paths(page.read_text(encoding="utf-8"))
    assert named
    places = (ROOT, *(ROOT / place for place in WITHIN))
    rooms = [path for place in places for path in place.iterdir() if path.is_dir()]
    missing = {name for name in named if not any((place / name).exists() for place in (*places, *rooms))}
    assert missing == set()


def test_the_map_has_every_room() -> None:
    rooms = {
        path.name
        for path in (ROOT / "glidemq_orchestrate").iterdir()
        if path.is_dir() and (path / "__init__.py").exists()
    }
    rows = "\n".join(line for line in CONTRIBUTING.splitlines() if line.startswith("| "))
    assert {room for room in rooms if f"{room}/`" not in rows} == set()


def test_every_decision_is_linked_and_one_page_long() -> None:
    linked = set(re.findall(r"\]\((docs/decisions/[\w-]+\.md)\)", CONTRIBUTING))
    assert linked == {str(page.relative_to(ROOT)) for page in PAGES}
    for page in PAGES:
        assert len(page.read_text(encoding="utf-8").splitlines()) <= 40, page.name


def test_every_verb_of_make_has_a_recipe_and_a_line_in_its_help() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    verbs = set(re.findall(r"^\.PHONY: (.*)$", text, flags=re.MULTILINE)[0].split())
    assert verbs == set(re.findall(r"^([a-z-]+):.*## ", text, flags=re.MULTILINE))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`make ([a-z-]+)`", readme + CONTRIBUTING)) <= verbs
