"""The life cycle of a job as one table: the transitions between its states, and the calls that make them.

``docs/reference/job-states.md`` is made from the table, and tests check both libraries against it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from itertools import product
from typing import Final, Literal, NamedTuple, Self, TypeAlias

ABSENT: Final = "absent"
"""In the table: the job does not exist yet, or was removed."""
TABLE: Final = """
added: absent > waiting
    glidemq_addJob glidemq_dedup glidemq_addFlow gmo_add_jobs gmo_fire_scheduler
added: absent > delayed
    glidemq_addJob glidemq_dedup glidemq_addFlow gmo_add_jobs gmo_fire_scheduler
added: absent > prioritized
    glidemq_addJob glidemq_dedup glidemq_addFlow gmo_add_jobs gmo_fire_scheduler
added: absent > waiting-children
    glidemq_addFlow gmo_stage_flow gmo_extend gmo_grow
released: waiting-children > waiting delayed prioritized
    gmo_start_flow gmo_advance_flow gmo_finish_and_fetch gmo_settle_foreign gmo_settle_missing
    gmo_check_open gmo_notify_again gmo_reclaim gmo_cancel_flow gmo_retry_flow gmo_begin_generation
    gmo_expire_due gmo_revoke_job gmo_change_elements gmo_change_nodes glidemq_complete
    glidemq_completeAndFetchNext glidemq_completeChild glidemq_registerParent
    gmo_change_dependencies
array opened: waiting-children > active
    gmo_start_flow gmo_advance_flow gmo_finish_and_fetch gmo_settle_foreign gmo_settle_missing
    gmo_check_open gmo_notify_again gmo_reclaim gmo_cancel_flow gmo_retry_flow gmo_begin_generation
    gmo_expire_due gmo_revoke_job gmo_change_elements gmo_change_nodes gmo_run_again
array ended: active > completed failed
    gmo_finish_and_fetch gmo_reclaim gmo_check_open gmo_change_elements
element becomes a job: absent > waiting delayed prioritized failed
    gmo_start_flow gmo_advance_flow gmo_finish_and_fetch gmo_settle_foreign gmo_settle_missing
    gmo_check_open gmo_notify_again gmo_reclaim gmo_cancel_flow gmo_retry_flow gmo_begin_generation
    gmo_expire_due gmo_revoke_job gmo_cancel_jobs gmo_change_elements gmo_change_nodes gmo_run_again
slice leased: absent > active
    gmo_finish_and_fetch
slice given back: active > absent
    gmo_finish_and_fetch gmo_reclaim gmo_advance_flow gmo_cancel_flow gmo_begin_generation
    gmo_change_elements gmo_change_nodes gmo_retry_flow gmo_run_again gmo_settle_foreign
    gmo_expire_due gmo_take_back gmo_heartbeats gmo_renew
gets dependencies: waiting delayed prioritized > waiting-children
    gmo_change_dependencies
postponed: waiting > delayed
    gmo_settle_foreign glidemq_changeDelay glidemq_retryJobs
due: delayed prioritized > waiting
    glidemq_promote glidemq_promoteJob glidemq_changeDelay gmo_finish_and_fetch gmo_check_open
    gmo_expire_due
reordered: waiting > prioritized
    glidemq_changePriority
reordered: prioritized > waiting
    glidemq_changePriority
reordered: delayed > prioritized
    glidemq_changeDelay
reordered: prioritized > delayed
    glidemq_changeDelay
parked: waiting > group-waiting
    glidemq_moveToActive glidemq_completeAndFetchNext gmo_finish_and_fetch
unparked: group-waiting > waiting
    glidemq_complete glidemq_completeAndFetchNext glidemq_fail glidemq_dedup glidemq_moveToActive
    glidemq_drain glidemq_promoteRateLimited glidemq_revoke glidemq_removeJob glidemq_rateLimitGroup
    gmo_finish_and_fetch gmo_remove_jobs gmo_revoke_job gmo_reclaim gmo_cancel_flow gmo_advance_flow
    gmo_change_elements gmo_change_nodes
started: waiting prioritized group-waiting > active
    glidemq_moveToActive glidemq_completeAndFetchNext gmo_finish_and_fetch
completed: active > completed
    glidemq_complete glidemq_completeAndFetchNext gmo_finish_and_fetch
