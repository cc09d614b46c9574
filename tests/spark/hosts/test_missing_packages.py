"""Session hosts in an environment that lacks a package."""

from __future__ import annotations

from pathlib import Path

import pytest

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.spark.hosts.host import Host
from glidemq_orchestrate.spark.setup.spark_settings import SparkSettings

MISSING = "raise ModuleNotFoundError(f'No module named {__name__!r}', name=__name__)"


@pytest.mark.long
@pytest.mark.parametrize(
    ("absent", "named"), [(["pyspark", "py4j"], "PySpark"), (["psutil"], "psutil"), (["py4j"], "py4j")]
)
def test_the_missing_package_is_named_in_one_line(
    absent: list[str],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name in absent:
        (tmp_path / f"{name}.py").write_text(MISSING)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError) as refused:
        Host(SparkSettings("local[1]")).start()
    assert str(refused.value) == f"Spark steps need {named}: pip install 'glidemq-orchestrate[spark]'"
    assert capfd.readouterr().err == ""
