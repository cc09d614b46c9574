"""Why a session cannot be built. Its name comes last: no test after these needs the session that they end."""

from __future__ import annotations

import psutil
import pytest

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.spark.sessions.warm import WarmSession, warm_session
from glidemq_orchestrate.spark.setup.spark_settings import SparkSettings


@pytest.mark.long
@pytest.mark.parametrize(
    ("conf", "why"),
    [
        ({}, r"\[Errno 2\] No such file .*'/nowhere/.*spark-submit'\. Fix: set SPARK_HOME"),
        (
            {"spark.driver.memory": "100m"},
            ".*System memory .* must be at least",
        ),
        ({"spark.driver.memory": "lots"}, "its JVM ends when it starts; its output shows why"),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # PySpark closes no pipe then
def test_why_a_session_cannot_be_built_is_told_in_a_sentence(
    conf: dict[str, str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm_session.stop()  # else its JVM would be used
    if not conf:
        monkeypatch.setenv("SPARK_HOME", "/nowhere")
    warm = WarmSession(SparkSettings("local[1]", conf))
    with pytest.raises(ConfigurationError, match=f"Spark cannot be started: {why}") as caught:
        warm.get()
    assert "\n" not in str(caught.value)
    assert not [child for child in psutil.Process().children() if child.name() == "java"]
