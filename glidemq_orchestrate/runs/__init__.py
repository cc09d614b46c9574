"""A run of a flow for an orchestrator. Public for integrators: both providers stand on it.

An orchestrator retries tasks, clears them, loses their processes and kills them. ``OrchestratedRun`` keeps a
flow in step with all of that: an attempt submits it, continues it, repairs it or begins a generation,
follows it over outages, and cancels only what its task has begun. Writing flows needs none of this.

``attempt`` decides what an attempt does, without a server; ``course`` has the calls; ``following``,
``ownership``, ``unserved``, ``results`` and ``patience`` are its parts, also for use on their own; ``steps``
is how one copy of the code serves blocking clients and those on an event loop. ``in_text``, ``in_line`` and
``in_block`` make text of workers safe for a log; ``Json`` and ``JsonLike`` are the types of data and results.
Names are resolved on first use, so a file that is parsed often pays for few modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from glidemq_orchestrate.foundation.importing import on_first_use as _on_first_use

if TYPE_CHECKING:
    from glidemq_orchestrate.foundation.names import in_block, in_line, in_text
    from glidemq_orchestrate.runs.attempt import (
        Attempt,
        Beginning,
        CountedAttempt,
        Decision,
        OnExisting,
        Origin,
        Overtaken,
        beginning,
        decide,
        derived_id,
        is_overtaken,
    )
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
    from glidemq_orchestrate.runs.steps import NO_PATIENCE, Patience, adrive, drive, reconnect_pauses
    from glidemq_orchestrate.wire.codec import Json, JsonLike

_PUBLIC: Final = {
    "foundation.names": ("in_block", "in_line", "in_text"),
    "runs.attempt": (
        "Attempt",
        "Beginning",
        "CountedAttempt",
        "Decision",
        "OnExisting",
        "Origin",
        "Overtaken",
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
    "runs.steps": ("NO_PATIENCE", "Patience", "adrive", "drive", "reconnect_pauses"),
    "wire.codec": ("Json", "JsonLike"),
}
_HOMES: Final = {name: f"glidemq_orchestrate.{module}" for module, names in _PUBLIC.items() for name in names}

__all__ = [
    "MAX_LEASE",
    "NO_PATIENCE",
    "RENEWALS",
    "UPSTREAM",
    "AsyncOrchestratedRun",
    "Attempt",
    "Beginning",
    "Changes",
    "CountedAttempt",
    "Decision",
    "Json",
    "JsonLike",
    "NotOwned",
    "OnExisting",
    "OrchestratedRun",
    "Origin",
    "Overtaken",
    "Patience",
    "Result",
    "ResultMode",
    "ResultsTooLarge",
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
    "owner_of",
    "reconnect_pauses",
    "short_name",
]

__getattr__ = _on_first_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
