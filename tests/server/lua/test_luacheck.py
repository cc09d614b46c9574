"""Luacheck finds nothing: no undeclared global, no unused name, no shadowed one."""

from __future__ import annotations

import subprocess
from pathlib import Path

from glidemq_orchestrate.chasquimq import scripts
from tests.server.lua.servers import installed

LUA = Path(__file__).parents[3] / "lua"


def _luacheck(*paths: Path) -> tuple[int, str]:
    options = (
        "--std",
        "lua51",
        "--globals",
        "redis",
        "cjson",
        "struct",
        "L",
        "--no-max-line-length",
        "--no-color",
    )
    command = [str(installed("luacheck", package="lua-check")), *options, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_sources_are_clean() -> None:
    code, output = _luacheck(*(LUA / part for part in ("shared", "glidemq", "glidemq_orchestrate")))
    assert code == 0, output


def test_scripts_for_chasquimq_are_clean(tmp_path: Path) -> None:
    for number, text in enumerate(scripts.ALL):
        body = text.removeprefix("#!lua flags=allow-oom")
        (tmp_path / f"{number}.lua").write_text(
            f"local KEYS, ARGV = ...\nassert(KEYS and ARGV)\n{body}", encoding="utf-8"
        )
    code, output = _luacheck(tmp_path)
    assert code == 0, output


def test_undeclared_global_is_found(tmp_path: Path) -> None:
    part = tmp_path / "part.lua"
    part.write_text("local function f()\n  leaked = redis.call('GET', 'x')\nend\nf()\n", encoding="utf-8")
    code, output = _luacheck(part)
    assert code == 1
    assert "leaked" in output
