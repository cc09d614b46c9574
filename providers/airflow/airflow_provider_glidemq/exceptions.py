"""The provider's exceptions, and the errors of the core that a retry of the task cannot fix."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from airflow_provider_glidemq.version_compat import AirflowException, AirflowFailException
from glidemq_orchestrate import runs
from glidemq_orchestrate.errors import FlowConflict, FlowNotFound, GlideMQError, Superseded, TransportError

if TYPE_CHECKING:
    from glidemq_orchestrate.errors import FailedNode

SHOWN_NODES: Final = 10
SHOWN_SIZES: Final = 3
SHOWN_TEMPLATE: Final = 100
_UNDEFINED: Final = re.compile(r"'(?P<name>\w+)' is undefined")
_DATED: Final = (
    "ds", "ds_nodash", "ts", "ts_nodash", "ts_nodash_with_tz", "logical_date", "data_interval_start",
    "data_interval_end",
)  # fmt: skip
_DATES: Final = (
    "This run has no logical date. "
    "Fix: trigger it with one (airflow dags trigger -l DATE), or use {{ run_id }}"
)
_NAMES: Final = "Fix: correct the template"
_PASSING: Final = (FlowNotFound, Superseded)


RESTART_ADVICE: Final = "To run the whole flow again: glidemq flow restart {0}, then clear this task."


def again(flow_id: str) -> str:
    """Advice on how to run a flow again after its task has failed."""
    return (
        "Once the cause is fixed, clear this task: the nodes that did not complete run again, and if the "
        "flow was changed, also the changed nodes and those after them. The others keep their results. "
        + RESTART_ADVICE.format(flow_id)
    )


def again_in_group(flow_id: str) -> str:
    """Advice on how to run a failed task of a group again."""
    return (
        "Once the cause is fixed, clear this task and those after it: its failed nodes, and the nodes after "
        "them, run again. To run the whole group again: "
        f"glidemq flow restart {flow_id}, then clear all its tasks."
    )


@contextmanager
def located_errors(task_id: str, file: str = "") -> Iterator[None]:
    """Add the task and the file to an error: the import error of a DAG shows little else."""
    try:
        yield
    except (GlideMQError, TypeError, ValueError, AirflowFailException) as exc:
        where = f"task {task_id}: "
        if str(exc).startswith(where):
            raise
        if file and file not in str(exc):
            where += f"{file}: "
        exc.args = (f"{where}{exc}",)
        raise


class GlideMQException(AirflowException):
    """Base class of the provider's exceptions; Airflow applies the retries of the task."""


class GlideMQFlowFailed(GlideMQException):
    """The flow failed. ``failed`` lists the nodes that did not complete, causes first.

    The message ends with ``advice``: how to run the failed nodes again, or the whole flow.
    """

    def __init__(self, flow_id: str, failed: Sequence[FailedNode], advice: str = "") -> None:
        self.flow_id, self.failed = flow_id, list(failed)
        lines = [f"flow {flow_id} failed: {_count(self.failed)}", *_lines(self.failed)]
        super().__init__("\n".join([*lines, advice] if advice else lines))


class GlideMQJobFailed(GlideMQException):
    """The job of a sensor failed, for the given ``reason``."""

    def __init__(self, queue: str, job_id: str, reason: str) -> None:
        self.queue, self.job_id, self.reason = queue, job_id, reason
        super().__init__(f"job {job_id} of queue {queue} failed: {_given(reason)}")


class GlideMQFlowCancelled(GlideMQException):
    """The flow was cancelled, for the given ``reason``."""

    def __init__(self, flow_id: str, reason: str, advice: str = "") -> None:
        self.flow_id, self.reason = flow_id, reason
        super().__init__(f"flow {flow_id} was cancelled: {_given(reason)}{_after(advice)}")


class GlideMQFlowTimeout(GlideMQException):
    """The flow did not end within the task's ``execution_timeout``; cancelled if ``cancel_on_kill``."""

    def __init__(self, flow_id: str, progress: str, advice: str = "") -> None:
        self.flow_id = flow_id
        super().__init__(
            f"flow {flow_id} had not ended at the task's execution_timeout{progress}{_after(advice)}"
        )


class GlideMQFlowSuperseded(GlideMQException):
    """A later try of this task has restarted the flow. This try ends and does not touch the flow."""

    def __init__(self, flow_id: str) -> None:
        self.flow_id = flow_id
        super().__init__(
            f"flow {flow_id} was restarted by a later try of this task, so this try no longer waits for it"
        )


