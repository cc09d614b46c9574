"""One try of a task: the id of its flow, and whether it continues that flow or runs all of it again.

A retry continues the flow. A clear of a failed task runs again the nodes that did not complete; a clear of a
task that succeeded, or still waited, runs the whole flow again. If a person has restarted the flow by hand
since then, the task attaches to it. If an upstream task has run again since the flow began, or the DAG run is
new, the whole flow runs.

Airflow does not report to an operator whether it is retried or was cleared. ``dag_run.start_date`` and
``ti.max_tries`` show it. An automatic retry changes neither. A clear raises ``max_tries`` and, if the run had
ended, also restarts the run. A run that was deleted and created again has another start. The other fields of
an ``AirflowAttempt`` cover the cases in which this is wrong:

- a run that is put back to ``queued`` has another start, though nothing was cleared;
- a task that is cleared after its ``retries`` were lowered may keep its previous ``max_tries``;
- a task that is cleared while it runs keeps its ``max_tries`` if the executor reports the kill as a failure.

The last case is recognised if the kill has cancelled the flow. If the process died before it could cancel the
flow, a clear looks like a retry. Airflow 3.1 counts only the clears of runs that had ended, so there the last
two cases look like retries as well.

A ``Note`` is stored with the flow: the end that the task has shown, and its own restarts. Everything
except ``runs_before`` is pure: no Airflow, no server.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from glidemq_orchestrate import runs
from glidemq_orchestrate.runs import Origin, TaskAttempt, derived_id

if TYPE_CHECKING:
    from airflow.sdk.types import DagRunProtocol, RuntimeTaskInstanceProtocol

    from glidemq_orchestrate.flows import FlowStatus

ATTEMPT_LABEL: Final = "airflow_attempt"
USER_LABELS: Final = 24  # of the 32 that a flow may have
KILLED: Final = "the Airflow task was killed"
_COMPLETE: Final = frozenset({"start", "max_tries", "run_after", "clears", "retries"})


class TaskKey(NamedTuple):
    """A task in a DAG run; ``map_index`` is -1 for a task that is not mapped."""

    dag_id: str
    task_id: str
    run_id: str
    map_index: int = -1

    @classmethod
    def of(cls, ti: Any) -> TaskKey:
        """The task of a task instance."""
        return cls(ti.dag_id, ti.task_id, ti.run_id, -1 if ti.map_index is None else ti.map_index)

    @classmethod
    def in_labels(cls, labels: Mapping[str, str]) -> TaskKey:
        """The task that has begun a flow with these labels.

        Raises:
            KeyError, ValueError: No task has begun it.
        """
        index = int(labels.get("map_index", "-1"))
        return cls(labels["dag_id"], labels["task_id"], labels["run_id"], index)

    def beside(self, task_id: str) -> TaskKey:
        """Another task of the same run."""
        return self._replace(task_id=task_id)

    @property
    def flow_id(self) -> str:
        """The derived id of its flow."""
        return derived_id("af", self.dag_id, self.run_id, self.task_id, str(self.map_index))

    @property
    def owner(self) -> str:
        """The name of the task as an owner, which reasons contain; the same for all its tries."""
        index = "" if self.map_index == -1 else f"[{self.map_index}]"
        return runs.short_name(f"Airflow task {self.dag_id}.{self.task_id}{index} of run {self.run_id}")


@dataclass(frozen=True, slots=True)
class AirflowAttempt(TaskAttempt):
    """One try of a task, with the fields that distinguish a retry from a clear.

    Attributes:
        dag_task: The flow id that is derived from the task and its DAG run.
        number: The try number; it never decreases within a DAG run.
        start: When the DAG run started, as text that sorts by time.
        max_tries: Airflow's last try number for this run of the task.
        run_after, clears, retries: ``run_after`` and the number of clears of the DAG run; the task's
            ``retries``.
        before: A fingerprint of the runs of the upstream tasks; None: Airflow does not have it.
        shows_end: The task ends as the flow does. Otherwise it ends when the flow is submitted, and a clear
            runs the whole flow unless a person has started the current generation.
    """

    dag_task: str
    number: int
    start: str
    max_tries: int
    run_after: str
    clears: int
    retries: int
    before: str | None = field(default="", compare=False)
    shows_end: bool = field(default=True, compare=False)

    @classmethod
    def of(
        cls,
        ti: RuntimeTaskInstanceProtocol,
        run: DagRunProtocol,
        retries: int | None,
        before: str | None = "",
        *,
        shows_end: bool = True,
    ) -> Self:
        """The try in the context of a task."""
        return cls(
            dag_task=TaskKey.of(ti).flow_id,
            number=ti.try_number,
            start=_time(run.start_date),
            max_tries=ti.max_tries,
            run_after=_time(run.run_after),
            clears=run.clear_number or 0,
            retries=retries or 0,
            before=before,
            shows_end=shows_end,
        )

    @property
    def task(self) -> str:
        """The identity of the task in its DAG run."""
        return self.dag_task

    @property
    def is_repeat(self) -> bool:
        """Whether there was an earlier try."""
        return self.number > 1

    @property
    def request(self) -> str:
        """The token of this run of the task: unchanged by an automatic retry, new after a clear."""
        return f"airflow:{self.task}/{self.start}/{self.max_tries}"

    @property
    def own_request(self) -> str:
        """The token of this try alone."""
        return f"{self.request}/{self.number}"

    def label(self, *, is_owned: bool = False, group: str | None = None) -> dict[str, str]:
        """The labels of a flow that this attempt begins.

        ``is_owned``: the flow ends with the task. ``group``: the id of the task group whose flow it is.
        """
        known = {name: getattr(self, name) for name in sorted(_COMPLETE)} | ({"owned": 1} if is_owned else {})
        known |= {} if group is None else {"group": 1}
        known |= {"before": self.before} if self.before else {}
        return {ATTEMPT_LABEL: json.dumps(known, separators=(",", ":"))}

    def origin(self, status: FlowStatus) -> Origin | None:
        """The try that started a generation; its detail is a ``Began``."""
        found = began(status)
        return None if found is None else Origin(found.task, found)

    def is_overtaken_by(self, origin: Origin) -> bool:
        """Whether another try of the task is later than this one."""
        return bool(origin.detail.order > (self.start, self.number))

    def continues(self, origin: Origin, begun: FlowStatus, current: FlowStatus) -> bool:  # noqa: ARG002
        """Whether this try continues the work of the other try: as its retry, or as a clear of a failure."""
        before: Began = origin.detail
        if _is_same(before, self, is_cancelled=current.state == "cancelled"):
            return True
        if _is_new_run(before, self):
            return False
        is_other = (before.start, before.max_tries) != (self.start, self.max_tries)
        if is_other and current.note.startswith(f"{self.request} "):
            return True  # a retry of a clear that continued it, and has noted that
        return (_has_more if self.shows_end else _is_by_hand)(current)

    def note(self, status: FlowStatus, *, is_shown: bool) -> str | None:
        """The text to store with a generation, if the task has started or continues that generation."""
        if is_shown and ((one := began(status)) is None or one.task != self.task):
            return None
        return Note(self.request, status.times_reopened, self.number, is_shown=is_shown).text

    def is_replaced_in(self, status: FlowStatus) -> bool:
        """Whether a later try of the task waits for a generation: then this try is obsolete."""
        note = Note.of(status)
        return (
            note is not None
            and note.request.startswith(f"airflow:{self.task}/")
            and note.number > self.number
        )


@dataclass(frozen=True, slots=True)
class Began:
    """The try that started a generation, by its labels: they stay when it is restarted by hand."""

    key: TaskKey
    number: int
    start: str
    max_tries: int
    seen: dict[str, object]

    @property
    def task(self) -> str:
        """The identity of the task, as ``AirflowAttempt.task``."""
        return self.key.flow_id

    @property
    def order(self) -> tuple[str, int]:
        """Later tries of a task are greater."""
        return (self.start, self.number)


@dataclass(frozen=True, slots=True)
class Note:
    """The note that a task stores with a generation of its flow; see ``Flow.note``.

    Attributes:
        request: The token of the try that wrote it.
        runs: How often the generation had been reopened by then; if the count is higher now, another client
            has reopened it.
        number: The number of that try.
        is_shown: The task has succeeded with this generation.
    """

    request: str
    runs: int
    number: int = 0
    is_shown: bool = False

    @property
    def text(self) -> str:
        """The text that is stored."""
        return f"{self.request} {self.runs} try {self.number}{' shown' if self.is_shown else ''}"

    @classmethod
    def of(cls, status: FlowStatus) -> Self | None:
        """The note of a generation, or that of the task that started it; None if a person started it."""
        if found := _NOTE.fullmatch(status.note):
            number = int(found["number"] or 0)
            return cls(found["request"], int(found["runs"]), number, is_shown=found["shown"] is not None)
        return cls(status.idempotency_key, 0) if status.idempotency_key.startswith("airflow:") else None


_NOTE: Final = re.compile(
    r"(?P<request>airflow:\S+) (?P<runs>[0-9]{1,9})(?: try (?P<number>[0-9]{1,9}))?(?P<shown> shown)?"
)
_STATE: Final = re.compile(r"\(state: (\w+)\)")


def began(status: FlowStatus) -> Began | None:
    """The try that started a generation; None if it was not an Airflow task."""
    labels, seen = status.labels, _seen(status.labels.get(ATTEMPT_LABEL, ""))
    start, last = seen.get("start"), seen.get("max_tries")
    is_whole = seen.keys() >= _COMPLETE and isinstance(start, str) and isinstance(last, int)
    if labels.get("orchestrator") != "airflow" or not is_whole:
        return None
    try:
        key, number = TaskKey.in_labels(labels), int(labels.get("try", "1"))
        return Began(key, number, str(start), int(str(last)), seen)
    except (KeyError, ValueError):
        return None


def begun_by(status: FlowStatus) -> str:
    """Who started a generation, for a log."""
    by = began(status)
    return "another client" if by is None else by.key.owner


def _is_new_run(before: Began, now: AirflowAttempt) -> bool:
    """Whether no result of a generation may be reused: a new DAG run, or upstream tasks have run again."""
    if before.seen.get("before", "") != now.before:
        return True
    return before.start != now.start and before.number >= now.number


def _has_more(status: FlowStatus) -> bool:
    """Whether a generation that a cleared task has shown has a new end to show, or nodes to run."""
    note = Note.of(status)
    if note is None or status.times_reopened > note.runs:  # reopened by hand since then
        return True
    if status.state == "completed":
        return not note.is_shown
    if status.state == "cancelled" and (found := _STATE.search(status.reason)):
        return found[1] == "failed"
    return status.state == "failed" or (status.state == "cancelled" and status.reason != KILLED)


def _is_by_hand(status: FlowStatus) -> bool:
    return Note.of(status) is None


def is_taken_over(task: str, generation: int, history: Sequence[FlowStatus]) -> bool:
    """Whether a later attempt of a task has started a generation after the watched one."""
    own = [
        (status.generation, one.order) for status in history if (one := began(status)) and one.task == task
    ]
    until = max((order for number, order in own if number <= generation), default=("", 0))
    return any(order > until for number, order in own if number > generation)


def _is_same(before: Began, now: AirflowAttempt, *, is_cancelled: bool) -> bool:
    """Whether an attempt is a retry of the run of the task in which the other one started a generation."""
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


def _seen(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _time(at: datetime | None) -> str:
    return "" if at is None else at.astimezone(UTC).isoformat(timespec="microseconds")


def flow_id_for(dag_id: str, task_id: str, run_id: str, map_index: int = -1) -> str:
    """Derive the id of the flow of one task in one DAG run: 35 characters, the same on every try.

    The try number is not part of the id: a retry finds the flow of the previous try, and attaches to it or
    repairs it.

    Args:
        dag_id: The id of the DAG.
        task_id: The id of the task, with the ids of its groups.
        run_id: The id of the DAG run.
        map_index: The index of a mapped task; -1 for a task that is not mapped.
    """
    return TaskKey(dag_id, task_id, run_id, map_index).flow_id


LENGTH: Final = 12


def runs_before(ti: RuntimeTaskInstanceProtocol, task_ids: Collection[str]) -> str | None:
    """A fingerprint of the last runs of these tasks in the DAG run of a task; '' if there are none.

    Each run of a task has its own duration, to the microsecond (with SQLite, to the millisecond). None:
    unknown, as before Airflow 3.2.
    """
    if not task_ids:
        return ""
    try:
        every = ti.get_task_breadcrumbs(ti.dag_id, ti.run_id)  # type: ignore[attr-defined]
        rows = [
            [one["task_id"], one["map_index"], str(one["state"]), one["duration"]]
            for one in every
            if one["task_id"] in task_ids
        ]
    except Exception:  # noqa: BLE001  of several classes, by release
        return None
    text = json.dumps(sorted(rows, key=str))
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:LENGTH]