completed late: waiting failed > completed
    glidemq_complete
failed again: completed > failed
    gmo_settle_foreign
failed: active > failed
    glidemq_fail glidemq_rateLimitGroup gmo_finish_and_fetch
requeued: active > delayed
    glidemq_fail gmo_finish_and_fetch
requeued: active > waiting
    glidemq_deferActive glidemq_moveToWaitingChildren gmo_finish_and_fetch
postponed: active > delayed
    glidemq_moveActiveToDelayed gmo_finish_and_fetch
parked: active > group-waiting
    glidemq_rateLimitGroup
waits for children: active > waiting-children
    glidemq_moveToWaitingChildren gmo_finish_and_fetch
waits again: waiting > waiting-children
    gmo_finish_and_fetch
suspended: active > suspended
    glidemq_suspend gmo_finish_and_fetch
signalled: suspended > waiting
    glidemq_signal
timed out: suspended > failed
    glidemq_sweepSuspended
stalled: active > waiting
    glidemq_reclaimStalled glidemq_reclaimStalledListJobs gmo_reclaim gmo_put_back gmo_take_back
    gmo_heartbeats gmo_renew
stalled: active > failed
    glidemq_reclaimStalled glidemq_reclaimStalledListJobs gmo_reclaim
expired: waiting delayed prioritized > failed
    glidemq_moveToActive glidemq_completeAndFetchNext glidemq_promote glidemq_fail glidemq_reclaimStalled
    gmo_finish_and_fetch gmo_reclaim
cannot run: waiting-children > failed
    gmo_finish_and_fetch gmo_advance_flow gmo_settle_foreign gmo_settle_missing gmo_check_open
    gmo_expire_due gmo_end_node gmo_reclaim gmo_notify_again gmo_revoke_job
skipped: waiting-children > completed
    gmo_finish_and_fetch gmo_advance_flow gmo_settle_foreign gmo_settle_missing gmo_check_open
    gmo_notify_again gmo_end_node gmo_reclaim gmo_change_elements gmo_change_nodes
cancelled: waiting delayed prioritized group-waiting suspended waiting-children active > failed
    gmo_cancel_flow gmo_advance_flow gmo_begin_generation gmo_end_node gmo_expire_due
    gmo_change_elements gmo_change_nodes
revoked: waiting delayed prioritized group-waiting suspended waiting-children > failed
    glidemq_revoke gmo_revoke_job gmo_cancel_jobs gmo_finish_and_fetch
retried: failed > delayed
    glidemq_retryJobs
retried: failed > waiting
    gmo_retry_jobs
completed manually: waiting delayed prioritized group-waiting suspended > completed
    gmo_change_elements gmo_change_nodes gmo_advance_flow
completed manually: waiting-children active failed absent > completed
    gmo_change_elements gmo_change_nodes gmo_advance_flow
reset: completed failed > waiting-children
    gmo_advance_flow gmo_retry_flow gmo_run_again gmo_change_elements gmo_change_nodes
    gmo_settle_foreign
withdrawn: waiting delayed prioritized group-waiting suspended active > waiting-children
    gmo_change_elements gmo_change_nodes gmo_advance_flow gmo_settle_foreign gmo_run_again
removed: any > absent
    glidemq_removeJob glidemq_clean glidemq_drain glidemq_dedup glidemq_complete
    glidemq_completeAndFetchNext glidemq_fail gmo_remove_jobs gmo_finish_and_fetch gmo_discard_flow
    gmo_drop_growth gmo_sweep gmo_advance_flow gmo_grow gmo_expire_due gmo_revoke_job gmo_reclaim
    gmo_settle_foreign gmo_check_open gmo_cancel_flow gmo_cancel_jobs gmo_begin_generation
    gmo_change_elements gmo_change_nodes gmo_retry_flow gmo_run_again
message settled: waiting active delayed completed failed > waiting active delayed completed failed
    gmo_begin_messages gmo_end_messages gmo_take_over_messages gmo_settle_messages gmo_retry_message
    gmo_retry_jobs
removed after all subscriptions: any > absent
    gmo_end_messages gmo_begin_messages gmo_take_over_messages gmo_settle_messages gmo_trim_messages
message copied: absent > delayed
    gmo_retry_message
recorded after removal: absent > completed failed
    gmo_settle_missing
