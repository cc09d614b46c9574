"""Whether a try of a task goes on with its flow or begins it anew. Pure: no Airflow, no server.

Airflow does not tell an operator whether it is retried or was cleared. What tells is ``dag_run.start_date``
and ``ti.max_tries``: an automatic retry leaves both alone, a clear raises ``max_tries`` and, where the run
had ended, also begins the run again; a run that was deleted and created again has another start. The other
fields of an ``Attempt`` mend the cases in which that is wrong:

- a run that is put back to ``queued`` has another start, though nothing was cleared;
- a task that is cleared after its ``retries`` were lowered may have the ``max_tries`` of before;
- a task that is cleared while it runs keeps its ``max_tries`` if the executor reports the kill as a failure.

The last one is recognised where the kill has cancelled the flow. If the process died before it could do so,
a clear looks like a retry. Airflow 3.1 counts only the clears of runs that had ended, so there the last two
look like retries as well.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Self

from airflow_provider_glidemq.identity import flow_id_for

if TYPE_CHECKING:
    from airflow.sdk.types import DagRunProtocol, RuntimeTaskInstanceProtocol

    from glidemq_orchestrate import FlowStatus

ATTEMPT_LABEL: Final = "airflow_attempt"
USER_LABELS: Final = 24  # of the 32 that a flow may have
_COMPLETE: Final = frozenset({"start", "max_tries", "run_after", "clears", "retries"})


class Decision(Enum):
    """What a try of a task does with the flow of its id."""

    SUBMIT = auto()  # there is none
    REPAIR = auto()  # an earlier try of the same run of the task has begun it: what did not complete runs
    RESTART = auto()  # the task was cleared since, or its DAG run was created again: all of it runs
    JOIN = auto()  # somebody else has begun it
    YIELD = auto()  # a later try of the task has begun it: leave it alone


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a task, as far as it tells a retry from a clear.

    Attributes:
        task: The task in its DAG run: the flow id that is derived from it.
        number: The try number; it never falls within a DAG run.
        start: When the DAG run began, as text that sorts by time.
        max_tries: Airflow's last try number for this run of the task.
        run_after, clears, retries: Of the DAG run, of the DAG run, and of the task.
    """

    task: str
    number: int
    start: str
    max_tries: int
    run_after: str
    clears: int
    retries: int

    @classmethod
    def of(cls, ti: RuntimeTaskInstanceProtocol, run: DagRunProtocol, retries: int | None) -> Self:
        """What the context of a task tells."""
        return cls(
            task=flow_id_for(ti.dag_id, ti.task_id, ti.run_id, -1 if ti.map_index is None else ti.map_index),
            number=ti.try_number,
            start=_time(run.start_date),
            max_tries=ti.max_tries,
            run_after=_time(run.run_after),
            clears=run.clear_number or 0,
            retries=retries or 0,
        )

    @property
    def request(self) -> str:
        """The token of this run of the task: the same for an automatic retry, another one for a clear."""
        return f"airflow:{self.task}/{self.start}/{self.max_tries}"

    @property
    def own_request(self) -> str:
        """The token of this try alone."""
        return f"{self.request}/{self.number}"

    def label(self, *, is_owned: bool = False, group: str | None = None) -> dict[str, str]:
        """What a flow keeps of the attempt that begins it.

        ``is_owned``: the flow ends with the task; ``group``: of the task group whose flow it is.
        """
        known = {name: getattr(self, name) for name in sorted(_COMPLETE)} | ({"owned": 1} if is_owned else {})
        known |= {} if group is None else {"group": 1}
        return {ATTEMPT_LABEL: json.dumps(known, separators=(",", ":"))}


@dataclass(frozen=True, slots=True)
class Began:
    """Who began a generation, by its labels: they stay when it is restarted by hand.

    ``start`` is empty, and the rest of ``seen`` too, in flows of earlier releases of the provider.
    """

    task: str
    number: int
    start: str
    max_tries: int
    seen: dict[str, object]

    @property
    def order(self) -> tuple[str, int]:
        """Later attempts of a task are greater."""
        return (self.start, self.number)


def began(status: FlowStatus) -> Began | None:
    """The attempt that began a generation; None if that was not an Airflow task."""
    labels = status.labels
    if labels.get("orchestrator") != "airflow":
        return None
    try:
        task = flow_id_for(
            labels["dag_id"], labels["task_id"], labels["run_id"], int(labels.get("map_index", "-1"))
        )
        number = int(labels.get("try", "1"))
    except (KeyError, ValueError):
        return None
    seen = _seen(labels.get(ATTEMPT_LABEL, "")) or _of_request(status.request, task)
    start, most = seen.get("start"), seen.get("max_tries")
    if not isinstance(start, str) or not isinstance(most, int):
        return Began(task, number, "", -1, {})
    return Began(task, number, start, most, seen)


def decide(now: Attempt, history: Sequence[FlowStatus]) -> Decision:
    """What this try does with a flow, from the status of each of its generations, oldest first."""
    if not history:
        return Decision.SUBMIT
    known = [(one, status) for status in history if (one := began(status))]
    if not known or known[-1][0].task != now.task:
        return Decision.JOIN
    if any(one.task == now.task and one.order > (now.start, now.number) for one, _ in known):
        return Decision.YIELD
    before, status = known[-1]
    is_cancelled = history[-1].state == "cancelled"
    same = (
        _is_same(before, now, is_cancelled=is_cancelled)
        if before.start
        else _is_same_as_unlabelled(status, now)
    )
    return Decision.REPAIR if same else Decision.RESTART


def is_taken_over(task: str, generation: int, history: Sequence[FlowStatus]) -> bool:
    """Whether a later attempt of a task has begun a generation after the one that is watched for it."""
    own = [
        (status.generation, one.order) for status in history if (one := began(status)) and one.task == task
    ]
    until = max((order for number, order in own if number <= generation), default=("", 0))
    return any(order > until for number, order in own if number > generation)


def _is_same(before: Began, now: Attempt, *, is_cancelled: bool) -> bool:
    """Whether an attempt is a retry of the run of the task in which the other one began a generation."""
    if not before.seen.keys() >= _COMPLETE:
        return (before.start, before.max_tries) == (now.start, now.max_tries)
    has_cleared = before.seen["clears"] != now.clears
    if before.max_tries != now.max_tries:
        return False
    if before.start != now.start:  # the run may have been put back to queued
        return not has_cleared and before.number < now.number and before.seen["run_after"] == now.run_after
    if not has_cleared:
        return True
    # A clear, or that of another task of the run. A clear of this one sets max_tries to the try + retries.
    was_cleared_at = now.max_tries - now.retries
    fits = before.seen["retries"] != now.retries and before.number <= was_cleared_at < now.number
    return not fits and not is_cancelled


def _is_same_as_unlabelled(status: FlowStatus, now: Attempt) -> bool:
    """``_is_same`` for a flow that says no more than when it was created."""
    created = _time(status.created_at)
    return bool(created) and now.start <= created and now.max_tries == now.retries


def _seen(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _of_request(request: str, task: str) -> dict[str, object]:
    start, _, rest = request.removeprefix(f"airflow:{task}/").partition("/")
    most = rest.partition("/")[0]
    if not request.startswith(f"airflow:{task}/") or not most.isdecimal():
        return {}
    return {"start": start, "max_tries": int(most)}


def _time(at: datetime | None) -> str:
    return "" if at is None else at.astimezone(UTC).isoformat(timespec="microseconds")
