"""A paused schedule is where no worker looks; what it missed is omitted."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from glidemq_orchestrate import JobTemplate, Schedule
from glidemq_orchestrate.cli import app
from glidemq_orchestrate.errors import ConfigurationError, ScheduleBusy, ScheduleNotFound
from glidemq_orchestrate.schedules import ops
from tests.server.schedules.conftest import ETL, LOCK, NODE, OURS, Stage
from tests.server.schedules.test_odd_schedules import BROKEN

if TYPE_CHECKING:
    from tests.server.conftest import Hand

SECOND = timedelta(seconds=1)
PAUSED = "glide:{etl}:gmo:schedulers:paused"
ANEW = "glide:{etl}:gmo:supervised"


@pytest.mark.parametrize(("more", "key"), [({}, NODE), ({"logical_time": True}, OURS)])
def test_a_paused_schedule_fires_nowhere_and_keeps_its_rhythm(
    stage: Stage, more: dict[str, Any], key: str
) -> None:
    schedule = Schedule(every=SECOND, limit=3, **more)
    stage.schedulers.upsert("s", schedule, JobTemplate("clean"))
    stage.tick(1_001_000)
    before = stage.entry(key=key)
    for _ in range(2):
        entry = stage.schedulers.pause("s")
        assert (entry.paused, entry.next_run, entry.iterations, entry.finished) == (True, None, 1, False)
    assert entry.python_only == bool(more)
    assert stage.client.hkeys(NODE) + stage.client.hkeys(OURS) == []
    assert stage.client.zcard("glide:{etl}:gmo:schedulers:due") == 0
    assert stage.tick(1_004_500) == -1
    assert len(stage.jobs()) == 1
    assert [one.paused for one in stage.schedulers.list()] == [True]
    assert stage.schedulers.get("s") == entry
    for _ in range(2):
        entry = stage.schedulers.resume("s")
        assert (entry.paused, entry.next_run) == (False, datetime.fromtimestamp(1005, UTC))
    assert stage.entry(key=key) == before | {"nextRun": 1_005_000}
    assert not stage.client.exists(PAUSED)
    assert stage.tick(1_005_000) == 1_006_000
    assert [job["timestamp"] for job in stage.jobs()] == ["1001000", "1005000"]


def test_the_next_time_is_computed_anew(stage: Stage) -> None:
    cases: dict[str, tuple[dict[str, Any], int, int | None]] = {
        "before it was due": ({"every": timedelta(minutes=1)}, 1_030_000, 1_060_000),
        "a pattern": ({"cron": "* * * * *"}, 1_090_000, 1_140_000),
        "missed slots are not caught up": ({"every": SECOND, "catch_up": "all"}, 1_090_500, 1_091_000),
        "after an end": ({"repeat_after_complete": SECOND}, 1_090_000, 1_090_000),
        "its end has passed": ({"every": SECOND, "end": datetime.fromtimestamp(1050, UTC)}, 1_090_000, None),
    }
    for name, (options, at, due) in cases.items():
        stage.clock.now = 1_000_000
        stage.schedulers.upsert(name, Schedule(**options))
        stage.schedulers.pause(name)
        stage.clock.now = at
        entry = stage.schedulers.resume(name)
        assert entry.next_run == (due and datetime.fromtimestamp(due / 1000, UTC)), name
        assert entry.finished == (due is None), name
        assert stage.schedulers.get(name) == entry, name


def test_a_run_that_was_active_is_followed_by_one_only(stage: Stage) -> None:
    stage.schedulers.upsert("s", Schedule(repeat_after_complete=SECOND))
    stage.tick()
    stage.schedulers.pause("s")
    stage.tick(1_005_000)
    stage.schedulers.resume("s")
    stage.tick(1_006_000)
    assert len(stage.jobs()) == 1
    stage.end("1", at=1_006_500)
    stage.tick(1_007_400)
    assert len(stage.jobs()) == 1
    stage.tick(1_007_500)
    assert len(stage.jobs()) == 2


def test_upserts_leave_it_paused_and_remove_removes_it(stage: Stage) -> None:
    stage.schedulers.upsert("s", Schedule(every=SECOND))
    stage.schedulers.pause("s")
    entry = stage.schedulers.upsert("s", Schedule(every=2 * SECOND), JobTemplate("other"))
    assert (entry.paused, entry.job, entry.next_run) == (True, "other", None)
    assert not stage.client.exists(NODE)
    assert stage.schedulers.resume("s").next_run == datetime.fromtimestamp(1002, UTC)
    stage.schedulers.pause("s")
    assert stage.schedulers.remove("s") is True
    assert stage.schedulers.remove("s") is False
    assert stage.client.keys("*schedulers*") == []


def test_a_node_client_that_upserts_it_does_not_resume_it(stage: Stage) -> None:
    stage.schedulers.upsert("s", Schedule(every=SECOND))
    stage.schedulers.pause("s")
    stage.node_writes('{"every":5000,"iterationCount":0,"nextRun":1004000}')
    assert not stage.schedulers.get("s").paused, "until a worker sees it, Node workers fire it"
    assert stage.tick(1_003_000) == -1
    (entry,) = stage.schedulers.list()
    assert (entry.paused, entry.schedule) == (True, Schedule(every=5 * SECOND))
    assert not stage.client.exists(NODE)
    stage.node_writes('{"every":7000,"iterationCount":0,"nextRun":1009000}')
    assert stage.schedulers.resume("s").next_run == datetime.fromtimestamp(1009, UTC)
    assert not stage.client.exists(PAUSED)
    assert stage.schedulers.pause("s").schedule == Schedule(every=7 * SECOND)


def test_what_does_not_exist_or_has_finished_is_not_paused(stage: Stage) -> None:
    for change in (stage.schedulers.pause, stage.schedulers.resume):
        with pytest.raises(ScheduleNotFound, match="no schedule s in queue etl"):
            change("s")
    stage.schedulers.upsert("s", Schedule(every=SECOND, limit=1))
    stage.tick(1_001_000)
    for change in (stage.schedulers.pause, stage.schedulers.resume):
        assert (change("s").finished, change("s").paused) == (True, False)
    assert not stage.client.exists(PAUSED)


def test_it_waits_for_a_worker_that_fires(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.schedulers.upsert("s", Schedule(every=SECOND))
    before = stage.client.hget(NODE, "s")
    monkeypatch.setattr("glidemq_orchestrate.clients.schedules.TRIES", 2)
    stage.client.set(LOCK, "node", px=60_000)
    with pytest.raises(ScheduleBusy):
        stage.schedulers.pause("s")
    assert (stage.client.hget(NODE, "s"), stage.client.exists(PAUSED)) == (before, 0)


def test_a_slot_that_is_fired_meanwhile_is_not_lost(stage: Stage, hand: Hand) -> None:
    """The pause has read the entry; a worker fires it; the pause must not write what it has read."""
    stage.schedulers.upsert("s", Schedule(every=SECOND))
    stage.clock.now = 1_001_000
    op = ops.pause(ETL, "s", stage.clock.now)
    request = next(op)
    while "gmo_put_scheduler" not in str(request):
        request = op.send(hand.answers(request))
    stage.tick()
    with pytest.raises(ScheduleBusy):
        op.send(hand.answers(request))
    assert stage.schedulers.pause("s").iterations == 1
    assert len(stage.jobs()) == 1


def test_an_entry_that_cannot_be_read_stays_as_it_is(stage: Stage) -> None:
    for what, (name, text) in BROKEN.items():
        stage.client.hset(NODE, name, text)
        key = name.decode(errors="surrogateescape")
        try:
            paused = stage.schedulers.pause(key).paused
        except ConfigurationError:
            paused = False
        assert stage.client.hexists(NODE, name) != paused, what
        if paused:
            assert not stage.schedulers.resume(key).paused, what
        stage.client.delete(NODE, OURS, PAUSED)


def test_the_command_line_pauses_and_resumes(stage: Stage, url: str) -> None:
    stage.schedulers.upsert("nightly", Schedule(every=3_600))

    def run(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, ["scheduler", *words, "--queue", "etl", "--url", url])
        assert done.exit_code == code, done.output
        return done.output

    assert run("pause", "nightly") == "nightly: paused\n"
    assert run("list").split()[-2:] == ["paused", "0"]
    (row,) = json.loads(run("list", "--json"))
    assert (row["paused"], row["next_run"], row["finished"]) == (True, None, False)
    assert json.loads(run("pause", "nightly", "--json")) == row
    assert run("set", "nightly", "--every", "2h") == "nightly: every 2 h, paused\n"
    assert run("resume", "nightly").startswith("nightly: next run ")
    assert json.loads(run("resume", "nightly", "--json"))["paused"] is False
    assert "no schedule other in queue etl" in run("pause", "other", code=1)
    run("resume", "other", code=1)
