"""The checker sees every kind of broken promise: each is put where all is well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from glidemq_orchestrate.lifeline.guard import processes
from glidemq_orchestrate.testing.chaos.ledger import Ledger, LedgerEntry
from tests.chaos.book import NS_IN_MS, RoundBook
from tests.chaos.bridged_flows import QUEUE
from tests.chaos.bridged_steps import DEAD_LETTER
from tests.chaos.campaign import has_settled, undisturbed
from tests.chaos.checker import Checker
from tests.chaos.children import Children
from tests.chaos.leftovers import leftovers
from tests.chaos.model import ends
from tests.chaos.plan import FlowPlan, Plain, Plan, Step, has_history
from tests.chaos.round import Round
from tests.chaos.size import Size
from tests.chaos.unfenced import RETURNED, Unfenced
from tests.processes import spawned

Entries = list[LedgerEntry]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Round]:
    """A round in which nothing goes wrong."""
    size = Size(flows=25, seconds=4, widest=15, bridged=0.2, arrays=0)
    with undisturbed(322, tmp_path_factory.mktemp("round"), size) as done:
        yield done


def problems(played: Round, entries: Entries, plan: Plan | None = None) -> list[str]:
    found = [*Checker(played.world.url, plan or played.world.plan, entries).violations()]
    return [*found, *leftovers(played.servers[0].client, played.world.plan.all_queues)]


def of_kind(entries: Entries, kind: str) -> Entries:
    return [entry for entry in entries if entry["kind"] == kind]


def by_node(begin: LedgerEntry) -> LedgerEntry:
    """The begin of a run of a Node worker, which has no number."""
    return {name: value for name, value in begin.items() if name != "epoch"}


def accepted_with_inputs(entries: Entries) -> tuple[LedgerEntry, LedgerEntry]:
    """A node not behind the bridge that got a result and has completed, and the run that made that result."""
    steered = {entry["flow"] for entry in of_kind(entries, "steered")}
    completed = {entry["run"] for entry in of_kind(entries, "completed") if entry["flow"] not in steered}
    begins = {entry["run"]: entry for entry in of_kind(entries, "begin")}
    ours = [run for run in completed if run in begins and begins[run]["queue"] != QUEUE]
    node = next(begins[run] for run in sorted(ours) if begins[run]["inputs"])
    return node, begins[next(iter(node["inputs"].values()))]


@pytest.mark.long
def test_nothing_is_found_where_nothing_went_wrong(played: Round) -> None:
    assert problems(played, played.entries) == []
    assert played.surprises == []


def doubled(entries: Entries) -> None:
    entries.append(of_kind(entries, "begin")[0])


def accepted_twice(entries: Entries) -> None:
    steered = {entry["flow"] for entry in of_kind(entries, "steered")}
    entries += [one for one in of_kind(entries, "completed") if one["flow"] and one["flow"] not in steered][
        :1
    ] * 2


def plain_accepted_twice(entries: Entries) -> None:
    entries += [entry for entry in of_kind(entries, "completed") if "-p" in entry["job"]][:1]


def too_early(entries: Entries) -> None:
    node, dependency = accepted_with_inputs(entries)
    end = next(entry for entry in of_kind(entries, "end") if entry["run"] == dependency["run"])
    end["at"] = node["at"] + 1


def of_another_run(entries: Entries) -> None:
    node, _ = accepted_with_inputs(entries)
    node["inputs"] = dict.fromkeys(node["inputs"], "another:run")


def without_a_result(entries: Entries) -> None:
    accepted_with_inputs(entries)[0]["inputs"] = {}


def from_nowhere(entries: Entries) -> None:
    entries.remove(accepted_with_inputs(entries)[0])


def twice_in_a_slot(entries: Entries) -> None:
    begin = next(entry for entry in of_kind(entries, "begin") if entry["slot"])
    entries.append(begin | {"run": "another"})
    entries.append(begin | {"run": "another", "kind": "completed"})


def taken_over(entries: Entries) -> None:
    done = next(entry for entry in of_kind(entries, "completed") if "-p" in entry["job"])
    begin = next(entry for entry in of_kind(entries, "begin") if entry["run"] == done["run"])
    later = {"activated": begin["activated"] + 10_000, "at": begin["at"] + 10_000 * NS_IN_MS}
    entries.append(begin | {"run": "another"} | later)
    if "epoch" in begin:
        entries[-1]["epoch"] += 1


def activated_twice_by_one_number(entries: Entries) -> None:
    begin = next(entry for entry in of_kind(entries, "begin") if "epoch" in entry)
    entries.append(begin | {"run": "another"})


def test_a_run_that_has_waited_for_its_job_is_not_taken_for_an_earlier_one() -> None:
    def begin(run: str, asked_ms: int, begun_ms: int) -> LedgerEntry:
        about = {"kind": "begin", "queue": "etl", "job": "j", "run": run, "slot": None}
        return about | {"activated": asked_ms, "at": begun_ms * NS_IN_MS}

    # The second asked before the first was given the job, and the server was frozen meanwhile.
    book = RoundBook([begin("1", 9_000, 9_001), begin("2", 5_000, 13_000), begin("3", 15_000, 15_001)])
    assert [book.successors(run) for run in "123"] == [["3"], ["3"], []]
    book = RoundBook([begin("1", 9, 9) | {"epoch": 7}, begin("2", 9, 9) | {"epoch": 8}])
    assert [book.successors(run) for run in "12"] == [["2"], []]


@pytest.mark.long
def test_only_of_an_unfenced_job_a_dependent_may_have_another_result(played: Round) -> None:
    entries = [dict(entry) for entry in played.entries]
    node, begin = accepted_with_inputs(entries)
    node["inputs"] = {name: "another" if run == begin["run"] else run for name, run in node["inputs"].items()}
    end = next(entry for entry in of_kind(entries, "end") if entry["run"] == begin["run"])
    entries.append(end | {"run": "another"})
    assert any("is not the accepted one" in problem for problem in problems(played, entries))
    report = end | {"run": "another", "kind": "reporting"}
    assert problems(played, [*entries, report]) == []
    assert problems(played, [*entries, report, report | {"kind": "reported", "late": True}]) == []
    in_time = [*entries, report, report | {"kind": "reported", "late": False}]
    assert any("is not the accepted one" in problem for problem in problems(played, in_time))
    assert problems(played, [*in_time, by_node(begin) | {"run": "stray", "was": "completed"}]) == []
    assert problems(played, [*entries, by_node(node) | {"run": "stray", "was": "waiting-children"}]) == []


def stored(played: Round, wanted: Callable[[Step], bool]) -> str:
    """The key of the job of a node of a flow that nobody has steered."""
    flows = [flow for flow in played.world.plan.flows if flow.action == "none"]
    flow, step = next(
        (flow, step) for flow in flows for step in flow.steps if not step.after and wanted(step)
    )
    return f"glide:{{{step.queue}}}:job:{flow.flow_id}~{step.name}"


@pytest.mark.long
def test_a_message_that_is_lost_and_one_that_counts_for_no_attempt(played: Round) -> None:
    job = stored(played, lambda step: bool(step.says) and step.ends == "complete")
    client, messages = played.servers[0].client, job.replace(":job:", ":gmo:messages:")
    kept, accepted = f"{messages}-kept", client.hget(job, "gmo:accepted")
    client.copy(messages, kept)
    client.persist(messages)
    assert any("does not expire" in problem for problem in problems(played, played.entries))
    client.xdel(messages, client.xrevrange(messages, count=1)[0][0])
    assert any("were written" in problem for problem in problems(played, played.entries))
    client.copy(kept, messages, replace=True)
    client.delete(kept)
    client.hdel(job, "gmo:accepted")
    assert any("0 messages of None are there" in problem for problem in problems(played, played.entries))
    client.hset(job, "gmo:accepted", accepted)
    assert problems(played, played.entries) == []


@pytest.mark.long
def test_a_check_whose_result_is_not_shown(played: Round) -> None:
    job = stored(played, lambda step: step.ends == "refuse")
    client = played.servers[0].client
    progress = client.hget(job, "progress")
    client.hdel(job, "progress")
    assert any("its progress is None" in problem for problem in problems(played, played.entries))
    client.hset(job, "progress", progress)


def test_what_a_node_worker_has_reported_too_late_may_be_the_end_of_a_job() -> None:
    entry = {"queue": "etl", "job": "j", "at": 5}
    begins = [entry | {"run": "1", "at": 3, "was": "waiting"}]
    late = [
        entry | {"run": "1", "kind": "reporting", "error": "RuntimeError"},
        entry | {"run": "1", "kind": "reported", "error": "RuntimeError", "late": True},
        entry | {"run": "2", "kind": "reporting", "error": RETURNED, "at": 4},
    ]
    unfenced = Unfenced(begins, late)
    assert unfenced.ends(("etl", "j")) == {"failed"}
    assert list(unfenced.items()) == [(("etl", "j"), 4)]
    step = Step("n", "etl")
    assert ends([step]) == {"n": {"completed"}}
    assert ends([step], unfenced={"n": unfenced.ends(("etl", "j"))}) == {"n": {"completed", "failed"}}
    assert ("etl", "other") not in unfenced
    assert unfenced.ends(("etl", "other")) == frozenset()


@pytest.mark.parametrize(("error", "ends_as"), [("", {"completed"}), (RETURNED, set())])
def test_what_a_node_worker_ends_of_an_ended_job_is_not_due(error: str, ends_as: set[str]) -> None:
    entry = {"queue": "etl", "job": "j", "at": 5, "run": "1", "error": error, "was": "ended"}
    unfenced = Unfenced([], [entry | {"kind": "reporting"}, entry | {"kind": "reported", "late": False}])
    assert list(unfenced.items()) == [(("etl", "j"), 5)]
    assert unfenced.ends(("etl", "j")) == ends_as


def ended_otherwise(entries: Entries) -> None:
    for entry in of_kind(entries, "waited"):
        entry["state"] = "cancelled"


def behind_the_bridge(entries: Entries) -> tuple[LedgerEntry, LedgerEntry]:
    """The begin of an accepted run behind the bridge that got a result, and the entry of its bridge."""
    completed = {entry["run"] for entry in of_kind(entries, "completed")}
    begins = {entry["remote"]: entry for entry in of_kind(entries, "remote-begin") if entry["inputs"]}
    return next(
        (begins[add["remote"]], add)
        for add in of_kind(entries, "remote-add")
        if add["run"] in completed and add["remote"] in begins
    )


def of_no_run_there(entries: Entries) -> None:
    entries.remove(behind_the_bridge(entries)[0])


def another_value_there(entries: Entries) -> None:
    run = behind_the_bridge(entries)[0]["run"]
    next(entry for entry in of_kind(entries, "remote-end") if entry["run"] == run)["value"] += 1


def other_inputs_there(entries: Entries) -> None:
    begin, _ = behind_the_bridge(entries)
    begin["inputs"] = dict.fromkeys(begin["inputs"], "another:run")


def too_early_there(entries: Entries) -> None:
    begin, _ = behind_the_bridge(entries)
    given = next(iter(begin["inputs"].values()))
    begin["at"] = next(entry for entry in of_kind(entries, "end") if entry["run"] == given)["at"] - 1


def another_awaited(entries: Entries) -> None:
    add = behind_the_bridge(entries)[1]
    add["remote"] += "7"


def taken_over_there(entries: Entries) -> None:
    begin, _ = behind_the_bridge(entries)
    entries.append(begin | {"run": "another", "delivery": begin["delivery"] + 1})


def added_twice(entries: Entries) -> None:
    steered = {entry["flow"] for entry in of_kind(entries, "steered")}
    begins = {entry["run"]: entry for entry in of_kind(entries, "begin")}
    add = next(
        entry for entry in of_kind(entries, "remote-add") if begins[entry["run"]]["flow"] not in steered
    )
    begin = begins[add["run"]]
    entries.append(begin | {"run": "another", "epoch": begin["epoch"] - 1})
    entries.append(add | {"run": "another", "remote": "gmo:another"})


def vanished(entries: Entries) -> None:
    ended_by(entries, "RemoteVanished")


def a_dead_letter(entries: Entries) -> None:
    ended_by(entries, DEAD_LETTER)
    entries.append({"kind": "fault", "fault": "kill_chasqui_worker", "at": entries[-1]["at"] - 1})


def ended_by(entries: Entries, error: str) -> None:
    add = of_kind(entries, "remote-add")[0]
    begin = next(entry for entry in of_kind(entries, "begin") if entry["run"] == add["run"])
    entries.append(add | {"run": "another", "at": begin["at"] + 1})
    entries.append(begin | {"run": "another", "epoch": begin["epoch"] + 1})
    entries.append(begin | {"kind": "end", "run": "another", "error": error, "at": begin["at"] + 2})


def recorded(entries: Entries) -> LedgerEntry:
    """The begin of an attempt behind the bridge at a job that records its history, of a flow left alone."""
    steered = {entry["flow"] for entry in of_kind(entries, "steered")}
    begins = [entry for entry in of_kind(entries, "begin") if entry["queue"] == QUEUE]
    return next(one for one in begins if one["flow"] not in steered and has_history(one["job"]))


def started_at_another_time(entries: Entries) -> None:
    recorded(entries)["activated"] += 1


def retried_once_more(entries: Entries) -> None:
    entries += [recorded(entries) | {"kind": "retrying"} for _ in range(9)]


def taken_back(entries: Entries) -> None:
    entries.append(recorded(entries) | {"kind": "taken-back"})


@pytest.mark.long
def test_a_ledger_that_shows_a_broken_promise(played: Round) -> None:
    for change, said in [
        (doubled, "ran twice"),
        (accepted_twice, "accepted 3 times"),
        (plain_accepted_twice, ": accepted 2 times"),
        (too_early, "began before"),
        (of_another_run, "is not the accepted one"),
        (without_a_result, "has completed"),
        (from_nowhere, "which no run has written"),
        (twice_in_a_slot, "was fired 2 times"),
        (taken_over, "had taken the job over"),
        (activated_twice_by_one_number, "two activations of the same number"),
        (ended_otherwise, "ended as cancelled"),
        (of_no_run_there, "no run behind the bridge has written"),
        (another_value_there, "no run behind the bridge has written"),
        (other_inputs_there, "and the bridge had"),
        (too_early_there, "began before"),
        (another_awaited, "and the bridge waited for"),
        (another_awaited, "and no bridge has added it"),
        (taken_over_there, "had taken the job over"),
        (added_twice, "was added for the attempt that has"),
        (vanished, "is gone from the queue of ChasquiMQ"),
        (a_dead_letter, "and 1 faults may have taken it"),
        (started_at_another_time, "does not show that"),
        (retried_once_more, "times 'retrying', and there were"),
        (taken_back, "has 0 times 'taken-back', and there were 1"),
    ]:
        entries = [dict(entry) for entry in played.entries]
        change(entries)
        assert any(said in problem for problem in problems(played, entries)), said


def mended_ones(played: Round) -> list[FlowPlan]:
    return [flow for flow in played.world.plan.flows if flow.mended]


@pytest.mark.long
def test_a_result_that_is_carried_over_though_its_node_has_changed(played: Round) -> None:
    plan = played.world.plan

    def seen(flow: FlowPlan) -> list[str]:
        changed = tuple(replace(step, edition=7) for step in flow.mended)
        other = replace(plan, flows=(replace(flow, mended=changed),), by_id={})
        return [
            problem for problem in problems(played, played.entries, other) if "does not do the" in problem
        ]

    assert any(map(seen, mended_ones(played)))


@pytest.mark.long
def test_a_result_that_is_kept_though_its_node_was_to_run_anew(
    played: Round, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert any(flow.action == "anew" and len(flow.steps) > 3 for flow in played.world.plan.flows)
    monkeypatch.setattr(FlowPlan, "again", property(lambda flow: flow.steps[0].name))
    assert any("does not do the same" in problem for problem in problems(played, played.entries))


@pytest.mark.long
def test_a_node_that_runs_again_though_its_result_should_be_carried_over(played: Round) -> None:
    entries = [dict(entry) for entry in played.entries]
    # What only Node workers have completed is not certain to be accepted: as if ours had.
    entries += [entry | {"kind": "completed"} for entry in of_kind(entries, "reported") if not entry["error"]]
    flows = {flow.flow_id for flow in mended_ones(played) if flow.waits}
    for begin in of_kind(entries, "begin"):
        flow_id, _, name = begin["job"].partition("~")
        if flow_id in flows:
            begin["job"] = f"{flow_id}:1:another~{name}"
    assert any("and ran again" in problem for problem in problems(played, entries))


@pytest.mark.long
def test_a_generation_that_is_lost(played: Round) -> None:
    flow = next(flow for flow in played.world.plan.flows if flow.action == "none")
    plan = replace(played.world.plan, flows=(replace(flow, action="restart"),), by_id={})
    steered = LedgerEntry(kind="steered", flow=flow.flow_id, state="running", at=0)
    assert any(
        "generation 1 was begun" in problem for problem in problems(played, [*played.entries, steered], plan)
    )


@pytest.mark.long
def test_a_node_that_ran_although_it_was_skipped_by_hand(played: Round) -> None:
    flow = next(flow for flow in played.world.plan.flows if flow.action == "none" and len(flow.by_hand) > 1)
    plan = replace(played.world.plan, flows=(replace(flow, action="skip"),), by_id={})
    steered = LedgerEntry(kind="steered", flow=flow.flow_id, state="skipped", at=0)
    assert any("allowed: ['skipped']" in one for one in problems(played, [*played.entries, steered], plan))
    refused = steered | {"state": "refused"}
    assert not any("allowed:" in one for one in problems(played, [*played.entries, refused], plan))


@pytest.mark.long
def test_a_flow_or_a_job_that_is_lost(played: Round) -> None:
    entries = [dict(entry) for entry in played.entries]
    entries += [
        of_kind(entries, "submitted")[0] | {"flow": "lost"},
        of_kind(entries, "added")[0] | {"job": "lost"},
    ]
    plan = played.world.plan
    more = replace(
        plan,
        flows=(*plan.flows, replace(plan.flows[0], flow_id="lost")),
        plain=(*plan.plain, Plain("lost", "etl")),
    )
    found = problems(played, entries, more)
    assert [problem for problem in found if "lost" in problem] == found
    assert len(found) == 2
    lossy = Checker(played.world.url, more, entries, may_lose=True)
    assert list(lossy.violations()) == []
    assert lossy.losses == {"flows": 1, "jobs": 1}


@pytest.mark.long
def test_a_result_that_is_lost_where_that_may_be(played: Round) -> None:
    entries = [dict(entry) for entry in played.entries]
    accepted_twice(entries)
    plain_accepted_twice(entries)
    lossy = Checker(played.world.url, played.world.plan, entries, may_lose=True)
    assert list(lossy.violations()) == []
    assert lossy.losses == {"results": 3}


@pytest.mark.long
def test_more_ends_in_the_metrics_than_there_were(played: Round) -> None:
    client, key = played.servers[0].client, "glide:{etl}:metrics:completed"
    field = next(field for field in client.hkeys(key) if field.endswith(":c"))
    client.hincrby(key, field, 1_000)
    try:
        assert any("runs have ended well" in problem for problem in problems(played, played.entries))
    finally:
        client.hincrby(key, field, -1_000)


@pytest.mark.long
def test_an_end_that_the_rules_do_not_allow(played: Round) -> None:
    plan = played.world.plan
    flow = next(one for one in plan.flows if one.action == "none" and one.steps[0].ends == "complete")
    steps = (replace(flow.steps[0], ends="fail"), *flow.steps[1:])
    other = replace(plan, flows=(replace(flow, steps=steps),), by_id={})
    assert any("allowed: ['failed']" in problem for problem in problems(played, played.entries, other))


@pytest.mark.long
def test_a_progress_that_names_another_job_than_the_one_that_ran(played: Round) -> None:
    job = stored(played, lambda step: step.queue == QUEUE and step.ends == "complete")
    client = played.servers[0].client
    progress = client.hget(job, "progress")
    client.hset(job, "progress", '{"chasquimq": {"job": "another"}}')
    assert any("and its progress is" in problem for problem in problems(played, played.entries))
    client.hset(job, "progress", progress)


@pytest.mark.long
def test_a_history_that_does_not_add_up(played: Round) -> None:
    client, job = played.servers[0].client, f"glide:{{{QUEUE}}}:job:{recorded(played.entries)['job']}"
    history = client.hget(job, "gmo:history")
    for more, said in [
        ("1 active x", "starts"),
        ("1 active x\n2 active x\n3 retried", "starts"),
        ("1 lost x\n2 lost x", "ways on"),
        ("1 taken-back x", "and 0 were asked for"),
        ("1 tracked", "is partial"),
    ]:
        client.hset(job, "gmo:history", f"{history}\n{more}")
        assert any(said in problem for problem in problems(played, played.entries)), said
    client.hset(job, "gmo:history", f"{history}\n1 active x\n2 retried")
    assert problems(played, played.entries) == []
    client.hset(job, "gmo:history", history)


LEFT: list[tuple[tuple[str, ...], str]] = [
    (("SET", "glide:{etl}:list-active", "2"), "active jobs"),
    (("HSET", "glide:{etl}:group:x", "active", "1"), "counts 1 places"),
    (("ZADD", "glide:{etl}:groupq:x", "1", "j"), "parked jobs"),
    (("SET", "glide:{etl}:gmo:odd", "1"), "not documented"),
    (("SET", "glide:{odd}:id", "1"), "not documented"),
    (("HSET", "glide:{etl}:gmo:grow:x", "a", "1"), "is left"),
    (("SET", "{chasqui:remote}:gmo:handed-over:x", "1-1"), "lives for -1 s"),
    (("SET", "{chasqui:remote}:result:x", "1", "EX", "7200"), "longer than 3600 s"),
    (("SET", "{chasqui:remote}:odd", "1"), "not documented"),
    (("ZADD", "{chasqui:remote}:delayed", "9e14", "x"), "has 1 entries"),
]


@pytest.mark.long
def test_a_round_waits_for_the_work_of_supervisors(played: Round) -> None:
    client = played.servers[0].client
    client.zadd("glide:{etl}:gmo:staging", {"x": 9e14})
    assert not has_settled(played)
    client.delete("glide:{etl}:gmo:staging")
    assert has_settled(played)


@pytest.mark.long
def test_what_is_left_behind(played: Round) -> None:
    client = played.servers[0].client

    def is_seen(write: tuple[str, ...], said: str) -> bool:
        client.execute_command(*write)
        try:
            return any(said in problem for problem in problems(played, played.entries))
        finally:
            client.delete(write[1])

    for write, said in LEFT:
        # Workers of the round are alive, and one that behaves as Node's corrects the number of active jobs.
        assert any(is_seen(write, said) for _ in range(3)), write


@pytest.mark.long
def test_a_process_of_a_handler_that_outlives_its_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, path = Ledger(tmp_path / "ledger", "child"), tmp_path / "ledger"
    with spawned(["sleep", "60"]) as dead:
        pass
    with spawned(["sleep", "60"]) as child:
        about = {"what": "handler", "child": child.pid, "started": processes()[child.pid].started}
        ledger.write("child", **about, above=[dead.pid])
        ledger.close()
        assert not list(Children(path).look())  # it has some time to end
        monkeypatch.setattr("tests.chaos.children.GRACE_SECONDS", -1)
        assert "outlives" in next(Children(path).look())
    assert not list(Children(path).look())


def test_a_job_fails_only_when_kills_have_used_up_its_attempts() -> None:
    end = {"kind": "end", "queue": "etl", "job": "j", "error": "ProcessExpired"}
    ends = [end | {"run": "1"}, end | {"run": "2", "error": "RuntimeError"}]
    assert RoundBook(ends).is_struck(("etl", "j"), 2)
    assert not RoundBook(ends).is_struck(("etl", "j"), 3)
    assert not RoundBook(ends[1:]).is_struck(("etl", "j"), 1)
    free = [end | {"run": error, "error": error} for error in ("RetryLater", "CancelledError")]
    assert not RoundBook([*ends[:1], *free]).is_struck(("etl", "j"), 2)