class GlideMQNodeFailed(GlideMQException, AirflowFailException):
    """The node of a task in a task group failed, or one of the nodes of an expanded task.

    Airflow does not retry the task: the attempts of the node are used up.
    """

    def __init__(self, node: str, reason: str, advice: str = "") -> None:
        self.node, self.reason = node, reason
        super().__init__(f"{node} failed: {_given(reason)}{_after(advice)}")


class GlideMQResultTooLarge(GlideMQException, AirflowFailException):
    """The flow has completed, but its results are too large for XCom. Nothing is pushed; no retry helps.

    ``sizes`` maps each node to the size of its result in bytes of JSON.
    """

    def __init__(  # noqa: PLR0913, PLR0917  the parts of the message
        self,
        flow_id: str,
        size: int,
        most: int,
        sizes: Mapping[str, int],
        advice: str = "",
        what: str = "flow",
    ) -> None:
        self.flow_id, self.size, self.sizes = flow_id, size, dict(sizes)
        largest = sorted(self.sizes.items(), key=lambda item: -item[1])[:SHOWN_SIZES]
        shown = ", ".join(f"{name} {bytes_:,}" for name, bytes_ in largest)
        super().__init__(
            f"{what} {flow_id} completed, but its results are {size:,} bytes of JSON, and more than {most:,} "
            f"do not go to XCom, which is in Airflow's database. Largest: {shown}. "
            'Use result="none" or a list of other nodes; or let nodes write files or tables and return where '
            "they are; or set up an XCom backend for object storage ([core] xcom_backend, "
            f"[common.io] xcom_objectstorage_threshold).{advice}"
        )


def template_failed(text: str, place: Sequence[str], error: Exception) -> GlideMQException:
    """The error for a template that cannot be rendered.

    Args:
        text: The template; only its beginning is shown.
        place: The steps to it from the field of the operator, such as ``nodes``, ``node a``, ``data``.
        error: The error of Jinja.
    """
    nodes = [at for at, step in enumerate(place) if step.startswith("node ")]
    first = nodes[-1] if nodes else -1
    field = ".".join(place[first + 1 :]).replace(".[", "[")
    where = ", ".join(part for part in (place[first] if nodes else "", field) if part)
    shown = text if len(text) <= SHOWN_TEMPLATE else f"{text[:SHOWN_TEMPLATE]}..."
    undefined = _UNDEFINED.fullmatch(str(error))
    is_dated = undefined is not None and undefined["name"] in _DATED
    advice = _DATES if is_dated else _NAMES
    return GlideMQException(f"{where or 'template'}: {type(error).__name__}: {error}, in {shown!r}. {advice}")


@contextmanager
def airflow_errors(conn_id: str = "") -> Iterator[None]:
    """Turn errors of the core into Airflow's: those that a retry cannot fix fail the task without a retry.

    Args:
        conn_id: The connection to name when its server cannot be reached.

    Raises:
        GlideMQException: The same call may succeed later.
        GlideMQFlowSuperseded: A later try of the task has restarted the flow.
        AirflowFailException: No retry helps: the flow, the connection or the code must be changed first.
    """
    try:
        yield
    except FlowConflict as exc:
        raise AirflowFailException(
            f"{exc} Only the task that began a flow can change it: run a changed flow under another flow_id, "
            "or in a new DAG run."
        ) from exc
    except runs.Overtaken as exc:
        raise GlideMQFlowSuperseded(exc.flow_id) from exc
    except GlideMQError as exc:
        kind = GlideMQException if exc.retryable or isinstance(exc, _PASSING) else AirflowFailException
        where = f"connection {conn_id}: " if conn_id and isinstance(exc, TransportError) else ""
        raise kind(f"{type(exc).__name__}: {where}{exc}") from exc


def _given(reason: str) -> str:
    return runs.in_text(reason) or "no reason given"


def _after(advice: str) -> str:
    return f"\n{advice}" if advice else ""


def _count(failed: Sequence[FailedNode]) -> str:
    causes, ignored = sum(map(runs.is_cause, failed)), sum(node.ignored for node in failed)
    rest = len(failed) - causes - ignored
    counts = [f"{causes} failed", f"{rest} could not run after them", f"{ignored} ignored"]
    return ", ".join(count for count in counts if not count.startswith("0 "))


def _lines(failed: Sequence[FailedNode]) -> list[str]:
    lines = [
        f"  {node.name}: {runs.in_text(node.reason)} (attempts: {node.attempts}{', ignored' * node.ignored})"
        for node in failed[:SHOWN_NODES]
    ]
    return [*lines, f"  and {len(failed) - SHOWN_NODES} more"] if len(failed) > SHOWN_NODES else lines
