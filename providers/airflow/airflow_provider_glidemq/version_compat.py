"""Names that Airflow before 3.3 has in another place, or lacks."""

from __future__ import annotations

import importlib
from typing import Any, Final

from airflow.sdk import log
from airflow.triggers.base import BaseTrigger
from asgiref.sync import sync_to_async

try:
    from airflow.sdk import exceptions

    exceptions.TaskDeferred  # noqa: B018
except (AttributeError, ImportError):  # Airflow 3.1
    from airflow import exceptions  # type: ignore[no-redef]

AirflowException = exceptions.AirflowException
AirflowFailException = exceptions.AirflowFailException
AirflowNotFoundException = exceptions.AirflowNotFoundException
AirflowOptionalProviderFeatureException = exceptions.AirflowOptionalProviderFeatureException
AirflowRescheduleException = exceptions.AirflowRescheduleException
AirflowSensorTimeout = exceptions.AirflowSensorTimeout
AirflowSkipException = exceptions.AirflowSkipException
AirflowTaskTimeout = exceptions.AirflowTaskTimeout
TaskDeferralError = exceptions.TaskDeferralError
TaskDeferralTimeout = exceptions.TaskDeferralTimeout
TaskDeferred = exceptions.TaskDeferred

mask_secret = log.mask_secret


async def amask_secret(secret: str) -> None:
    """Hide a secret in logs, from an event loop."""
    if hasattr(log, "amask_secret"):
        await log.amask_secret(secret)
    else:  # Airflow 3.1 and 3.2
        await sync_to_async(mask_secret)(secret)  # see triggers.shared.tasks.ask


STARTS_FROM_TRIGGER: Final = hasattr(BaseTrigger, "on_kill")
"""Whether a task may start in the triggerer, and triggers have ``on_kill``: Airflow 3.3."""


def configuration() -> Any:
    """Airflow's configuration; importing it takes time, and DAG files seldom need it."""
    try:
        found = importlib.import_module("airflow.sdk.configuration")
    except ImportError:  # Airflow 3.1
        found = importlib.import_module("airflow.configuration")
    return found.conf
