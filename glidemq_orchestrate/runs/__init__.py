"""A run of a flow for an orchestrator. Public for integrators: the providers use it.

An orchestrator retries, clears and kills tasks, and may lose their processes. ``OrchestratedRun`` keeps the
flow of a task consistent with that. An attempt submits the flow, continues it, repairs it or begins a
generation. It follows the flow across outages, and cancels only a flow that its task owns. Users who write
flows need none of this.

- ``task_attempt`` decides what an attempt does, without a server.
- ``course`` makes the calls of an attempt.
- ``following`` follows a flow, checks its workers, and has its owners.
- ``run`` has the two classes for orchestrators, and reads results.
- ``steps`` lets the same code serve blocking clients and clients on an event loop, and waits out outages.

``in_text``, ``in_line`` and ``in_block`` make text of workers safe for a log; ``nearest`` suggests words.
``Json``, ``JsonLike`` and ``Duration`` are the types of data, results and lengths of time. Names are resolved
on first use, so parsing a DAG file imports few modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from glidemq_orchestrate.foundation.importing import on_first_use as _on_first_use

if TYPE_CHECKING:
    from glidemq_orchestrate.flows.status import OnExisting
    from glidemq_orchestrate.foundation.durations import Duration
    from glidemq_orchestrate.foundation.suggestions import nearest
    from glidemq_orchestrate.foundation.texts import in_block, in_line, in_text
    from glidemq_orchestrate.runs.course import cancel_owned, history_of
    from glidemq_orchestrate.runs.following import (
        MAX_LEASE,
        RENEWALS,
        Changes,
        NotOwned,
        check_owned,
        owner_of,
        short_name,
    )
    from glidemq_orchestrate.runs.run import (
        UPSTREAM,
        AsyncOrchestratedRun,
        OrchestratedRun,
        Result,
        ResultMode,
        ResultsTooLarge,
        check_size,
        collect,
        is_cause,
        json_size,
        leaves_of,
        log_failures,
    )
    from glidemq_orchestrate.runs.steps import (
        NO_PATIENCE,
        Patience,
        Rest,
        Steps,
        adrive,
        drive,
        reconnect_pauses,
    )
    from glidemq_orchestrate.runs.task_attempt import (
        Beginning,
        CountedAttempt,
        Decision,
        Origin,
        Overtaken,
        TaskAttempt,
        beginning,
        decide,
        derived_id,
        is_overtaken,
    )
    from glidemq_orchestrate.wire.codec import Json, JsonLike

_PUBLIC: Final = {
    "flows.status": ("OnExisting",),
    "foundation.durations": ("Duration",),
    "foundation.suggestions": ("nearest",),
    "foundation.texts": ("in_block", "in_line", "in_text"),
    "runs.task_attempt": (
        "Beginning",
        "CountedAttempt",
        "Decision",
        "Origin",
        "Overtaken",
        "TaskAttempt",
        "beginning",
        "decide",
        "derived_id",
        "is_overtaken",
    ),
    "runs.course": ("cancel_owned", "history_of"),
    "runs.following": (
        "MAX_LEASE",
        "RENEWALS",
        "Changes",
        "NotOwned",
        "check_owned",
        "owner_of",
        "short_name",
    ),
    "runs.run": (
        "UPSTREAM",
        "AsyncOrchestratedRun",
        "OrchestratedRun",
        "Result",
        "ResultMode",
        "ResultsTooLarge",
        "check_size",
        "collect",
        "is_cause",
        "json_size",
        "leaves_of",
        "log_failures",
    ),
    "runs.steps": ("NO_PATIENCE", "Patience", "Rest", "Steps", "adrive", "drive", "reconnect_pauses"),
    "wire.codec": ("Json", "JsonLike"),
}
_HOMES: Final = {name: f"glidemq_orchestrate.{module}" for module, names in _PUBLIC.items() for name in names}

__all__ = [
    "MAX_LEASE",
    "NO_PATIENCE",
    "RENEWALS",
    "UPSTREAM",
    "AsyncOrchestratedRun",
    "Beginning",
    "Changes",
    "CountedAttempt",
    "Decision",
    "Duration",
    "Json",
    "JsonLike",
    "NotOwned",
    "OnExisting",
    "OrchestratedRun",
    "Origin",
    "Overtaken",
    "Patience",
    "Rest",
    "Result",
    "ResultMode",
    "ResultsTooLarge",
    "Steps",
    "TaskAttempt",
    "adrive",
    "beginning",
    "cancel_owned",
    "check_owned",
    "check_size",
    "collect",
    "decide",
    "derived_id",
    "drive",
    "history_of",
    "in_block",
    "in_line",
    "in_text",
    "is_cause",
    "is_overtaken",
    "json_size",
    "leaves_of",
    "log_failures",
    "nearest",
    "owner_of",
    "reconnect_pauses",
    "short_name",
]

__getattr__ = _on_first_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
