"""The base class of the sensors: check once, then wait in the triggerer or poke; timeouts; soft failure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider_glidemq.exceptions import GlideMQException, located_errors
from airflow_provider_glidemq.hooks.glidemq import DEFAULT_CONN_ID, patience_for
from airflow_provider_glidemq.links.glidemq import Linked
from airflow_provider_glidemq.parameters import default_deferrable
from airflow_provider_glidemq.triggers.waiting import BACKSTOP, SECONDS_DEFERRED
from airflow_provider_glidemq.version_compat import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    TaskDeferralTimeout,
)
from glidemq_orchestrate.errors import GlideMQError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_glidemq.triggers.waiting import WaitingTrigger
    from glidemq_orchestrate.runs import Duration, Patience


class WaitingSensor(Linked, BaseSensorOperator):
    """Waits for a subject that ``_check`` checks and ``_trigger`` waits for.

    As for every sensor, ``soft_fail`` skips the task after a timeout or an ``AirflowFailException``, and
    ``never_fail`` after any failure. Deferred or not, the wait ends at ``timeout`` or ``execution_timeout``,
    whichever comes first. While it waits, failures to reach the server count as temporary for some minutes:
    see ``hooks.glidemq``.
    """

    def __init__(
        self,
        *,
        glidemq_conn_id: str = DEFAULT_CONN_ID,
        deferrable: bool = default_deferrable(),
        poke_interval: Duration = 30,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        with located_errors(self.task_id):
            if not isinstance(deferrable, bool):
                raise TypeError(f"deferrable must be True or False, got {deferrable!r}")
        self.glidemq_conn_id = glidemq_conn_id
        self.deferrable = deferrable
        self._is_waiting = False  # its first check succeeded

    def execute(self, context: Context) -> Any:
        """Check once; then wait in the triggerer, or poke as every sensor does."""
        self.link_places = self._linked()
        with self._softly():
            return self._wait(context) if self.deferrable else super().execute(context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume after waiting. The method of the base sensor would skip the task after any failure."""
        with self._softly():
            try:
                # Bypass the method of BaseSensorOperator for that of BaseOperator.
                return super(BaseSensorOperator, self).resume_execution(next_method, next_kwargs, context)
            except TaskDeferralTimeout:
                return self._last_look(context)

    @contextmanager
    def _softly(self) -> Iterator[None]:
        """Skip the task instead of failing it, by ``soft_fail`` and ``never_fail``."""
        try:
            yield
        except (AirflowSkipException, AirflowRescheduleException):
            raise
        except (AirflowSensorTimeout, AirflowTaskTimeout, AirflowFailException) as exc:
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(str(exc) or "its execution_timeout has passed") from exc
            raise
        except Exception as exc:
            if self.never_fail:
                raise AirflowSkipException(str(exc)) from exc
            raise

    def poke(self, context: Context) -> bool | PokeReturnValue:
        """Whether the wait is over, with the return value of the task; raises for an end that is not allowed.

        Raises:
            GlideMQException: The server cannot be reached: raised at once by the first check of a task, and
                after some minutes while it waits.
        """
        patience = self._patience(context)
        while True:
            try:
                found = self._check()
            except GlideMQError as exc:
                try:
                    pause = 0.0 if patience is None else patience.pause(exc)
                except GlideMQError:
                    patience = None
                if patience is None:
                    raise GlideMQException(f"{type(exc).__name__}: {exc}") from exc
                if time.time() + pause >= self._deadline(context):
                    return False
                time.sleep(pause)
            else:
                self._is_waiting = True
                return found

    def _patience(self, context: Context) -> Patience | None:
        """None for the first check of a task, which shows whether the connection is valid at all."""
        is_again = not self.deferrable and self.reschedule
        if is_again and context["ti"].get_first_reschedule_date(context) is not None:
            self._is_waiting = True
        if not self._is_waiting or self.silent_fail:
            return None
        return patience_for(self.log, self._what(), self.glidemq_conn_id)

    def execute_complete(self, context: Context, event: dict[str, Any] | None = None) -> Any:
        """Resume after the trigger has fired. The event has the reason; the outcome comes from the server."""
        if event is None or "status" not in event:
            raise GlideMQException(f"the trigger sent no usable event: {event!r}")
        self.link_places = self._linked()
        self._is_waiting = True
        if event["status"] == "timeout":
            return self._last_look(context)
        if event["status"] == "error":
            raise GlideMQException(f"{self._what()} cannot be watched: {event.get('reason', '')}")
        return self.execute(context)

    def _linked(self) -> Mapping[str, str]:
        """The known values of ``flow_id``, ``queue``, ``job_id`` for the link."""
        raise NotImplementedError

    def _check(self) -> bool | PokeReturnValue:
        """Whether the wait is over, with the return value of the task; raises for an end that is not allowed.

        Raises:
            GlideMQError: The server cannot be read.
        """
        raise NotImplementedError

    def _what(self) -> str:
        """The subject of the wait, for logs and errors."""
        raise NotImplementedError

    def _trigger(self, **waiting: Any) -> WaitingTrigger:
        """The trigger that waits in the triggerer; ``waiting``: the arguments of ``WaitingTrigger``."""
        raise NotImplementedError

    def _hint(self) -> str:
        """The current state, and why the wait may not be over."""
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
        deadline = self._deadline(context)
        return self.defer(
            trigger=self._trigger(
                glidemq_conn_id=self.glidemq_conn_id,
                poll_interval=max(float(self.poke_interval), 1.0),
                deadline=deadline,
                not_before=time.time() + SECONDS_DEFERRED,
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=max(deadline - time.time(), 0.0)) + BACKSTOP,
        )

    @property
    def _is_cut_short(self) -> bool:
        """Whether ``execution_timeout`` comes before ``timeout``."""
        limit = self.execution_timeout
        return self.deferrable and limit is not None and limit.total_seconds() < self.timeout

    def _deadline(self, context: Context) -> float:
        """``timeout`` or ``execution_timeout`` after the start of the task, however often it has resumed."""
        began, limit = context["ti"].start_date, self.execution_timeout
        if not self.deferrable and self.reschedule:
            began = context["ti"].get_first_reschedule_date(context) or began
        seconds = limit.total_seconds() if self._is_cut_short and limit is not None else self.timeout
        return float(began.timestamp()) + float(seconds)

    def _last_look(self, context: Context) -> Any:
        """Check once more; if the wait is still not over, raise with the current state.

        Raises:
            AirflowSensorTimeout: ``timeout`` has passed.
            AirflowTaskTimeout: ``execution_timeout`` has passed first: the task may be retried.
        """
        hint, self._is_waiting = "", False
        try:
            seen = self.poke(context)
            if seen:
                return seen.xcom_value if isinstance(seen, PokeReturnValue) else None
            hint = self._hint()
        except GlideMQException as exc:
            if type(exc) is not GlideMQException:  # it has ended in a state that is not allowed
                raise
            self.log.warning("The last poll has failed: %s", exc)
        except GlideMQError as exc:
            self.log.warning("The last poll has failed: %s", exc)
        if self._is_cut_short:
            limit = f"its execution_timeout, {self.execution_timeout}"
            raise AirflowTaskTimeout(f"{self._what()}: not within {limit}. {hint}".strip())
        raise AirflowSensorTimeout(f"{self._what()}: not within {self.timeout:g} seconds. {hint}".strip())
