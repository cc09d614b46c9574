"""Jobs: what calls return, and the values of rare options.

``JobOptions`` and its usual values are in ``glidemq_orchestrate`` itself. Names are resolved on first use.
"""

from typing import TYPE_CHECKING, Final

from glidemq_orchestrate.foundation.importing import on_first_use as _on_first_use

if TYPE_CHECKING:
    from glidemq_orchestrate.jobs.job import Job, JobLogs
    from glidemq_orchestrate.jobs.option_values import Fallback, JobRef
    from glidemq_orchestrate.jobs.output import AcceptedAttempt, JobMessage
    from glidemq_orchestrate.jobs.usage import Usage

_PUBLIC: Final = {
    "job": ("Job", "JobLogs"),
    "option_values": ("Fallback", "JobRef"),
    "output": ("AcceptedAttempt", "JobMessage"),
    "usage": ("Usage",),
}
_HOMES: Final = {name: f"{__name__}.{module}" for module, names in _PUBLIC.items() for name in names}

__all__ = [
    "AcceptedAttempt",
    "Fallback",
    "Job",
    "JobLogs",
    "JobMessage",
    "JobRef",
    "Usage",
]

__getattr__ = _on_first_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
