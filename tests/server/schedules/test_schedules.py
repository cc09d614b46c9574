"""Repeating jobs beside Node workers: one firing a slot, a kept state, a clock that only tests move."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from glidemq_orchestrate import JobOptions, JobTemplate, Schedule
from glidemq_orchestrate.cli import app
from glidemq_orchestrate.clients import AsyncSchedules, Schedules
from glidemq_orchestrate.errors import ConfigurationError, InvalidJob, ScheduleBusy, ScheduleNotFound
from glidemq_orchestrate.schedules import ops
from glidemq_orchestrate.schedules.schedule import CatchUp
from tests.server.conftest import Hand
from tests.server.schedules.conftest import ETL, LOCK, NODE, OURS, At, Stage

if TYPE_CHECKING:
    from glidemq_orchestrate import Queue
    from tests.server.conftest import Clients

SECOND = timedelta(seconds=1)


class TestFiring:
    def test_many_workers_fire_a_slot_once(self, stage: Stage, url: str) -> None:  # fact 34
        stage.node_writes('{"every":1000,"limit":4,"iterationCount":0,"nextRun":1000000}')
        hands = [Hand(url) for _ in range(6)]
        with ThreadPoolExecutor(6) as pool:
            for now in range(1_000_000, 1_006_000, 500):
                list(pool.map(lambda hand, at=now: hand.run(ops.tick(ETL, At(at))), hands))
        for hand in hands:
            hand.driver.close()
        assert [job["timestamp"] for job in stage.jobs()] == [str(1_000_000 + n * 1000) for n in range(4)]
        assert not stage.client.exists(NODE), "after the last of its runs it is gone, as with Node"

    def test_nothing_fires_while_a_node_worker_holds_the_lock(self, stage: Stage) -> None:
        stage.node_writes('{"every":1000,"iterationCount":0,"nextRun":1000000}')
        assert stage.client.fcall("glidemq_tryLock", 1, LOCK, "0123456789abcdef", 5000) == 1
        assert stage.tick() == 1_000_050
        assert stage.jobs() == []
        stage.client.fcall("glidemq_unlock", 1, LOCK, "0123456789abcdef")
        assert stage.tick(1_000_050) == 1_001_000
        assert len(stage.jobs()) == 1

    def test_an_entry_that_node_fired_meanwhile_is_left_alone(self, stage: Stage) -> None:
        stage.node_writes('{"every":1000,"iterationCount":0,"nextRun":1000000}')
        op = ops.tick(ETL, stage.clock)
        request = next(op)
        while "gmo_fire_scheduler" not in str(request):
            request = op.send(stage.hand.answers(request))
        node = '{"every":1000,"iterationCount":1,"lastRun":1000000,"nextRun":1001000}'
        stage.node_writes(node)
        due = None
        while due is None:
            try:
                request = op.send(stage.hand.answers(request))
            except StopIteration as stop:
                due = stop.value
        assert due == 1_000_050
        assert (stage.jobs(), stage.client.hget(NODE, "s")) == ([], node)

    def test_jobs_are_those_that_node_would_add(self, stage: Stage) -> None:
        template = (
            '{"name":"n","data":{"x":1},"opts":{"attempts":2,"ttl":50,"ordering":{"key":"k"},"jobId":"own"}}'
        )
        stage.node_writes('{"every":1000,"iterationCount":0,"template":' + template + ',"nextRun":1000000}')
        stage.tick()
        (job,) = stage.jobs()
        assert {name: job[name] for name in ("id", "name", "data", "maxAttempts", "expireAt", "state")} == {
            "id": "1", "name": "n", "data": '{"x":1}', "maxAttempts": "2", "expireAt": "1000050",
            "state": "waiting",
        }  # fmt: skip
        assert json.loads(job["opts"])["attempts"] == 2
        assert "groupKey" not in job
        (added,) = stage.client.xrange("glide:{etl}:events")
        assert added[1] == {"event": "added", "jobId": "1", "name": "n"}

    def test_a_job_names_the_schedule_that_added_it(self, stage: Stage, queue: Queue) -> None:
        stage.node_writes('{"every":1000,"iterationCount":0,"template":{"name":"n"},"nextRun":1000000}')
        stage.schedulers.upsert("after", Schedule(repeat_after_complete=SECOND), JobTemplate("n"))
        stage.schedulers.upsert("one by one", Schedule(every=SECOND, overlap=False), JobTemplate("n"))
        stage.tick(1_002_000)
        jobs = [queue.get_job(job["id"]) for job in stage.jobs()]
        assert sorted(str(job.schedule) for job in jobs) == ["after", "one by one", "s"]
        # Node workers act upon the name of a scheduler.
        assert [job["gmo:schedule"] for job in stage.jobs() if "schedulerName" in job] == ["after"]
        assert queue.get_job(queue.add("n")).schedule is None

    def test_priority_and_lifo_of_the_template_are_obeyed(self, stage: Stage) -> None:
        stage.node_writes(
            '{"every":9,"iterationCount":0,"template":{"opts":{"priority":3}},"nextRun":5}', "p"
        )
        stage.node_writes('{"every":9,"iterationCount":0,"template":{"opts":{"lifo":true}},"nextRun":5}', "l")
        stage.tick()
        assert stage.client.zcard("glide:{etl}:scheduled") == 1
        assert stage.client.llen("glide:{etl}:lifo") == 1

    def test_missed_intervals_are_skipped_as_node_does(self, stage: Stage) -> None:
        stage.node_writes('{"every":1000,"iterationCount":0,"nextRun":1000}')
        assert stage.tick(3_500) == 4_000
        assert len(stage.jobs()) == 1
        assert stage.entry() == {"every": 1000, "iterationCount": 1, "lastRun": 3500, "nextRun": 4000}

    def test_what_cannot_be_read_is_left_for_its_writer(self, stage: Stage) -> None:
        for n, text in enumerate(
            ("no json", "[]", '{"nextRun":5,"pattern":"* * * * * * *"}', '{"nextRun":5}')
        ):
            stage.node_writes(text, f"odd{n}")
        before = stage.client.hgetall(NODE)
        stage.tick()
        assert (stage.client.hgetall(NODE), stage.jobs()) == (before, [])

    def test_an_entry_past_its_end_is_removed(self, stage: Stage) -> None:
        stage.node_writes('{"every":1000,"endDate":900,"iterationCount":0,"nextRun":1000}')
        assert stage.tick() == -1
        assert (stage.client.exists(NODE), stage.jobs()) == (0, [])

    def test_the_functions_of_the_server_may_be_lost(self, stage: Stage) -> None:
        stage.schedulers.upsert("s", Schedule(every=SECOND))
        stage.client.function_flush()
        stage.schedulers.upsert("s", Schedule(every=SECOND, limit=3))
        assert stage.entry()["limit"] == 3


class TestUpsert:
    def test_the_stored_text_is_nodes(self, stage: Stage) -> None:
        stage.schedulers.upsert("e", Schedule(every=SECOND))
        assert stage.client.hget(NODE, "e") == '{"every":1000,"iterationCount":0,"nextRun":1001000}'
        stage.clock.now = 1_800_000_000_001
        start = datetime.fromtimestamp(1_900_000_000, UTC)
        stage.schedulers.upsert(
            "c",
            Schedule(cron="*/5 * * * *", time_zone="Europe/Rome", start=start, limit=3),
            JobTemplate("n", {"x": 1}, options=JobOptions(attempts=2)),
        )
        assert stage.client.hget(NODE, "c") == (
            '{"pattern":"*/5 * * * *","tz":"Europe/Rome","startDate":1900000000000,"limit":3,'
            '"iterationCount":0,"template":{"name":"n","data":{"x":1},"opts":{"attempts":2}},'
            '"nextRun":1900000200000}'
        )

    def test_an_unchanged_schedule_keeps_its_place(self, stage: Stage) -> None:  # fact 35
        stage.node_writes('{"every":1000,"iterationCount":7,"lastRun":999500,"nextRun":1000500}')
        stage.schedulers.upsert("s", Schedule(every=SECOND, limit=9), JobTemplate("other"))
        assert stage.entry() == {
            "every": 1000, "limit": 9, "iterationCount": 7, "template": {"name": "other"},
            "lastRun": 999500, "nextRun": 1000500,
        }  # fmt: skip
        stage.schedulers.upsert("s", Schedule(every=2 * SECOND))
        assert stage.entry() == {"every": 2000, "iterationCount": 0, "nextRun": 1_002_000}

    def test_what_only_python_knows_is_kept_where_node_does_not_look(self, stage: Stage) -> None:
        stage.schedulers.upsert("s", Schedule(every=SECOND))
        entry = stage.schedulers.upsert("s", Schedule(every=SECOND, logical_time=True))
        assert entry.python_only
        assert not stage.client.exists(NODE)
        stage.schedulers.upsert("six", Schedule(cron="*/10 * * * * *"))
        assert set(stage.client.hkeys(OURS)) == {"s", "six"}
        stage.schedulers.upsert("s", Schedule(every=SECOND))
        assert set(stage.client.hkeys(NODE)) == {"s"}

    def test_it_waits_for_the_lock_and_gives_up(self, stage: Stage, monkeypatch: Any) -> None:
        stage.client.set(LOCK, "node", px=60_000)
        monkeypatch.setattr("glidemq_orchestrate.clients.schedules.TRIES", 2)
        with pytest.raises(ScheduleBusy):
            stage.schedulers.upsert("s", Schedule(every=SECOND))
        assert not stage.client.exists(NODE)
        stage.client.delete(LOCK)
        stage.schedulers.upsert("s", Schedule(every=SECOND))
        stage.client.set(LOCK, "node", px=60_000)
        with pytest.raises(ScheduleBusy):
            stage.schedulers.remove("s")
        assert stage.client.hexists(NODE, "s")

    def test_both_facades_do_the_same(self, twins: Clients) -> None:
        kind = Schedules if twins.runner is None else AsyncSchedules
        made: Any = twins.keep(kind("etl", twins.url, clock=At()))
        entry = twins.do(made.upsert("s", Schedule(every=SECOND)))
        assert entry.next_run == datetime.fromtimestamp(1001, UTC)
        assert twins.do(made.get("s")) == entry
        assert twins.do(made.list()) == [entry]
        assert twins.do(made.remove("s")) is True
        assert twins.do(made.remove("s")) is False
        with pytest.raises(ScheduleNotFound):
            twins.do(made.get("s"))

    def test_invalid_values_are_named(self) -> None:
        cases: list[tuple[str, dict[str, Any]]] = [
            ("exactly one", {}),
            ("exactly one", {"every": SECOND, "cron": "* * * * *"}),
            ("every", {"every": timedelta(0)}),
            ("repeat_after_complete", {"repeat_after_complete": -SECOND}),
            ("time_zone", {"every": SECOND, "time_zone": "UTC"}),
            ("start", {"every": SECOND, "start": datetime(2026, 1, 1)}),  # noqa: DTZ001
            ("limit", {"every": SECOND, "limit": 0}),
            ("catch_up", {"every": SECOND, "catch_up": "some"}),
            ("catch_up_limit", {"every": SECOND, "catch_up": "all", "catch_up_limit": 101}),
            ("catch_up", {"repeat_after_complete": SECOND, "catch_up": "last"}),
            ("overlap", {"every": SECOND, "catch_up": "all", "overlap": False}),
        ]
        for option, values in cases:
            with pytest.raises(ConfigurationError, match=option):
                Schedule(**values)

    def test_what_would_never_run_is_refused(self, stage: Stage) -> None:
        start, end = (datetime.fromtimestamp(second, UTC) for second in (1, 2))
        for schedule in (
            Schedule(cron="0 0 * * *", start=start, end=end),
            Schedule(cron="0 0 30 2 *"),
        ):
            with pytest.raises(ConfigurationError, match="never run"):
                stage.schedulers.upsert("s", schedule)
        with pytest.raises(InvalidJob, match="delay"):
            JobTemplate(options=JobOptions(delay=SECOND))
        with pytest.raises(ConfigurationError, match="logical_time"):
            stage.schedulers.upsert("s", Schedule(every=SECOND, logical_time=True), JobTemplate(data=[1]))
        assert stage.client.keys("*schedulers*") == []


class TestFinished:
    """A service upserts its schedules each time it starts."""

    ONCE = Schedule(every=SECOND, limit=1)

    @pytest.mark.parametrize("more", [{}, {"logical_time": True}])
    def test_a_limit_holds_over_restarts(self, stage: Stage, more: dict[str, Any]) -> None:
        once = Schedule(every=SECOND, limit=1, **more)
        for start in (1_000_000, 1_100_000, 1_200_000):
            stage.clock.now = start
            entry = stage.schedulers.upsert("s", once)
            assert entry.finished == (start > 1_000_000)
            assert stage.tick(start + 1_000) == -1
            assert len(stage.jobs()) == 1
        (entry,) = stage.schedulers.list()
        assert (entry.finished, entry.iterations, entry.next_run) == (True, 1, None)
        assert stage.schedulers.get("s") == entry

    def test_an_end_that_has_passed_is_no_error(self, stage: Stage) -> None:
        over = Schedule(every=SECOND, end=datetime.fromtimestamp(900, UTC))
        for _ in range(2):
            entry = stage.schedulers.upsert("s", over)
            assert (entry.finished, entry.iterations) == (True, 0)
        assert stage.tick() == -1
        assert stage.jobs() == []

    def test_an_end_before_the_next_slot_is_no_error_either(self, stage: Stage) -> None:
        soon = Schedule(every=SECOND, end=datetime.fromtimestamp(1_000.5, UTC))
        assert stage.schedulers.upsert("s", soon).finished

    def test_a_higher_limit_goes_on(self, stage: Stage) -> None:
        stage.schedulers.upsert("s", self.ONCE)
        stage.tick(1_001_000)
        entry = stage.schedulers.upsert("s", Schedule(every=SECOND, limit=3))
        assert (entry.finished, entry.iterations) == (False, 1)
        stage.tick(1_002_000)
        stage.tick(1_003_000)
        assert len(stage.jobs()) == 3
        assert stage.schedulers.get("s").finished

    @pytest.mark.parametrize("forgets", [True, False])
    def test_another_schedule_starts_anew(self, stage: Stage, *, forgets: bool) -> None:
        stage.schedulers.upsert("s", self.ONCE)
        stage.tick(1_001_000)
        if forgets:
            assert stage.schedulers.remove("s")
            assert stage.client.keys("*schedulers*") == []
        again = self.ONCE if forgets else Schedule(every=2 * SECOND, limit=1)
        assert not stage.schedulers.upsert("s", again).finished
        stage.tick(1_009_000)
        assert len(stage.jobs()) == 2

    def test_the_command_line_says_so(self, stage: Stage, url: str) -> None:
        stage.schedulers.upsert("s", self.ONCE)
        stage.tick(1_001_000)
        shown = CliRunner().invoke(app, ["scheduler", "list", "--queue", "etl", "--url", url]).output
        assert shown.split()[-3:] == ["s", "finished", "1"]

    def test_finished_ones_are_forgotten_after_a_year(self, stage: Stage) -> None:
        for number in range(3):
            stage.schedulers.upsert(f"s{number}", self.ONCE)
        stage.tick(1_001_000)
        stage.clock.now += 367 * 86_400_000
        stage.schedulers.upsert("new", self.ONCE)
        stage.tick(stage.clock.now + 1_000)
        assert [entry.name for entry in stage.schedulers.list()] == ["new"]


class TestCatchingUp:
    @pytest.mark.parametrize(
        ("policy", "limit", "slots"),
        [
            (CatchUp.SKIP, 100, ["01"]),
            (CatchUp.LAST, 100, ["04"]),
            (CatchUp.ALL, 100, ["01", "02", "03", "04"]),
            (CatchUp.ALL, 2, ["03", "04"]),
        ],
    )
    @pytest.mark.parametrize("mode", [{"every": SECOND}, {"cron": "41-59 * * * * *"}])
    def test_missed_slots_are_run_as_asked(
        self, stage: Stage, policy: CatchUp, limit: int, slots: list[str], mode: dict[str, Any]
    ) -> None:
        schedule = Schedule(**mode, catch_up=policy, catch_up_limit=limit, logical_time=True)
        stage.schedulers.upsert("s", schedule, JobTemplate(data={"a": 1}))
        assert stage.tick(1_004_500) == 1_005_000
        data = [json.loads(job["data"]) for job in stage.jobs()]
        assert data == [{"a": 1, "logicalTime": f"1970-01-01T00:16:{40 + int(s)}.000Z"} for s in slots]
        assert stage.schedulers.get("s").iterations == len(slots)

    def test_a_limit_bounds_what_is_caught_up(self, stage: Stage) -> None:
        stage.schedulers.upsert("s", Schedule(every=SECOND, catch_up=CatchUp.ALL, limit=2))
        assert stage.tick(1_009_000) == -1
        assert len(stage.jobs()) == 2

    def test_a_slot_waits_for_the_job_of_the_last_one(self, stage: Stage) -> None:
        stage.schedulers.upsert("s", Schedule(every=SECOND, overlap=False))
        stage.tick(1_001_000)
        assert stage.tick(1_002_000) == 1_002_125
        assert len(stage.jobs()) == 1
        stage.end("1")
        assert stage.tick(1_002_300) == 1_003_000
        assert len(stage.jobs()) == 2


class TestRepeatAfterComplete:
    @pytest.mark.parametrize("state", ["completed", "failed"])
    def test_the_next_run_follows_the_end_of_the_last(self, stage: Stage, state: str) -> None:
        stage.schedulers.upsert("s", Schedule(repeat_after_complete=SECOND))
        assert stage.tick() == 1_000_020  # a short run must not wait for the next look
        (job,) = stage.jobs()
        assert (job["schedulerName"], stage.entry()["nextRun"]) == ("s", 0)
        assert stage.tick(1_000_080) == 1_000_100
        assert stage.tick(1_008_000) == 1_009_000
        stage.end("1", state, 1_010_000)
        assert stage.tick(1_010_100) == 1_011_000
        assert stage.tick(1_011_000) == 1_011_020
        assert len(stage.jobs()) == 2

    def test_it_goes_on_when_the_job_was_removed(self, stage: Stage) -> None:
        stage.schedulers.upsert("s", Schedule(repeat_after_complete=SECOND))
        stage.tick()
        stage.client.delete("glide:{etl}:job:1")
        assert stage.tick(1_005_000) == 1_006_000

    def test_it_goes_on_after_a_firing_by_node(self, stage: Stage) -> None:
        job = {"id": "7", "name": "s", "timestamp": "1000000", "schedulerName": "s", "state": "active"}
        stage.client.hset("glide:{etl}:job:7", mapping=job)
        stage.client.set("glide:{etl}:id", 9)
        text = '{"repeatAfterComplete":1000,"iterationCount":1,"lastRun":1000000,"nextRun":0}'
        stage.node_writes(text)
        assert stage.tick(1_004_000) == 1_004_500
        stage.end("7", "failed", 1_004_500)
        assert stage.tick(1_005_000) == 1_005_500
        stage.node_writes(text)
        stage.client.delete("glide:{etl}:job:7")
        assert stage.tick(1_006_000) == 1_007_000

    def test_an_upsert_during_a_run_starts_no_second_one(self, stage: Stage) -> None:
        stage.schedulers.upsert("s", Schedule(repeat_after_complete=SECOND))
        stage.tick()
        stage.schedulers.upsert("s", Schedule(repeat_after_complete=SECOND))
        assert stage.tick(1_005_000) == 1_005_625
        assert len(stage.jobs()) == 1


class TestCommandLine:
    def test_schedulers_are_listed_shown_and_removed(self, stage: Stage, url: str) -> None:
        stage.schedulers.upsert("nightly", Schedule(every=SECOND))
        run = CliRunner().invoke
        where = ["--queue", "etl", "--url", url]
        (row,) = json.loads(run(app, ["scheduler", "list", *where, "--json"]).stdout)
        assert (row["name"], row["schedule"], row["python_only"]) == ("nightly", {"every": 1000}, False)
        assert json.loads(run(app, ["scheduler", "show", "nightly", *where, "--json"]).stdout) == row
        assert "nightly" in run(app, ["scheduler", "list", *where]).stdout
        assert "iterations: 0" in run(app, ["scheduler", "show", "nightly", *where]).stdout
        assert run(app, ["scheduler", "remove", "nightly", *where]).exit_code == 0
        gone = run(app, ["scheduler", "remove", "nightly", *where])
        assert gone.exit_code == 1
