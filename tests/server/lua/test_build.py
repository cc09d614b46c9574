"""The build: artefacts fresh, manifest complete, budgets kept."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import redis

ROOT = Path(__file__).parents[3]
ARTEFACTS = ROOT / "glidemq_orchestrate" / "_lua"


@pytest.fixture(scope="module")
def build() -> Any:
    spec = importlib.util.spec_from_file_location("lua_build", ROOT / "lua" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_check_finds_no_problem(build: Any, capsys: pytest.CaptureFixture[str]) -> None:
    code = build.main(["--check"])
    assert (capsys.readouterr().err, code) == ("", 0)


def test_check_names_a_stale_artefact(build: Any, tmp_path: Path) -> None:
    (tmp_path / "a.lua").write_text("old", encoding="utf-8")
    assert list(build.stale({"a.lua": "new"}, tmp_path)) == ["a.lua: stale, run lua/build.py"]
    assert list(build.stale({"a.lua": "old"}, tmp_path)) == []


def test_manifest_problems_are_named(build: Any) -> None:
    parts = ["shared/numbers.lua", "shared/numbers.lua", "shared/none.lua"]
    problems = list(build.manifest_problems({"x": {"parts": parts}}))
    assert "shared/numbers.lua: listed 2 times in x" in problems
    assert "shared/none.lua: in the manifest of x, but there is no such file" in problems
    assert "shared/events.lua: not in any manifest" in problems


def test_long_functions_and_parts_are_named(
    build: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(build, "LUA", tmp_path)
    part = tmp_path / "long.lua"
    part.write_text("local function f()\n" + "  x()\n" * 59 + "end\n" + "\n" * 140, encoding="utf-8")
    assert list(build.size_problems(part)) == [
        "long.lua: 201 lines, more than 200",
        "long.lua:1: f has 61 lines, more than 60",
    ]


@pytest.mark.parametrize(
    "case",
    [
        (
            "functions/gmo_a.lua",
            "redis.register_function('gmo_b', b)",
            "must register only gmo_a, not gmo_b",
        ),
        ("functions/gmo_a.lua", "local a = 1", "must register only gmo_a, not nothing"),
        (
            "parts/a.lua",
            "redis.register_function { function_name = 'gmo_a' }",
            "registers gmo_a; a command has",
        ),
        ("functions/gmo_a.lua", "redis.register_function { function_name = 'gmo_a' }", ""),
        ("parts/a.lua", "L.a = {}\nfunction L.b.c()\nend\n", "defines L.b; only b.lua does"),
        ("parts/a.lua", "function L.a.c()\n  L.b.d()\n  L.b.e = 1\nend\nL.a.f = f\n", ""),
    ],
)
def test_a_file_registers_and_defines_only_its_own_names(
    build: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: tuple[str, str, str]
) -> None:
    place, text, expected = case
    monkeypatch.setattr(build, "LUA", tmp_path)
    (tmp_path / place).parent.mkdir()
    (tmp_path / place).write_text(text)
    problems = list(build.name_problems(tmp_path / place))
    assert len(problems) == bool(expected)
    assert expected in "".join(problems)


def test_sum_is_that_of_the_source_without_the_sum(build: Any) -> None:
    manifest = json.loads((ARTEFACTS / "MANIFEST.json").read_text(encoding="utf-8"))
    for name, entry in manifest.items():
        source = (ARTEFACTS / f"{name}.lua").read_text(encoding="utf-8")
        bare = source.replace(entry["sha256"], build.PLACEHOLDER)
        assert hashlib.sha256(bare.encode()).hexdigest() == entry["sha256"]


@pytest.mark.every_server
def test_loaded_libraries_are_those_of_the_manifest(valkey: redis.Redis) -> None:
    manifest = json.loads((ARTEFACTS / "MANIFEST.json").read_text(encoding="utf-8"))
    client: Any = valkey
    assert client.fcall("glidemq_version", 0) == manifest["glidemq"]["version"] == "93"
    own = manifest["glidemq_orchestrate"]
    assert client.fcall_ro("gmo_version", 0) == [own["version"], own["sha256"]]


def test_library_has_exactly_the_45_functions_of_the_wire() -> None:
    source = (ARTEFACTS / "glidemq.lua").read_text(encoding="utf-8")
    names = re.findall(r"(?:function_name = |register_function\()'(\w+)'", source)
    assert len(names) == len(set(names)) == 45
    assert all(name.startswith("glidemq_") for name in names)


@pytest.mark.every_server
def test_only_adding_is_refused_when_memory_is_full(valkey: redis.Redis) -> None:
    client: Any = valkey
    library = _mapping(client.function_list("glidemq")[0])
    flags = {f["name"]: set(f["flags"]) for f in map(_mapping, library["functions"])}
    adding = {"glidemq_addJob", "glidemq_dedup", "glidemq_addFlow", "glidemq_registerParent"}
    assert {name for name, given in flags.items() if given != {"allow-oom"}} == adding
    assert all(flags[name] == set() for name in adding)


def _mapping(reply: Any) -> dict[str, Any]:
    """The pairs of a reply, which is a map or a flat array depending on the protocol."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
