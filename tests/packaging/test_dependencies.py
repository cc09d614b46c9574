"""What is installed beside this package: exact versions from the package index, under permissive licences."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECTS = ["pyproject.toml", "providers/airflow/pyproject.toml", "providers/dagster/pyproject.toml"]
OURS = {"glidemq-orchestrate", "airflow-provider-glidemq", "dagster-glidemq"}
PERMISSIVE = re.compile(
    r"\b(MIT|BSD|Apache|ISC|PSF|Python Software Foundation|MPL|Unlicense)\b", re.IGNORECASE
)


def pins(constraints: str = "constraints.txt") -> dict[str, Version]:
    lines = (ROOT / constraints).read_text(encoding="utf-8").splitlines()
    found = {}
    for line in lines:
        assert re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.+!]*", line), f"not NAME==VERSION: {line}"
        name, _, version = line.partition("==")
        found[name] = Version(version)
    assert len(found) == len(lines), "a name is there twice"
    assert list(found) == sorted(found)
    return found


def declared(project: str) -> list[Requirement]:
    table = tomllib.loads((ROOT / project).read_text(encoding="utf-8"))
    texts = [*table["project"]["dependencies"], *table["build-system"]["requires"]]
    texts += [one for extra in table["project"].get("optional-dependencies", {}).values() for one in extra]
    groups = table.get("dependency-groups", {}).values()
    texts += [one for group in groups for one in group if isinstance(one, str)]
    return [Requirement(text) for text in texts]


@pytest.mark.parametrize("project", PROJECTS)
def test_what_a_project_declares_is_pinned_within_its_bounds(project: str) -> None:
    pinned = pins()
    for requirement in declared(project):
        assert requirement.url is None, f"{requirement} comes from a URL, not from the package index"
        name = canonicalize_name(requirement.name)
        if name not in OURS:
            assert name in pinned, f"{name} has no exact version in constraints.txt: make constraints"
            assert pinned[name] in requirement.specifier, f"{requirement} excludes {pinned[name]}"


@pytest.mark.parametrize("release", ["3.1", "3.2"])
def test_the_earlier_releases_of_airflow_are_pinned_with_all_that_the_provider_declares(release: str) -> None:
    pinned = pins(f"providers/airflow/constraints-{release}.txt")
    assert str(pinned["apache-airflow"]).startswith(f"{release}.")
    for requirement in declared("providers/airflow/pyproject.toml"):
        if canonicalize_name(requirement.name) in pinned:
            assert pinned[canonicalize_name(requirement.name)] in requirement.specifier


def needed(name: str, found: set[str]) -> set[str]:
    """A distribution and all that it needs here, without extras."""
    if name not in found:
        found.add(name)
        for text in metadata.requires(name) or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                needed(canonicalize_name(requirement.name), found)
    return found


def test_all_that_the_package_needs_is_pinned_and_under_a_permissive_licence() -> None:
    names = needed("glidemq-orchestrate", set()) - OURS
    assert len(names) > 10
    assert names <= pins().keys()
    for name in names:
        about = metadata.metadata(name)
        fields = [text for key in ("License-Expression", "License") for text in about.get_all(key) or ()]
        licence = [text.partition("\n")[0] for text in fields]
        licence += [text for text in about.get_all("Classifier") or () if text.startswith("License")]
        assert PERMISSIVE.search(" ".join(licence)), f"{name}: {licence}"
