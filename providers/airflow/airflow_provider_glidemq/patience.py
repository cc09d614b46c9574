"""Failures to reach the server while something waits for it: for minutes they are taken for passing ones.

A secrets backend that does not answer, a password that is being rotated, a right that is missing for a
while: none of it says anything about the flow. So a process that waits warns, looks the connection up again,
and goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from glidemq_orchestrate import runs
from glidemq_orchestrate.errors import ConfigurationError, GlideMQError

if TYPE_CHECKING:
    from glidemq_orchestrate.runs import Patience

PATIENCE_SECONDS: Final = 600.0


class LookupFailed(ConfigurationError):
    """Airflow did not tell the connection: it has none of this id, or its secrets backend does not answer."""

    retryable = True


@contextmanager
def looking_up(conn_id: str) -> Iterator[None]:
    """Let it be known as such when Airflow cannot tell a connection.

    Raises:
        LookupFailed: Instead of what Airflow or a secrets backend raises, whose text may hold a secret.
    """
    try:
        yield
    except GlideMQError:
        raise
    except Exception as exc:
        raise LookupFailed(f"Airflow cannot tell the connection {conn_id}: {type(exc).__name__}") from exc


def patience_for(log: Any, what: str) -> Patience:
    """For a process that waits: a server that is away is waited for without limit, all else for ten minutes.

    Args:
        log: The log of the task.
        what: What cannot be watched while it lasts.
    """
    return runs.Patience(None, other_seconds=PATIENCE_SECONDS, what=f"{what} cannot be watched", log=log)