recreated after removal: absent > waiting-children
    gmo_advance_flow gmo_retry_flow gmo_run_again gmo_change_elements gmo_change_nodes
    gmo_settle_foreign
"""


class JobState(StrEnum):
    """The state of a job; the values are glide-mq's, except ``skipped``."""

    WAITING = "waiting"
    ACTIVE = "active"
    DELAYED = "delayed"
    PRIORITIZED = "prioritized"
    WAITING_CHILDREN = "waiting-children"
    GROUP_WAITING = "group-waiting"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """Only for nodes of flows: the job has completed without a result."""
    UNKNOWN = "unknown"
    """The stored state is not valid; the job or node is marked ``broken``."""

    @classmethod
    def read(cls, text: str | None) -> Self:
        """The state of this name; ``UNKNOWN`` for any other text."""
        try:
            return cls(text or "")
        except ValueError:
            return cls("unknown")

    @property
    def is_terminal(self) -> bool:
        """Whether the job has ended; then only a retry runs it again."""
        return self in (JobState.COMPLETED, JobState.FAILED, JobState.SKIPPED)


EndedState = Literal[JobState.COMPLETED, JobState.FAILED, "completed", "failed"]
"""The states of a job that has ended."""

JobStateLike: TypeAlias = (
    JobState
    | Literal[
        "waiting", "active", "delayed", "prioritized", "waiting-children", "group-waiting", "suspended",
        "completed", "failed", "skipped", "unknown",
    ]
)  # fmt: skip
"""A state of a job, or its text."""


# Transition: states before > states after; below it the calls that make it. `any`: every state of a job.
_HEAD: Final = re.compile(r"([a-z ]+): ([a-z -]+) > ([a-z -]+)")


class Transition(NamedTuple):
    """One transition of a job."""

    what: str
    source: str
    target: str
    calls: tuple[str, ...]


def _rows() -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The rows of the table: transition, states before and after, and calls."""
    for row in re.split(r"\n(?! )", TABLE.strip()):
        head, *calls = row.splitlines()
        yield _HEAD.fullmatch(head).groups(), tuple(" ".join(calls).split())  # type: ignore[union-attr]


def steps() -> Iterator[Transition]:
    """The table, with a step for each pair of states."""
    stored = [state.value for state in JobState if state not in (JobState.SKIPPED, JobState.UNKNOWN)]
    for (what, before, after), calls in _rows():
        sources = stored if before == "any" else before.split()
        for source, target in product(sources, after.split()):
            yield Transition(what, source, target, calls)


def leads_to(call: str, source: str) -> set[str]:
    """The possible states of a job in ``source`` after a call, which may make several steps."""
    reached, todo = {source}, [source]
    while todo:
        state = todo.pop()
        for step in steps():
            if step.source == state and call in step.calls and step.target not in reached:
                reached.add(step.target)
                todo.append(step.target)
    return reached


def drawing() -> str:
    """The table as a Mermaid state diagram, with a note on transitions from every state."""
    anywhere = {row.partition(":")[0] for row in TABLE.splitlines() if ": any >" in row}
    edges: dict[tuple[str, str], list[str]] = {}
    for step in steps():
        whats = edges.setdefault((_place(step.source), _place(step.target)), [])
        if step.what not in anywhere and step.what not in whats:
            whats.append(step.what)
    lines = ["stateDiagram-v2"]
    lines += [
        f"    {source} --> {target}: {', '.join(whats)}" for (source, target), whats in edges.items() if whats
    ]
    lines += [f"    note right of failed: a job in any state may be {' or '.join(sorted(anywhere))}"]
    return "\n".join(lines)


def page() -> str:
    """``docs/reference/job-states.md``: the diagram, and the calls of each step."""
    lines = ["# The life cycle of a job", ""]
    lines += [
        "Made by `make tables` from the table in `glidemq_orchestrate/jobs/states.py`; tests check our server"
    ]
    lines += ["functions against it.", "", "```mermaid", drawing(), "```", ""]
    lines += ["| transition | from | to | by |", "|---|---|---|---|"]
    for head, calls in _rows():
        lines.append(f"| {' | '.join(head)} | {' '.join(f'`{call}`' for call in calls)} |")
    return "\n".join(lines) + "\n"


def _place(state: str) -> str:
    return "[*]" if state == ABSENT else state.replace("-", "_")
