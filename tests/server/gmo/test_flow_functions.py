"""Each function about flows by itself: what it does, what it refuses, and that a repeat does no harm."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowNode, FlowSpec, Rule
from glidemq_orchestrate._lua import ORCHESTRATE, library
from glidemq_orchestrate.errors import FlowConflict, GlideMQError
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.generation import flow_status
from glidemq_orchestrate.flows.index import unsettled_flows
from glidemq_orchestrate.flows.node_table import flow_nodes, flow_results, node_inputs
from glidemq_orchestrate.flows.staged import submit as staged_submit
from glidemq_orchestrate.flows.staged.changes import cancel_flow
from glidemq_orchestrate.flows.staged.submit import (
    advance_flow,
    discard_flow,
    retry_flow,
    stage_flow,
    start_flow,
)
from glidemq_orchestrate.jobs.adding import add_job_call
from glidemq_orchestrate.jobs.options import JobOptions
from glidemq_orchestrate.server import libraries
from glidemq_orchestrate.wire.keys import QueueKeys

if TYPE_CHECKING:
    from tests.server.gmo.conftest import Bench

ETL = QueueKeys("glide", "etl")
STREAM = "glide:{etl}:stream"


def a_job(bench: Bench, job_id: str = "j", **options: Any) -> str:
    options_ = JobOptions(job_id=job_id, **options)
    return str(bench.call(add_job_call(ETL, "work", "1", options_, bench.now)))


def released(bench: Bench) -> int:
    """How many nodes are in the stream, or in the schedule, where those with a priority go first."""
    return int(bench.client.xlen(STREAM) + bench.client.zcard("glide:{etl}:scheduled"))


class TestVersion:
    def test_it_returns_version_and_fingerprint(self, bench: Bench) -> None:
        ours = library(ORCHESTRATE)
        assert bench.unchanged(libraries.orchestrate_version()) == (ours.version, ours.sha256)


class TestStaging:
    def test_a_rule_of_a_newer_client_is_refused_and_nothing_is_written(
        self, bench: Bench, node: Any
    ) -> None:
        call = bench.stage(node("a"), replace(node("b", "a"), rule=Rule.ALL_DONE))
        words = tuple(w.replace("all_done", "some_done") if isinstance(w, str) else w for w in call.words)
        with pytest.raises(GlideMQError, match="GMO_BAD_CALL node b has the rule some_done"):
            bench.unchanged(replace(call, words=words))

    def test_a_staged_node_is_a_job_that_waits(self, bench: Bench, node: Any) -> None:
        nodes = node("a", attempts=2, delay=timedelta(seconds=1)), node("b", "a", queue="spark")
        assert bench.call(bench.stage(*nodes)) == "staging"
        a, b = bench.job("f~a"), bench.job("f~b", "spark")
        assert (a["state"], a["maxAttempts"], a["delay"], a["data"]) == (
            "waiting-children",
            "2",
            "1000",
            '{"n":"a"}',
        )
        assert (a["name"], a["timestamp"], a["gmo:flow"], a["gmo:node"]) == ("work", "1000000", "f", "a")
        assert (json.loads(a["parentIds"]), json.loads(a["parentQueues"])) == (["f~b"], ["spark"])
        assert bench.client.smembers("glide:{etl}:parents:f~a") == {"glide:{spark}:f~b"}
        assert bench.client.smembers("glide:{spark}:deps:f~b") == {"glide:{etl}:f~a"}
        assert b["gmo:home"] == "glide:{etl}:"
        record = bench.record()
        assert (record["state"], record["total"], record["home"], record["created_at"]) == (
            "staging",
            "2",
            "etl",
            "1000000",
        )
        assert bench.client.smembers("glide:{etl}:gmo:flow:f:ready") == {"glide:{etl}:f~a"}
        assert bench.client.scard("glide:{etl}:gmo:flow:f:open") == 2
        assert bench.events() == [("added", "f~a")]
        assert bench.events("spark") == [("added", "f~b")]
        assert bench.client.xlen(STREAM) == 0

    def test_a_node_like_another_one_has_the_same_fields(self, bench: Bench, node: Any) -> None:
        """Its hash begins as a copy: each of these differs from the one before it in other ways."""
        kinds: list[FlowNode] = [
            node("a0"),
            node("a1"),
            replace(node("a2"), data="x" * 5_000),
            replace(node("a3"), data=None),
            node("a4", attempts=3),
            node("a5", attempts=3),
            replace(node("a6"), rule=Rule.ALL_DONE, after=("a5",)),
            node("a7", "a5"),
            node("a8", "a5", queue="spark"),
            node("a9", "a5", queue="spark"),
            node("end", "a0", "a7", "a9"),
        ]
        bench.call(bench.stage(*kinds))
        together = {one.name: bench.job(f"f~{one.name}", one.queue) for one in kinds}
        bench.client.flushdb()
        bench.client.execute_command("ACL", "SETUSER", "default", "-copy")
        try:
            bench.call(bench.stage(*kinds))
        finally:
            bench.client.execute_command("ACL", "SETUSER", "default", "+copy")
        assert {one.name: bench.job(f"f~{one.name}", one.queue) for one in kinds} == together
        assert together["a2"]["data"] == f'"{"x" * 5_000}"'
        assert "parentIds" not in together["a1"]
        assert "parentIds" in together["a0"]

    def test_a_small_node_takes_little_memory_beside_larger_ones(self, bench: Bench, node: Any) -> None:
        """The server keeps small hashes in a compact form, which a copy of a larger one does not have."""
        kinds = [replace(node(f"n{at}"), data="x" * size) for at, size in enumerate((100, 1, 2, 100, 3))]
        bench.call(bench.stage(*kinds))
        forms = [bench.client.object("encoding", f"glide:{{etl}}:job:f~n{at}") for at in range(5)]
        assert forms == ["hashtable", "listpack", "listpack", "hashtable", "listpack"]

    def test_a_node_that_was_changed_since_it_was_staged_starts_as_it_is(
        self, bench: Bench, node: Any
    ) -> None:
        nodes = node("a"), node("b"), node("c")
        bench.call(bench.stage(*nodes))
        assert bench.client.llen("glide:{etl}:gmo:flow:f:roots") == 3
        bench.client.hset("glide:{etl}:job:f~a", "delay", "5000")
        bench.client.delete("glide:{etl}:job:f~b")
        bench.call(start_flow(ETL, "f", bench.digest(*nodes), bench.now))
        assert bench.job("f~a")["state"] == "delayed"
        assert [fields["jobId"] for _, fields in bench.client.xrange(STREAM)] == ["f~c"]
        assert bench.client.exists("glide:{etl}:gmo:flow:f:roots", "glide:{etl}:job:f~b") == 0

    def test_a_repeat_changes_nothing(self, bench: Bench, node: Any) -> None:
        call = bench.stage(node("a"), node("b", "a"))
        bench.call(call)
        assert bench.unchanged(call) == "staging"

    def test_a_flow_that_runs_or_has_ended_is_only_reported(self, bench: Bench, node: Any) -> None:
        bench.submit(node("a"))
        assert bench.unchanged(bench.stage(node("a"))) == "running"
        attempt = bench.begin()
        bench.finish(attempt)
        assert bench.unchanged(bench.stage(node("a"))) == "completed"

    def test_another_flow_under_the_id_is_refused(self, bench: Bench, node: Any) -> None:
        bench.submit(node("a"))
        assert bench.refused(bench.stage(node("b"))) == "GMO_FLOW_CONFLICT"
        with pytest.raises(FlowConflict):
            bench.submit(node("a", queue="spark"))
        assert bench.client.get("glide:gmo:home:{f}") == "etl"
        assert bench.client.ttl("glide:gmo:home:{f}") == -1

    def test_an_id_without_a_flow_is_taken_over(self, bench: Bench, node: Any) -> None:
        bench.client.set("glide:gmo:home:{f}", "spark")
        bench.submit(node("a"))
        assert bench.client.get("glide:gmo:home:{f}") == "etl"

    def test_a_flow_of_the_other_path_is_not_touched(self, bench: Bench, node: Any) -> None:
        fields = {"digest": bench.digest(node("a")), "path": "portable", "state": "staging", "total": 0}
        bench.client.hset("glide:{etl}:gmo:flow:f", mapping=fields)
        assert bench.refused(bench.stage(node("a"))) == "GMO_FLOW_CONFLICT"
        start = start_flow(ETL, "f", bench.digest(node("a")), bench.now)
        assert bench.refused(start) == "GMO_FLOW_CONFLICT"

    def test_edges_that_come_late_still_hold_a_node_back(self, bench: Bench, node: Any) -> None:
        """The server was full for the first piece of a node, and took the last."""
        many = [node(f"n{n}") for n in range(1_100)]
        checked = check_flow(FlowSpec("n", [*many, node("all", *(one.name for one in many))]))
        chunks = list(staged_submit.chunks(checked.nodes))
        calls = list(stage_flow(QueueKeys("glide", checked.home), "f", checked, chunks, bench.now))
        late = next(n for n, chunk in enumerate(chunks) if any(not piece.is_last for piece in chunk))
        for call in (*calls[:late], *calls[late + 1 :], *calls):
            assert bench.call(call) == "staging"
        assert bench.client.scard("glide:{etl}:deps:f~all") == 1_100
        assert not bench.client.sismember("glide:{etl}:gmo:flow:f:ready", "glide:{etl}:f~all")

    def test_a_job_outside_the_flow_is_not_taken_over(self, bench: Bench, node: Any) -> None:
        a_job(bench, "f~b")
        assert bench.refused(bench.stage(node("a"), node("b"))) == "GMO_FLOW_CONFLICT"


class TestStarting:
    def test_it_releases_the_roots(self, bench: Bench, node: Any) -> None:
        nodes = node("a"), node("b", "a"), node("c", delay=timedelta(seconds=1)), node("d", queue="spark")
        bench.call(bench.stage(*nodes))
        assert bench.call(start_flow(ETL, "f", bench.digest(*nodes), bench.now)) == "running"
        states = {name: bench.job(f"f~{name}")["state"] for name in "abc"}
        assert states == {"a": "waiting", "b": "waiting-children", "c": "delayed"}
        assert bench.job("f~d", "spark")["state"] == "waiting"
        assert bench.client.zscore("glide:{etl}:scheduled", "f~c") == bench.now + 1000
        assert bench.client.exists("glide:{etl}:gmo:todo") == 0
        assert bench.unchanged(start_flow(ETL, "f", bench.digest(*nodes), bench.now)) == "running"

    def test_it_refuses_what_it_does_not_know(self, bench: Bench, node: Any) -> None:
        assert bench.refused(start_flow(ETL, "f", "x", bench.now)) == "GMO_FLOW_NOT_FOUND"
        bench.call(bench.stage(node("a")))
        assert bench.refused(start_flow(ETL, "f", "x", bench.now)) == "GMO_FLOW_CONFLICT"

    def test_it_refuses_a_flow_with_missing_nodes(self, bench: Bench, node: Any) -> None:
        bench.call(bench.stage(node("a"), node("b")))
        bench.client.hdel("glide:{etl}:gmo:flow:f:nodes", "b")
        call = start_flow(ETL, "f", bench.digest(node("a"), node("b")), bench.now)
        assert bench.refused(call) == "GMO_FLOW_INCOMPLETE"


class TestDiscarding:
    def test_it_removes_a_staged_flow_without_a_trace_but_events(self, bench: Bench, node: Any) -> None:
        before = bench.dump(events=False)
        nodes = [node("a"), *(node(f"b{n}", "a", queue="spark") for n in range(120))]
        bench.call(bench.stage(*nodes))
        call = discard_flow(QueueKeys("glide", "spark"), "f", bench.digest(*nodes))
        assert [bench.call(call) for _ in range(3)] == [71, 21, 0]
        assert bench.dump(events=False) == before
        assert bench.unchanged(call) == 0

    def test_it_leaves_others_alone(self, bench: Bench, node: Any) -> None:
        bench.call(bench.stage(node("a")))
        assert bench.unchanged(discard_flow(ETL, "f", "x")) == 0
        bench.submit(node("a"))
        assert bench.unchanged(discard_flow(ETL, "f", bench.digest(node("a")))) == 0
        assert bench.unchanged(discard_flow(ETL, "g", "x")) == 0


class TestAdvancing:
    @pytest.mark.parametrize(("priority", "size"), [(0, 100), (1, 50)], ids=["ordinary", "placed"])
    def test_it_works_in_slices(self, bench: Bench, node: Any, priority: int, size: int) -> None:
        nodes = [node(f"n{n}", priority=priority) for n in range(5 * size)]
        bench.call(bench.stage(*nodes))
        bench.call(start_flow(ETL, "f", bench.digest(*nodes), bench.now))
        assert released(bench) == size
        assert bench.call(unsettled_flows(ETL, 10)) == ["f"]
        lefts = [bench.call(advance_flow(ETL, "f", bench.now)) for _ in range(5)]
        assert lefts == [3 * size, 2 * size, size, 0, 0]
        assert released(bench) == 5 * size
        assert bench.call(unsettled_flows(ETL, 10)) == []
        assert bench.unchanged(advance_flow(ETL, "f", bench.now)) == 0

    def test_a_missing_flow_is_taken_off_the_list(self, bench: Bench) -> None:
        bench.client.sadd("glide:{etl}:gmo:todo", "f")
        answer = bench.hand.answer(advance_flow(ETL, "f", bench.now))
        assert answer.code == "GMO_FLOW_NOT_FOUND"
        assert bench.client.exists("glide:{etl}:gmo:todo") == 0


class TestCancellingAndRetrying:
    def test_a_cancel_ends_what_is_open(self, bench: Bench, node: Any) -> None:
        bench.submit(node("a"), node("b", "a"), node("c", queue="spark"))
        assert bench.call(cancel_flow(ETL, "f", "why", bench.now)) == "running"
        record = bench.record()
        assert (record["state"], record["reason"], record["failed"], record["finished_at"]) == (
            "cancelled", "why", "3", "1000000",
        )  # fmt: skip
        assert bench.job("f~a")["revoked"] == "1"
        assert bench.job("f~b")["failedReason"] == "cancelled: why"
        assert bench.client.zrange("glide:{etl}:failed", 0, -1) == ["f~a", "f~b"]
        assert bench.events()[-1] == ("flow.cancelled", "f")
        assert (bench.client.xlen(STREAM), bench.client.xlen("glide:{spark}:stream")) == (0, 0)
        assert bench.unchanged(cancel_flow(ETL, "f", "again", bench.now)) == "cancelled"

    def test_a_retry_resets_what_failed_and_nothing_else(self, bench: Bench, node: Any) -> None:
        bench.submit(node("a"), node("b", "a"), node("c", "b"))
        bench.finish(bench.begin())
        bench.fail(bench.begin())
        assert bench.record()["state"] == "failed"
        a = bench.job("f~a")
        assert bench.call(retry_flow(ETL, "f", bench.now)) == "running"
        bench.call(advance_flow(ETL, "f", bench.now))
        assert bench.job("f~a") == a
        b, c = bench.job("f~b"), bench.job("f~c")
        assert (b["state"], b["attemptsMade"], b["failedReason"]) == ("waiting", "0", "")
        assert c["state"] == "waiting-children"
        record = bench.record()
        assert (record["completed"], record["failed"], "reason" in record) == ("1", "0", False)
        assert ("flow.retried", "f") in bench.events()
        assert bench.client.zcard("glide:{etl}:failed") == 0

    def test_a_retry_leaves_alone_what_did_not_fail(self, bench: Bench, node: Any) -> None:
        bench.submit(node("a"))
        assert bench.unchanged(retry_flow(ETL, "f", bench.now)) == "running"
        bench.finish(bench.begin())
        assert bench.unchanged(retry_flow(ETL, "f", bench.now)) == "completed"
        assert bench.unchanged(cancel_flow(ETL, "f", "x", bench.now)) == "completed"

    def test_a_retry_that_finds_nothing_to_run_ends_the_flow(self, bench: Bench, node: Any) -> None:
        """As where a cancel cut off a retry that had reset nothing yet."""
        bench.submit(node("a"))
        bench.finish(bench.begin())
        bench.client.hset("glide:{etl}:gmo:flow:f", mapping={"state": "cancelled", "cancel": "cancelled"})
        bench.now += 5
        assert bench.call(retry_flow(ETL, "f", bench.now)) == "completed"
        record = bench.record()
        assert (record["state"], record["finished_at"], "retry" in record) == ("completed", "1000005", False)
        assert bench.events()[-1] == ("flow.completed", "f")
        assert bench.client.exists("glide:{etl}:gmo:todo") == 0

    def test_unknown_flows_are_reported(self, bench: Bench) -> None:
        for call in (
            cancel_flow(ETL, "f", "x", bench.now),
            retry_flow(ETL, "f", bench.now),
            flow_status(ETL, "f"),
            flow_nodes(ETL, "f", "0"),
        ):
            assert bench.refused(call) == "GMO_FLOW_NOT_FOUND"

    def test_a_cancel_interrupts_a_retry(self, bench: Bench, node: Any) -> None:
        bench.submit(*(node(f"n{n}") for n in range(150)))
        for _ in range(3):
            bench.call(cancel_flow(ETL, "f", "first", bench.now))
        bench.call(retry_flow(ETL, "f", bench.now))
        assert bench.client.scard("glide:{etl}:gmo:flow:f:open") == 50
        bench.call(cancel_flow(ETL, "f", "second", bench.now))
        record = bench.record()
        assert (record["state"], record["failed"], record["reason"]) == ("cancelled", "150", "second")


class TestReading:
    def test_reading_writes_nothing(self, bench: Bench, node: Any) -> None:
        bench.submit(node("a"), node("b", "a", queue="spark"), node("c", "a"))
        bench.finish(bench.begin(), '{"x":1}')
        assert bench.unchanged(flow_status(ETL, "f")).completed == 1
        cursor, nodes = bench.unchanged(flow_nodes(ETL, "f", "0"))
        assert cursor == "0"
        assert {found.name: str(found.state) for _, found in nodes} == {
            "a": "completed",
            "b": "waiting",
            "c": "waiting",
        }
        assert bench.unchanged(flow_results(ETL, "f", "0")) == ("0", ({"a": '{"x":1}'}, []))
        spark = QueueKeys("glide", "spark")
        assert bench.unchanged(node_inputs(spark, "f~b", "0")) == ("0", ({"a": '{"x":1}'}, []))
        assert bench.unchanged(node_inputs(ETL, "f~a", "0")) == ("0", ({}, []))

    def test_a_large_flow_is_read_in_pages(self, bench: Bench, node: Any) -> None:
        bench.submit(*(node(f"n{n}") for n in range(900)))
        cursor, seen, pages = "0", set[str](), 0
        while pages == 0 or cursor != "0":
            cursor, page = bench.call(flow_nodes(ETL, "f", cursor))
            seen |= {found.name for _, found in page}
            pages += 1
        assert len(seen) == 900
        assert pages > 1
