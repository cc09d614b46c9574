"""Names that Airflow before 3.3 has in another place, or lacks."""

from __future__ import annotations

import importlib
from typing import Any, Final

from airflow.sdk.log import mask_secret
from airflow.triggers.base import BaseTrigger
from asgiref.sync import sync_to_async

try:
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowOptionalProviderFeatureException,
        AirflowRescheduleException,
        AirflowSensorTimeout,
        AirflowSkipException,
        AirflowTaskTimeout,
        TaskDeferralError,
        TaskDeferralTimeout,
        TaskDeferred,
    )
except ImportError:  # Airflow 3.1
    from airflow.exceptions import (  # type: ignore[attr-defined, no-redef]
        AirflowException,
        AirflowFailException,
        AirflowOptionalProviderFeatureException,
        AirflowRescheduleException,
        AirflowSensorTimeout,
        AirflowSkipException,
        AirflowTaskTimeout,
        TaskDeferralError,
        TaskDeferralTimeout,
        TaskDeferred,
    )

try:
    from airflow.sdk.log import amask_secret
except ImportError:  # Airflow 3.1 and 3.2

    async def amask_secret(secret: Any, name: str | None = None) -> None:  # type: ignore[misc]
        """Hide a secret in logs, from an event loop."""
        await sync_to_async(mask_secret)(secret, name)  # see triggers.shared.tasks.ask


STARTS_FROM_TRIGGER: Final = hasattr(BaseTrigger, "on_kill")
"""Whether a task may start in the triggerer, and triggers have ``on_kill``: Airflow 3.3."""


def configuration() -> Any:
    """Airflow's configuration; importing it takes time, and DAG files seldom need it."""
    try:
        found = importlib.import_module("airflow.sdk.configuration")
    except ImportError:  # Airflow 3.1
        found = importlib.import_module("airflow.configuration")
    return found.conf


__all__ = [
    "STARTS_FROM_TRIGGER",
    "AirflowException",
    "AirflowFailException",
    "AirflowOptionalProviderFeatureException",
    "AirflowRescheduleException",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "AirflowTaskTimeout",
    "TaskDeferralError",
    "TaskDeferralTimeout",
    "TaskDeferred",
    "amask_secret",
    "configuration",
    "mask_secret",
]
