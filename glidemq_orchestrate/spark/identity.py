"""Whose a step is: the settings ``spark.glidemq.*`` by which Spark's pages and event log tell it.

They are ``spark.glidemq.queue``, ``job``, ``node``, ``flow``, ``attempt`` and ``user``, as far as the job has
them. The Spark jobs of a step have them as properties, its SQL queries as settings, and a driver of its own
as settings of its application. ``user`` is what the payload says, for whoever reads or accounts: nobody has
proven it, and it is not whom Spark or a file system takes for the user.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from glidemq_orchestrate.wire.codec import Json
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.named_call import InvalidCall

FIELD: Final = "user"
PREFIX: Final = "spark.glidemq."
PARTS: Final = ("queue", "job", "node", "flow", "attempt", FIELD)
MAX: Final = 200


def identity_of(title: str, ctx: Context) -> dict[str, str]:
    """The settings for a step.

    Raises:
        InvalidCall: The user in its payload is no name; ``title`` begins the message.
    """
    given: Json = ctx.data.get(FIELD) if isinstance(ctx.data, dict) else None
    user = "" if given is None else given
    if not isinstance(user, str) or not user.isprintable() or len(user) > MAX:
        raise InvalidCall(f"{title}: user must be a name of at most {MAX} printable characters")
    values = (ctx.queue, ctx.job_id, ctx.node or "", ctx.flow_id or "", str(ctx.attempt), user)
    return {f"{PREFIX}{part}": value for part, value in zip(PARTS, values, strict=True) if value}


def user_of(identity: Mapping[str, str]) -> str:
    """The user among them; empty if there is none."""
    return identity.get(f"{PREFIX}{FIELD}", "")
