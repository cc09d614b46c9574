"""What all sensors have in common: look once, then wait in the triggerer or poke; time-outs; soft failure."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider_glidemq.exceptions import GlideMQException
from airflow_provider_glidemq.hooks.glidemq import DEFAULT_CONN_ID
from airflow_provider_glidemq.links.glidemq import Linked
from airflow_provider_glidemq.parameters import default_deferrable
from airflow_provider_glidemq.templates import is_unknown
from airflow_provider_glidemq.triggers.waiting import SECONDS_DEFERRED
from airflow_provider_glidemq.version_compat import (
    AirflowException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_glidemq.triggers.waiting import WaitingTrigger


class WaitingSensor(Linked, BaseSensorOperator):
    """Waits for one thing, which ``poke`` looks for and ``_trigger`` waits for.

    ``soft_fail`` and ``never_fail`` skip the task whatever the failure is, deferred or not.
    """

    def __init__(
        self,
        *,
        glidemq_conn_id: str = DEFAULT_CONN_ID,
        deferrable: bool = default_deferrable(),
        poke_interval: float = 30.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        if not isinstance(deferrable, bool):
            raise TypeError(f"deferrable must be True or False, got {deferrable!r}")
        self.glidemq_conn_id = glidemq_conn_id
        self.deferrable = deferrable

    def execute(self, context: Context) -> Any:
        """Look once; then wait in the triggerer, or poke as every sensor does."""
        self.link_places = self._linked()
        try:
            return self._wait(context) if self.deferrable else super().execute(context)
        except (AirflowSkipException, AirflowRescheduleException):
            raise
        except AirflowException as exc:
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(str(exc)) from exc
            raise

    def execute_complete(self, context: Context, event: dict[str, Any] | None = None) -> Any:
        """Resume after the trigger has fired: the event holds why, the outcome is read from the server."""
        if event is None or "status" not in event:
            raise GlideMQException(f"the trigger sent no usable event: {event!r}")
        self.link_places = self._linked()
        if event["status"] == "timeout":
            return self._last_look(context)
        if event["status"] == "error":
            raise GlideMQException(f"{self._what()} cannot be watched: {event.get('reason', '')}")
        return self.execute(context)

    def _linked(self) -> Mapping[str, str]:
        """What a link may need, of ``flow_id``, ``queue``, ``job_id``."""
        raise NotImplementedError

    def _what(self) -> str:
        """What is waited for, for logs and errors."""
        raise NotImplementedError

    def _trigger(self, poll_interval: float, deadline: float, not_before: float) -> WaitingTrigger:
        """Waits for it in the triggerer."""
        raise NotImplementedError

    def _hint(self) -> str:
        """Why it may not have come, as it is now."""
        raise NotImplementedError

    def _wait(self, context: Context) -> Any:
        try:
            seen = self.poke(context)
        except AirflowException:
            raise
        except Exception:
            if not self.silent_fail:
                raise
            self.log.exception("Sensor poke failed")
            seen = False
        if seen:
            return seen.xcom_value if isinstance(seen, PokeReturnValue) else None
        self.log.info("Waiting for %s", self._what())
        return self.defer(
            trigger=self._trigger(
                max(float(self.poke_interval), 1.0), self._deadline(context), time.time() + SECONDS_DEFERRED
            ),
            method_name="execute_complete",
        )

    def _deadline(self, context: Context) -> float:
        """``timeout`` after the task began, however often it has resumed since."""
        return float(context["ti"].start_date.timestamp()) + float(self.timeout)

    def _last_look(self, context: Context) -> Any:
        """It may have come at the last moment; else tell how it is.

        Raises:
            AirflowSensorTimeout: It has not come.
        """
        hint = ""
        try:
            seen = self.poke(context)
            if seen:
                return seen.xcom_value if isinstance(seen, PokeReturnValue) else None
            hint = self._hint()
        except GlideMQException as exc:
            if type(exc) is not GlideMQException:  # it has ended, and not well
                raise
            self.log.warning("The last look has failed: %s", exc)
        raise AirflowSensorTimeout(f"{self._what()}: not within {self.timeout:g} seconds. {hint}".strip())


def check_text(name: str, value: object) -> None:
    """Refuse what names nothing, while the DAG is parsed; templates and outputs of tasks may be anything.

    Raises:
        ValueError: It is no text, or an empty one.
    """
    if not is_unknown(value) and (not isinstance(value, str) or not value):
        raise ValueError(f"{name} must be a text that is not empty, got {value!r}")
