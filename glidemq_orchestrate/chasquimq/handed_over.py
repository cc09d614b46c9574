"""Jobs that the bridge hands over to ChasquiMQ: added once, looked up, withdrawn while no worker has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from glidemq_orchestrate.chasquimq.adding import entry_words
from glidemq_orchestrate.chasquimq.envelope import Envelope, Retry
from glidemq_orchestrate.chasquimq.keys import ChasquiKeys
from glidemq_orchestrate.chasquimq.msgpack import Packable, to_word
from glidemq_orchestrate.chasquimq.scripts import ADD, PRESENT, WITHDRAW, script
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask, command, send_all

MARK_SECONDS: Final = 7 * 86_400
"""How long a bridge knows which entry it added for an attempt, after it has last looked after the job."""
ONE_RUN: Final = Retry(1)
"""The job of the bridge repeats a failed run, so ChasquiMQ does not."""
PREFIX: Final = "gmo:"


def id_of(queue: str, job_id: str, epoch: int) -> str:
    """The id of the job for one activation of a job of ours."""
    return f"{PREFIX}{queue}:{job_id}:{epoch}"


@dataclass(frozen=True, slots=True)
class HandedOver:
    """A job for one attempt.

    Attributes:
        id: Its id.
        name: Its name.
        data: Its data.
    """

    id: str
    name: str
    data: Packable


def add(keys: ChasquiKeys, job: HandedOver, max_waiting: int | None, now_ms: int) -> Call[str]:
    """Add the job unless it was added before, by any bridge; returns the id of its entry. Repeatable.

    Raises:
        EncodeError, PayloadTooLarge: The data cannot be packed, or is too long.
    """
    envelope = Envelope.of(job.id, job.data, now_ms, ONE_RUN)
    words = entry_words(job.name, to_word(envelope.packed), max_waiting)
    names = [keys.handed_over(job.id), keys.key("stream")]
    return script(ADD, names, [MARK_SECONDS, *words], replies.text, repeatable=True)


def keep_marks(keys: ChasquiKeys, job_ids: Iterable[str]) -> Op[None]:
    """Know for longer which entries were added for these jobs, which have not ended."""
    marks = [keys.handed_over(job_id) for job_id in job_ids]
    yield from send_all(command("EXPIRE", mark, MARK_SECONDS, decode=replies.anything) for mark in marks)


def present(keys: ChasquiKeys, entries: Sequence[str]) -> Call[list[int]]:
    """Which of the entries are still in the stream: 1 or 0 for each."""
    return script(PRESENT, [keys.key("stream")], entries, replies.integers, repeatable=True)


def withdraw(keys: ChasquiKeys, group: str, job_id: str) -> Op[bool]:
    """Remove the entry of a job unless a worker has fetched it; whether it was removed."""
    found: str | None = yield from ask(command("GET", keys.handed_over(job_id), decode=lambda reply: reply))
    if found is None:
        return False
    return bool((yield from ask(script(WITHDRAW, [keys.key("stream")], [group, found], replies.integer))))


def remote_data(data: Any, inputs: dict[str, Any]) -> Packable:
    """The data of the job: that of ours, with the results of its dependencies as ``inputs``."""
    if not inputs or not (data is None or isinstance(data, dict)):
        plain: Packable = data
        return plain
    return {"inputs": inputs, **(data or {})}
