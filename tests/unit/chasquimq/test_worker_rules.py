"""What arrives, how runs end, and when schedules fire, without a server."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest

from glidemq_orchestrate.attempts.exchange import UNBEGUN, Kind, Outcome
from glidemq_orchestrate.chasquimq.chores import MAX_FIRED, runs_of
from glidemq_orchestrate.chasquimq.consuming import Arrived, Consumer, Refused, _arrived
from glidemq_orchestrate.chasquimq.dead_letters import DeadReason
from glidemq_orchestrate.chasquimq.envelope import Envelope, Retry, StoredBackoff
from glidemq_orchestrate.chasquimq.keys import ChasquiKeys
from glidemq_orchestrate.chasquimq.repeats import FIRE_ONCE, SKIP, CronTimes, Every, Missed, RepeatSpec
from glidemq_orchestrate.chasquimq.running import ChasquiAttempt, End, end_of

CONSUMER: Final = Consumer(ChasquiKeys("images"), "default", "me", 3)
NOW: Final = 1_700_000_000_000


def entry(retry: Retry | None = None, *, attempt: int = 0, **fields: str) -> tuple[str, dict[str, str]]:
    body = msgspec.msgpack.encode(msgspec.msgpack.encode(1))
    packed = Envelope("a", body, NOW, attempt, retry).packed
    return "1-1", {"d": packed.decode(errors="surrogateescape"), **fields}


def test_an_entry_with_a_job_arrives() -> None:
    found = _arrived(CONSUMER, entry(n="x", other="y"), 0)  # facts 4 and 5
    assert isinstance(found, Arrived)
    assert (found.name, found.envelope.data, found.deliveries) == ("x", 1, 0)
    unnamed = _arrived(CONSUMER, entry(), 0)
    assert isinstance(unnamed, Arrived)
    assert unnamed.name == ""


REFUSED: dict[str, tuple[dict[str, str], DeadReason, str, str]] = {
    "no payload": ({"n": "x"}, DeadReason.MALFORMED, "", ""),
    "a long payload": ({"d": "x" * 1_048_577, "n": "x"}, DeadReason.OVERSIZE_PAYLOAD, "x", ""),
    "no msgpack": ({"d": "?", "n": "x"}, DeadReason.DECODE_FAILED, "", ""),
    "another form": ({"d": "\x92\x01\x02", "n": "x"}, DeadReason.DECODE_FAILED, "", ""),
}


@pytest.mark.parametrize("what", REFUSED)
def test_an_entry_without_a_job_is_refused(what: str) -> None:  # facts 6 and 7
    fields, reason, name, job_id = REFUSED[what]
    found = _arrived(CONSUMER, ("1-1", fields), 0)
    assert isinstance(found, Refused)
    assert (found.reason, found.name, found.job_id, found.runs) == (reason, name, job_id, 0)
    assert found.payload == fields.get("d", "").encode(errors="surrogateescape")
    assert (found.detail == "missing or non-bytes payload field") == (reason is DeadReason.MALFORMED)


BUDGETS: list[tuple[int, int | None, int, str]] = [
    # runs that failed, limit of the job, earlier deliveries, what follows
    (0, 2, 0, "runs"),
    (0, 2, 1, "runs"),
    (0, 2, 2, "runs"),
    (0, 2, 3, "ends"),  # fact 22
    (1, 2, 0, "runs"),
    (2, 2, 0, "ends"),
    (0, 0, 0, "ends"),
    (2, None, 0, "runs"),
    (3, None, 0, "ends"),
    (0, None, 4, "ends"),
]


@pytest.mark.parametrize(("attempt", "limit", "deliveries", "end"), BUDGETS)
def test_failures_and_losses_use_up_the_runs(
    attempt: int, limit: int | None, deliveries: int, end: str
) -> None:
    found = _arrived(CONSUMER, entry(Retry(limit), attempt=attempt), deliveries)
    assert isinstance(found, Arrived) == (end == "runs")
    if isinstance(found, Refused):
        assert (found.reason, found.job_id) == (DeadReason.RETRIES_EXHAUSTED, "a")
        assert found.runs == max(attempt, deliveries - 1, 0)


def ended(kind: Kind, text: str = "", *, attempt: int = 0, retry: Retry | None = None, **fields: Any) -> End:
    arrived = _arrived(CONSUMER, entry(retry, attempt=attempt, n="x"), 0)
    assert isinstance(arrived, Arrived)
    run = ChasquiAttempt.of(CONSUMER, arrived, "", NOW)
    return end_of(CONSUMER, Outcome(run, kind, text, **fields), result_seconds=60, now_ms=NOW, chance=0.5)


def words(end: End) -> list[Any]:
    return list(end.ending.words)


def test_a_result_is_stored_and_null_is_not() -> None:  # fact 20
    done = words(ended(Kind.DONE, '{"got":1}'))
    assert done[:6] == ["1-1", "store", 60, "\udc81\udca3got\x01", 0, 1]
    assert done[7:9] == ["e", "completed"]
    assert words(ended(Kind.DONE, "null"))[1] == words(ended(Kind.SKIP, "why"))[1] == "settle"


def test_a_result_that_cannot_be_packed_is_a_failure() -> None:
    end = ended(Kind.DONE, str(2**70))
    assert (end.verdict, words(end)[1]) == ("failed", "bury")
    assert "64 bits" in end.outcome.text


def test_a_failure_is_followed_by_another_run_with_its_pause() -> None:  # fact 17
    backoff = StoredBackoff("exponential", 20, jitter_ms=0)
    for attempt, pause in enumerate((20, 40, 80)):
        end = ended(Kind.FAIL, "boom", attempt=attempt, retry=Retry(9, backoff), first=9)
        assert (end.verdict, end.outcome.second, words(end)[1:3]) == (
            "retrying",
            pause,
            ["delay", NOW + pause],
        )
    end = ended(Kind.FAIL, "later", retry=Retry(9, backoff), first=9, second=5_000)
    assert words(end)[2] == NOW + 5_000


def test_the_last_failure_makes_a_dead_letter() -> None:  # facts 15 and 16
    end = ended(Kind.FAIL, "boom", attempt=1, retry=Retry(2), first=2)
    assert (end.verdict, words(end)[1]) == ("failed", "bury")
    assert words(end)[11:13] == ["reason", "retries_exhausted"]
    assert words(end)[-12:-10] == ["e", "dlq"]
    assert words(end)[-4:] == ["attempt", 2, "reason", "retries_exhausted"]
    assert "unrecoverable" in words(ended(Kind.FAIL, "no", retry=Retry(9)))


def test_what_is_given_back_keeps_its_runs() -> None:
    end = ended(Kind.LATER, attempt=1, first=NOW + 50, second=UNBEGUN)
    assert words(end)[1:3] == ["delay", NOW + 50]
    assert Envelope.read(words(end)[3].encode(errors="surrogateescape")[5:]).attempt == 1


def test_children_and_signals_are_refused() -> None:
    for kind in (Kind.CHILDREN, Kind.SUSPEND):
        end = ended(kind)
        assert (end.verdict, words(end)[1]) == ("failed", "bury")
        assert "is not possible for a job of ChasquiMQ" in end.outcome.text


def spec(pattern: Every | CronTimes, missed: Missed = SKIP, end_ms: int | None = None) -> RepeatSpec:
    return RepeatSpec("k", "x", pattern, b"", end_ms=end_ms, missed=missed)


LATE: list[tuple[Missed, int]] = [
    (SKIP, 0),
    (FIRE_ONCE, 1),
    (Missed(3, is_all=True), 3),
    (Missed(99, is_all=True), 6),
]


@pytest.mark.parametrize(("missed", "count"), LATE)
def test_missed_runs_are_made_up_for_as_the_user_chose(missed: Missed, count: int) -> None:  # fact 25
    assert runs_of(spec(Every(2_000), missed), NOW - 10_500, NOW) == (count, NOW + 1_500)


def test_a_run_in_time_keeps_the_rhythm() -> None:
    assert runs_of(spec(Every(2_000)), NOW - 100, NOW) == (1, NOW + 1_900)
    assert runs_of(spec(Every(2_000)), NOW - 2_000, NOW) == (1, NOW)


def test_no_schedule_walks_through_years_of_missed_runs() -> None:
    every = spec(Every(1), Missed(10_000, is_all=True))
    assert runs_of(every, NOW - 10**12, NOW) == (MAX_FIRED, NOW + 1)
    cron = spec(CronTimes("* * * * *"), FIRE_ONCE)
    count, upcoming = runs_of(cron, 1, NOW)
    assert (count, NOW < upcoming <= NOW + 60_000) == (1, True)


def test_a_schedule_ends() -> None:
    assert runs_of(spec(Every(2_000), end_ms=NOW + 1_000), NOW, NOW) == (1, 0)
    everything = Missed(99, is_all=True)
    assert runs_of(spec(Every(2_000), everything, NOW - 7_000), NOW - 10_500, NOW) == (2, 0)
