"""``glidemq queue`` and ``glidemq job`` against a real server."""

from __future__ import annotations

import itertools
import json
import os
import re
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from glidemq_orchestrate import (
    Backoff,
    Broadcast,
    FlowNode,
    FlowProducer,
    FlowSpec,
    JobOptions,
    JobState,
    JobTemplate,
    NewJob,
    Queue,
    Schedule,
)
from glidemq_orchestrate.attempts import workers
from glidemq_orchestrate.cli import app
from glidemq_orchestrate.clients.schedules import Schedules

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker


class Shell:
    """Types commands and keeps what they print."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, *words: str, code: int = 0, typed: str | None = None) -> str:
        done = CliRunner().invoke(app, [*words], env={"GLIDEMQ_URL": self.url}, input=typed)
        assert done.exit_code == code, done.output
        return done.output

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json"))


@pytest.fixture
def shell(url: str) -> Shell:
    return Shell(url)


def test_queues_are_listed_and_shown(shell: Shell, queue: Queue) -> None:
    assert shell.json("queue", "list") == []
    queue.add_many([NewJob("a"), NewJob("b", None, options=JobOptions(delay=timedelta(hours=1)))])
    (row,) = shell.json("queue", "list")
    assert (row["queue"], row["counts"]["waiting"], row["counts"]["delayed"]) == ("etl", 1, 1)
    shown = shell.json("queue", "show", "etl")
    assert (shown["paused"], shown["counts"]["waiting-children"], shown["workers"]) == (False, 0, [])
    assert "etl" in shell("queue", "list")
    assert "no limit" in shell("queue", "show", "etl")


def test_the_jobs_of_a_state_are_listed(shell: Shell, queue: Queue) -> None:
    queue.add_many([NewJob("clean"), NewJob("report")])
    assert [job["id"] for job in shell.json("queue", "jobs", "etl")] == ["1", "2"]
    assert [job["id"] for job in shell.json("queue", "jobs", "etl", "--name", "report")] == ["2"]
    assert "clean" in shell("queue", "jobs", "etl")
    assert shell.json("queue", "jobs", "etl", "--state", "failed") == []


def test_a_job_that_ran_shows_its_attempts(shell: Shell, queue: Queue, run_worker: RunWorker) -> None:
    def flaky(ctx: Any) -> None:
        if ctx.attempt == 1:
            raise ValueError("once")

    run_worker(["etl"], {"clean": lambda ctx: 1, "flaky": flaky}, url=shell.url)
    for name in ("clean", "flaky"):
        queue.add_and_wait(name, attempts=3, backoff=Backoff(delay=0.01), timeout=20)
    tries = {
        line.split()[1]: line.split()[3]
        for line in shell("queue", "jobs", "etl", "--state", "completed").splitlines()[1:]
    }
    assert tries == {"clean": "1/3", "flaky": "2/3"}


def test_a_worker_is_shown_with_its_places_and_memory(shell: Shell, run_worker: RunWorker) -> None:
    run_worker(["etl"], {"clean": lambda ctx: 1}, url=shell.url, concurrency=3)
    assert re.search(r"worker +\S+ \d+, 3 places, \d+ MiB: ", shell("queue", "show", "etl"))
    (worker,) = shell.json("queue", "show", "etl")["workers"]
    assert (worker["running"], worker["concurrency"], worker["memory"] > 2**20) == (0, 3, True)


def test_an_empty_queue_says_where_to_look(shell: Shell) -> None:
    assert "`glidemq queue list` shows" in shell("queue", "show", "elt")


def test_an_unknown_kind_of_event_is_answered_with_the_nearest(shell: Shell, queue: Queue) -> None:
    queue.add("clean")
    shown = shell("events", "--queue", "etl", "--from", "0-0", "--no-follow", "--kind", "complete")
    assert "writes 'complete' events; did you mean completed?" in shown


def test_schedules_are_listed_with_their_rules(shell: Shell) -> None:
    assert shell("scheduler", "list", "--queue", "etl") == "No schedules in queue etl.\n"
    with Schedules("etl", shell.url) as schedules:
        schedules.upsert(
            "nightly", Schedule(cron="30 2 * * *", time_zone="Europe/Berlin"), JobTemplate("clean")
        )
        schedules.upsert("often", Schedule(every=300), JobTemplate("report"))
    header, nightly, often = shell("scheduler", "list", "--queue", "etl").splitlines()
    assert header.split() == ["name", "schedule", "job", "next", "run", "runs"]
    assert "30 2 * * * (Europe/Berlin)" in nightly
    assert "every 5 min" in often
    assert "report" in often


def test_a_schedule_is_set_and_replaced(shell: Shell, redis_client: Any) -> None:
    words = ("scheduler", "set", "nightly", "--queue", "etl", "--job", "clean", "--data", '{"n": 1}')
    assert shell(*words, "--every", "5m").startswith("nightly: every 5 min, next run 2")
    row = shell.json(*words, "--cron", "0 2 * * *", "--time-zone", "Europe/Rome", "--attempts", "3")
    assert (row["job"], row["finished"], row["schedule"]["pattern"]) == ("clean", False, "0 2 * * *")
    assert [one["name"] for one in shell.json("scheduler", "list", "--queue", "etl")] == ["nightly"]
    assert "exactly one of every, cron" in shell(*words, code=2)
    assert "--data is not valid JSON" in shell(
        "scheduler", "set", "x", "-q", "etl", "--every", "5", "--data", "{", code=2
    )


COMPLETIONS = {
    "glidemq flow show n": ["nightly-1", "nightly-2"],
    "glidemq flow rerun nightly-1 ": ["clean", "load"],
    "glidemq queue show e": ["etl"],
    "glidemq scheduler list --queue ": ["etl"],
}


@pytest.mark.parametrize("line", COMPLETIONS)
def test_a_shell_completes_flow_ids_nodes_and_queues(url: str, flows: FlowProducer, line: str) -> None:
    for number in (1, 2):
        nodes = [FlowNode(name, queue="etl") for name in ("load", "clean")]
        flows.submit(FlowSpec("nightly", nodes), flow_id=f"nightly-{number}")
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_GLIDEMQ_COMPLETE": "complete_bash"}
    done = CliRunner().invoke(app, prog_name="glidemq", env={**words, "GLIDEMQ_URL": url})
    assert done.stdout.split() == COMPLETIONS[line]


def test_a_shell_completes_nothing_without_a_server() -> None:
    words = {"COMP_WORDS": "glidemq flow show ", "COMP_CWORD": "3", "_GLIDEMQ_COMPLETE": "complete_bash"}
    done = CliRunner().invoke(app, prog_name="glidemq", env={**words, "GLIDEMQ_URL": "valkey://127.0.0.1:1"})
    assert done.output.strip() == ""


def test_a_queue_is_paused_and_resumed(shell: Shell, queue: Queue) -> None:
    shell("queue", "pause", "etl")
    assert queue.is_paused()
    shell("queue", "resume", "etl")
    assert not queue.is_paused()


def test_nothing_is_deleted_without_a_yes(shell: Shell, queue: Queue) -> None:
    queue.add("a")
    for words in (("drain",), ("clean",), ("obliterate",)):
        shell("queue", *words, "etl", code=1, typed="n\n")
    assert len(queue.search()) == 1
    assert "1 job deleted" in shell("queue", "drain", "etl", typed="y\n")


def test_a_queue_is_drained_cleaned_retried_and_obliterated(shell: Shell, queue: Queue, url: str) -> None:
    queue.add_many(
        [NewJob("a"), NewJob("b", None, options=JobOptions(delay=timedelta(hours=1))), NewJob("c")]
    )
    queue.revoke("3")
    assert shell.json("queue", "drain", "etl", "--delayed", "--yes") == {"deleted": 2}
    assert shell.json("queue", "retry", "etl") == {"retried": 1}
    queue.revoke("3")
    assert shell.json("queue", "clean", "etl", "--state", "failed", "--older", "3600", "--yes") == {
        "deleted": 0
    }
    assert shell.json("queue", "clean", "etl", "--state", "failed", "--yes") == {"deleted": 1}
    shell("queue", "clean", "etl", "--state", "waiting", "--yes", code=2)
    shell("queue", "obliterate", "etl", "--yes")
    assert shell.json("queue", "list") == []


def store_failures(client: Any, reasons: dict[str, str]) -> None:
    for at, (job_id, reason) in enumerate(reasons.items(), 1_000):
        fields = {"id": job_id, "name": "work", "state": "failed", "failedReason": reason, "finishedOn": at}
        client.hset(f"glide:{{etl}}:job:{job_id}", mapping=fields)
        client.zadd("glide:{etl}:failed", {job_id: at})


def test_failures_are_shown_retried_and_deleted_by_group(
    shell: Shell, queue: Queue, redis_client: Any
) -> None:
    assert shell.json("queue", "failures", "etl") == []
    store_failures(
        redis_client, {"1": "KeyError: a", "2": "KeyError: b", "3": "disk full\nat x", "4": "no net"}
    )
    first, *_ = rows = shell.json("queue", "failures", "etl")
    assert [(row["group"], row["count"]) for row in rows] == [
        ("KeyError", 2),
        ("disk full", 1),
        ("no net", 1),
    ]
    assert (first["held_back"], first["nodes"], first["samples"][0]["job_id"]) == (0, 0, "2")
    lines = shell("queue", "failures", "etl", "--limit", "2").splitlines()
    assert lines[0].split("  ")[0] == "group"
    assert [line.split("  ")[0] for line in lines[1:3]] == ["KeyError", "disk full"]
    assert lines[2].rstrip().endswith("disk full at x")
    assert lines[3] == "1 more groups; --limit shows more"
    shell("queue", "retry", "etl", "--group", "KeyError", "--limit", "0", code=2)
    assert queue.get_job("1").state is JobState.FAILED
    assert shell.json("queue", "retry", "etl", "--group", "KeyError", "--limit", "1") == {"retried": 1}
    assert queue.get_job("1").state is JobState.WAITING
    refused = shell("queue", "clean", "etl", "--group", "disk full", "--state", "completed", "--yes", code=2)
    assert "only failed jobs have a group" in refused
    words = ("queue", "clean", "etl", "--group", "disk full", "--state", "failed", "--yes")
    assert shell.json(*words) == {"deleted": 1}
    assert queue.states(["2", "3", "4"]) == ["failed", None, "failed"]
    shell("queue", "clean", "etl", "--group", "no net", code=1, typed="n\n")
    assert queue.states(["4"]) == ["failed"]


def test_an_unknown_group_of_failures_is_answered_with_the_nearest(
    shell: Shell, queue: Queue, redis_client: Any
) -> None:
    store_failures(redis_client, {"1": "KeyError: a"})
    for words in (("retry",), ("clean", "--yes")):
        said = shell("queue", words[0], "etl", "--group", "KeyErorr", *words[1:])
        assert said.startswith("0 jobs ")
        assert "Queue etl has no failure in group KeyErorr" in said
        assert "KeyError" in said.replace("KeyErorr", "")


def test_the_failed_nodes_of_a_flow_are_shown_and_retried_by_group(
    shell: Shell, flows: FlowProducer, run_worker: RunWorker
) -> None:
    is_mended = False

    def work(ctx: Any) -> None:
        if ctx.node == "a" and not is_mended:
            ctx.fail("no space left", group="disk")

    run_worker(["etl"], {"work": work}, url=shell.url)
    spec = FlowSpec("n", [FlowNode("a", job="work"), FlowNode("b", job="work", after=["a"])], queue="etl")
    flow = flows.submit(spec, flow_id="f")
    flow.wait(timeout=20)
    (row,) = shell.json("flow", "failures", "f")
    assert (row["group"], row["count"], row["held_back"]) == ("disk", 1, 1)
    assert "f/a" in shell("flow", "failures", "f")
    said = shell("queue", "retry", "etl", "--group", "disk")
    assert "nodes of flows: glidemq flow retry FLOW_ID --group" in said
    assert "no failure in group net" in shell("flow", "retry", "f", "--group", "net", "--no-wait")
    is_mended = True
    assert "a" in shell("flow", "retry", "f", "--group", "disk")
    assert flow.status().completed == 2
    assert shell.json("flow", "failures", "f") == []


def test_jobs_are_tagged_and_listed_by_tag(shell: Shell, queue: Queue) -> None:
    assert shell.json("queue", "tags", "etl") == []
    first = shell("job", "add", "etl", "clean", "--tag", "x", "--tag", "y").strip()
    second = queue.add("report")
    assert shell("job", "tag", "etl", second, "x") == "x\n"
    assert shell.json("queue", "tags", "etl") == [{"tag": "x", "count": 2}, {"tag": "y", "count": 1}]
    assert [line.split() for line in shell("queue", "tags", "etl").splitlines()[1:]] == [
        ["x", "2"],
        ["y", "1"],
    ]
    assert [job["id"] for job in shell.json("queue", "jobs", "etl", "--tag", "x")] == [first, second]
    assert "1 of 2 jobs" in shell("queue", "jobs", "etl", "--tag", "x", "--limit", "1")
    assert shell.json("job", "show", "etl", first)["tags"] == ["x", "y"]
    assert "tags" not in shell("job", "show", "etl", queue.add("plain"))
    assert shell.json("job", "untag", "etl", first, "x") == ["y"]
    assert shell("job", "untag", "etl", second, "x") == "no tags\n"
    assert "No job" in shell("job", "tag", "etl", "99", "x", code=1).replace("no job", "No job")


def test_tracked_jobs_and_flows_are_shown_and_untracked(
    shell: Shell, queue: Queue, flows: FlowProducer
) -> None:
    job_id, gone = queue.add("clean"), queue.add("clean")
    flows.submit(FlowSpec("n", [FlowNode("a")], queue="etl"), flow_id="f")
    lines = shell("track", "etl", job_id, gone, "--flow", "f", "--no-follow").splitlines()
    assert sorted(line.split("  ")[1:] for line in lines) == [
        ["flow", "f", "running", "0/1 nodes ended"],
        ["job", job_id, "waiting"],
        ["job", gone, "waiting"],
    ]
    queue.remove(gone)
    rows = [json.loads(line) for line in shell("track", "etl", "--no-follow", "--json").splitlines()]
    states = {row["id"]: (row["state"], row["job"] and row["job"]["name"]) for row in rows}
    assert states == {job_id: ("waiting", "clean"), gone: (None, None), "f": ("running", None)}
    assert shell("track", "etl", job_id, gone, "--off").split()[1:4] == ["flow", "f", "running"]
    assert shell("track", "etl", "--flow", "f", "--off") == ""
    queue.track(job_id)
    said = shell("track", "etl", job_id, gone, "99", "--off", code=1)
    assert said == f"JobNotFound: queue etl did not track job {gone}, 99\n"
    assert queue.tracked() == []
    assert "queue etl did not track flow f" in shell("track", "etl", "--flow", "f", "--off", code=1)
    assert "glidemq track etl --flow f" in shell("track", "spark", "--flow", "f", code=2)
    assert "no job 99" in shell("track", "etl", "99", code=1)
    shell("track", "etl", "--off", code=2)


def test_changes_of_tracked_jobs_are_followed(
    shell: Shell, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = queue.add("clean")
    every = Queue.watch_tracked

    def some(self: Queue) -> Any:
        changes = every(self)
        yield next(changes)
        queue.set_progress(job_id, 50)
        yield next(changes)
        queue.remove(job_id)
        yield next(changes)

    monkeypatch.setattr(Queue, "watch_tracked", some)
    lines = [line.split("  ")[1:] for line in shell("track", "etl", job_id).splitlines()]
    start = ["job", job_id]
    assert lines == [
        [*start, "waiting"],
        [*start, "waiting", "changed", "progress 50"],
        [*start, "removed"],
    ]


def test_dependencies_are_changed_and_respected_by_a_cancel(shell: Shell, queue: Queue) -> None:
    a, b, c = (queue.add("work") for _ in range(3))
    assert shell("job", "depends", "etl", c, "--on", a, "--on", b, "--on", "99", code=1) == (
        f"changed: {a}, {b}\nunknown: 99\nJobNotFound: no job 99 in queue etl\n"
    )
    changed = {"changed": [a], "ended": [], "unknown": []}
    assert shell.json("job", "depends", "etl", c, "--off", a) == changed
    said = shell("job", "depends", "etl", c, "--off", a, code=1)
    assert said == f"unknown: {a}\nJobNotFound: job {c} of queue etl does not wait for {a}\n"
    assert "HasDependents" in shell("job", "cancel", "etl", b, code=1)
    cancelled = {"cancelled": [c, b], "stopping": [], "ended": [], "unknown": []}
    assert shell.json("job", "cancel", "etl", b, "--cascade") == cancelled
    assert "job 1 cannot wait for itself" in shell("job", "depends", "etl", a, "--on", a, code=1)
    assert shell("job", "cancel", "etl", a, b, "99", code=1) == (
        f"cancelled: {a}\nended: {b}\nunknown: 99\nJobNotFound: no job 99 in queue etl\n"
    )
    shell("job", "depends", "etl", a, code=2)
    shell("job", "depends", "etl", a, "--on", b, "--off-all", code=2)


def test_a_job_is_added_and_shown(shell: Shell, queue: Queue) -> None:
    words = ("job", "add", "etl", "clean", "--data", '{"month":1}', "--priority", "3", "--id", "own")
    assert shell(*words).strip() == "own"
    queue.add_log("own", "one line")
    shown = shell.json("job", "show", "etl", "own")
    assert (shown["data"], shown["priority"], shown["state"]) == ({"month": 1}, 3, "prioritized")
    assert (shown["logs"], shown["delay"]) == (["one line"], 0)
    assert '{"month": 1}' in shell("job", "show", "etl", "own")


def clean(_ctx: Any) -> None: ...


def other_clean(_ctx: Any) -> None: ...


def code_in(shown: str) -> str:
    """The code in what is shown of a job, in one line."""
    lines = itertools.dropwhile(lambda line: line.split()[:1] != ["code"], shown.splitlines())
    first, rest = next(lines), itertools.takewhile(lambda line: line[:1] == " ", lines)
    return " ".join(" ".join([first.removeprefix("code"), *rest]).split())


def test_a_job_is_shown_with_the_code_of_its_handler(
    shell: Shell, queue: Queue, run_worker: RunWorker, redis_client: Any
) -> None:
    words = ("job", "show", "etl", queue.add("clean", delay=60))
    unserved = "no worker that serves this handler is there now"
    assert code_in(shell(*words)) == unserved
    named = ("job", "show", "etl", queue.add("python", {"callable": "steps:load"}, delay=60))
    assert code_in(shell(*named)) == f"steps:load {unserved}"
    run_worker(["etl"], {"clean": clean})
    run_worker(["etl"], {"clean": clean})
    place = f"{__name__}:clean (tests/server/cli/test_queue.py:{clean.__code__.co_firstlineno})"
    assert code_in(shell(*words)) == place
    run_worker(["etl"], {"clean": other_clean})
    shown = shell.json(*words)
    assert (shown["code"], shown["handler"]["served_by"]) == ("", 3)
    first, second = shown["handler"]["code"]
    ids = [one["id"] for one in (*first["workers"], *second["workers"])]
    assert ids == [one.id for one in queue.workers()]
    where = f"{first['workers'][0]['host']} {os.getpid()}"
    other = f"{__name__}:other_clean ({second['file']})"
    assert code_in(shell(*words)) == (
        f"{place}, source {first['digest']}, on {where}, {where} "
        f"{other}, source {second['digest']}, on {where}"
    )
    redis_client.set("glide:{etl}:gmo:workers", "no set")
    assert shell.json(*words)["handler"] is None


def test_a_job_is_shown_with_its_traceback_and_why_it_waits(
    shell: Shell, queue: Queue, run_worker: RunWorker, eventually: Eventually, redis_client: Any
) -> None:
    def fails(_ctx: Any) -> None:
        raise ValueError("no such month")

    hour = Backoff("fixed", timedelta(hours=1))
    job_id = queue.add("fails", options=JobOptions(attempts=2, backoff=hour))
    assert "no live worker serves queue etl" in shell("job", "show", "etl", job_id)
    run_worker(["etl"], {"fails": fails})
    eventually(lambda: queue.get_job(job_id).state == "delayed", 20)
    lines = [" ".join(line.split()) for line in shell("job", "show", "etl", job_id).splitlines()]
    assert "ValueError: no such month" in lines
    assert any(line.startswith("waits until ") for line in lines)
    row = shell.json("job", "show", "etl", job_id)
    assert row["wait"]["reason"] == "for its next attempt (attempt 1 of 2 failed: ValueError: no such month)"
    redis_client.hset(f"glide:{{etl}}:job:{job_id}", "data", "{not JSON")
    row = shell.json("job", "show", "etl", job_id)
    assert (row["broken"], row["data"], row["failed_reason"]) == (True, None, "ValueError: no such month")


def test_a_job_is_promoted_revoked_retried_and_removed(shell: Shell, queue: Queue) -> None:
    job_id = shell("job", "add", "etl", "clean", "--delay", "60").strip()
    shell("job", "promote", "etl", job_id)
    assert queue.get_job(job_id).state == JobState.WAITING
    assert "has failed" in shell("job", "revoke", "etl", job_id)
    shell("job", "retry", "etl", job_id)
    assert queue.get_job(job_id).state == JobState.WAITING
    shell("job", "remove", "etl", job_id)
    assert "no job" in shell("job", "show", "etl", job_id, code=1)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("add", "etl", "clean", "--data", "{"), "--data is not valid JSON"),
        (("add", "etl", "clean", "--priority", "5000"), "priority"),
        (("add", "a:b", "clean"), "queue name"),
    ],
)
def test_invalid_values_are_refused_with_code_2(shell: Shell, words: tuple[str, ...], expected: str) -> None:
    assert expected in shell("job", *words, code=2)


def test_a_worker_is_shown_with_the_jobs_that_it_holds(
    shell: Shell,
    queue: Queue,
    run_worker: RunWorker,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    release = threading.Event()
    run_worker(["etl"], {"work": lambda ctx: release.wait(30)}, url=shell.url, concurrency=4)
    assert shell("queue", "show", "etl").rstrip().endswith(": no job")
    for _ in range(3):
        queue.add("work")
    eventually(lambda: shell("queue", "show", "etl").rstrip().endswith(": 3 jobs"), timeout=10)
    (held,) = shell.json("queue", "show", "etl")["held"].values()
    assert held == {"jobs": 3, "stalled": 0, "stalled_since": None}
    monkeypatch.setattr("glidemq_orchestrate.cli.holders.MAX_HELD", 2)
    assert shell("queue", "show", "etl").rstrip().endswith(": at least 2 jobs")
    release.set()


def test_workers_whose_jobs_do_not_name_them_are_shown_with_their_numbers(
    shell: Shell, url: str, redis_client: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node's workers register how many jobs they run; those of broadcasts hold messages."""
    stream = "glide:{etl}:stream"
    redis_client.xgroup_create(stream, "workers", "0", mkstream=True)
    redis_client.xgroup_createconsumer(stream, "workers", "node-1")
    about = {"addr": "h", "pid": 7, "startedAt": 1_700_000_000_000, "activeJobs": 2}
    redis_client.set("glide:{etl}:w:node-1", json.dumps(about))
    assert shell("queue", "show", "etl").rstrip().endswith("h 7: 2 jobs")
    with Broadcast("news", url) as news:
        news.publish("order.paid", {"order": 7})
    redis_client.xgroup_create("glide:{news}:stream", "billing", id="0")
    assert redis_client.xreadgroup("billing", "gmo-broadcast-lost", {"glide:{news}:stream": ">"})
    monkeypatch.setattr(workers, "LOST_MS", 50)
    eventually(lambda: shell("queue", "show", "news").rstrip().endswith("gmo-broadcast-lost: 1 job"), 10)
