from __future__ import annotations

from typing import Any

import pytest

from glidemq_orchestrate import Worker
from glidemq_orchestrate.cli.process import load_handlers, package_of
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.worker.allowed_imports import is_allowed

URL = "valkey://127.0.0.1:1"


@pytest.mark.parametrize(
    ("module", "allowed", "expected"),
    [
        ("mypackage", ["mypackage"], True),
        ("mypackage.sub.steps", ["mypackage"], True),
        ("mypackage2", ["mypackage"], False),
        ("mypackage", ["mypackage.sub"], False),
        ("mypackage.sub", ["other", "mypackage.sub"], True),
        ("mypackage.submarine", ["mypackage.sub"], False),
        ("", ["mypackage"], False),
        ("mypackage", [], False),
    ],
)
def test_packages_are_compared_by_whole_parts(module: str, allowed: list[str], *, expected: bool) -> None:
    assert is_allowed(module, allowed) is expected


@pytest.mark.parametrize("wrong", ["mypackage", [""], ["my-package"], ["a..b"], ["a:b"], ["*"], [3], ["a."]])
def test_an_invalid_list_of_packages_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="allow_import"):
        Worker(URL, queues=["etl"], allow_import=wrong)


@pytest.mark.parametrize(
    ("app", "package"),
    [
        ("glidemq_orchestrate.spark", "glidemq_orchestrate.spark"),
        ("glidemq_orchestrate.spark:handlers", "glidemq_orchestrate.spark"),
        ("glidemq_orchestrate.spark.steps", "glidemq_orchestrate.spark"),
        ("a_module_alone", "a_module_alone"),
    ],
)
def test_the_default_is_the_package_of_the_app(
    app: str, package: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_module_alone.py").write_text("from glidemq_orchestrate import Handlers\nh = Handlers()\n")
    monkeypatch.syspath_prepend(tmp_path)
    load_handlers(app)
    assert package_of(app) == package
