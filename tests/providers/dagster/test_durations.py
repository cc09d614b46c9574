"""Durations in config: seconds, a text, a variable of the environment; in Python also a ``timedelta``."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import dagster as dg
import pytest
from dagster_glidemq import (
    GlideMQResource,
    GlideMQRunLauncher,
    PipesGlideMQClient,
    build_glidemq_queue_depth_sensor,
    glidemq_executor,
)
from dagster_glidemq.durations import in_seconds

URL = "valkey://127.0.0.1:1"  # nobody listens there
FIELDS = ("connect_timeout", "socket_timeout", "patience", "worker_timeout", "lease", "cancel_patience")
OF_PIPES = ("termination_timeout", "start_timeout", "poll_interval")
MINUTE: list[Any] = [60, 60.0, "60", "1m", "PT1M", timedelta(minutes=1)]


@dg.op
def shows(glidemq: GlideMQResource) -> dict[str, float]:
    return {name: in_seconds(name, getattr(glidemq, name)) for name in FIELDS}


@dg.op
def shows_pipes(pipes: PipesGlideMQClient) -> dict[str, float]:
    return {name: in_seconds(name, getattr(pipes, name)) for name in (*FIELDS, *OF_PIPES)}


@dg.job
def job() -> None:
    shows()


@dg.job
def pipes_job() -> None:
    shows_pipes()


def shown(resource: Any, config: dict[str, Any] | None = None) -> Any:
    run_config = None if config is None else {"resources": {"glidemq": {"config": config}}}
    found = dg.Definitions(jobs=[job], resources={"glidemq": resource}).resolve_job_def("job")
    return found.execute_in_process(run_config=run_config).output_for_node("shows")


def test_a_resource_takes_durations_of_every_form(subtests: pytest.Subtests) -> None:
    for minute in MINUTE:
        with subtests.test(minute=minute):
            assert shown(GlideMQResource(url=URL, **dict.fromkeys(FIELDS, minute))) == dict.fromkeys(
                FIELDS, 60
            )


@pytest.mark.long
def test_so_does_the_config_of_a_run(monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    for minute in (60, 60.0, "1m", "PT1M", {"env": "A_MINUTE"}):
        with subtests.test(minute=minute):
            monkeypatch.setenv("A_MINUTE", "1m")
            config = {"url": URL, **dict.fromkeys(FIELDS, minute)}
            assert shown(GlideMQResource.configure_at_launch(), config) == dict.fromkeys(FIELDS, 60)


def test_a_variable_is_read_when_the_resource_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = GlideMQResource(url=URL, patience=dg.EnvVar("A_PATIENCE"))
    monkeypatch.setenv("A_PATIENCE", "90s")
    assert shown(resource)["patience"] == 90
    monkeypatch.delenv("A_PATIENCE")
    with pytest.raises(dg.DagsterResourceFunctionError) as told:
        shown(resource)
    assert "patience: the environment variable A_PATIENCE is not set" in str(told.value.__cause__)


def test_the_pipes_client_takes_them_too() -> None:
    names = (*FIELDS, *OF_PIPES)
    given: dict[str, Any] = dict.fromkeys(names, "1m")
    resources = {"pipes": PipesGlideMQClient(url=URL, **given)}
    found = dg.Definitions(jobs=[pipes_job], resources=resources).resolve_job_def("pipes_job")
    assert found.execute_in_process().output_for_node("shows_pipes") == dict.fromkeys(names, 60)


def test_what_is_no_duration_is_refused_by_its_name(subtests: pytest.Subtests) -> None:
    none: list[Any] = [-1, "soon", "-5", float("inf"), True, [5]]
    for wrong in none:
        for name in (*FIELDS, *OF_PIPES):
            with subtests.test(wrong=wrong, name=name), pytest.raises(ValueError, match=f"{name} must "):
                PipesGlideMQClient(url=URL, **{name: wrong})


def test_none_means_no_limit_where_there_may_be_none() -> None:
    client = PipesGlideMQClient(url=URL, worker_timeout=None, lease=None, start_timeout=None)
    assert (client.worker_timeout, client.lease, client.start_timeout) == (None, None, None)
    with pytest.raises(ValueError, match="patience must be"):
        GlideMQResource(url=URL, patience=None)  # type: ignore[arg-type]


def test_the_run_launcher_takes_them_too(subtests: pytest.Subtests) -> None:
    for minute in ("1m", 60, timedelta(minutes=1)):
        with subtests.test(minute=minute):
            config = {"url": URL, "lease": minute, "grace": minute, "patience": minute}
            launcher = GlideMQRunLauncher.from_config_value(None, config)
            assert (launcher._lease, launcher._grace) == (timedelta(minutes=1), 60)
            assert launcher.connection.patience == 60
            for name, wrong in (("lease", "500ms"), ("lease", "2d"), ("grace", "2d"), ("grace", "soon")):
                with pytest.raises(ValueError, match=f"{name} must be"):
                    GlideMQRunLauncher.from_config_value(None, {"url": URL, name: wrong})


@dg.job(executor_def=glidemq_executor)
def queued() -> None:
    shows()


def test_the_config_of_the_executor_knows_them() -> None:
    given = {"url": URL, "patience": "2m", "lease": "30s", "grace": "PT15S", "poll_interval": "100ms"}
    config = {**given, "start_timeout": 300, "connect_timeout": {"env": "A_MINUTE"}}
    resources = {"glidemq": {"config": {"url": URL}}}
    found = dg.Definitions(jobs=[queued], resources={"glidemq": GlideMQResource.configure_at_launch()})
    assert dg.validate_run_config(
        found.resolve_job_def("queued"), {"execution": {"config": config}, "resources": resources}
    )


def test_a_sensor_takes_them_too(subtests: pytest.Subtests) -> None:
    options: Any = {"name": "s", "queue": "etl", "at_least": 1, "job": job}
    assert build_glidemq_queue_depth_sensor(repeat=timedelta(hours=1), **options)
    none: list[Any] = [-1, "soon", float("nan")]
    for wrong in none:
        with subtests.test(wrong=wrong), pytest.raises(ValueError, match="repeat must "):
            build_glidemq_queue_depth_sensor(repeat=wrong, **options)
