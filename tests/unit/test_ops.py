"""Use cases driven by scripts: what they ask next, whatever the server answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowNode, FlowSpec, FlowState, JobOptions
from glidemq_orchestrate._lua import GLIDEMQ, ORCHESTRATE, library
from glidemq_orchestrate._ops import attempt as attempts
from glidemq_orchestrate._ops import events, flow, queue, workers
from glidemq_orchestrate._ops.library import ensure_libraries, with_libraries
from glidemq_orchestrate._protocol import replies
from glidemq_orchestrate._protocol.call import Batch, Call, Op, ask, ask_all, ask_each, command
from glidemq_orchestrate._protocol.server import server_info
from glidemq_orchestrate.errors import (
    ConfigurationError,
    FlowCancelled,
    FlowConflict,
    FlowFailed,
    FlowNotFound,
    GlideMQError,
    HandlerNotFound,
    InvalidJob,
    JobNotFound,
    LeaseLost,
    LibraryMissing,
    LibraryVersionMismatch,
    OutcomeUnknown,
    ProtocolError,
    QueueNotServed,
    ServerBusy,
    ServerTooOld,
    WaitTimeout,
)
from glidemq_orchestrate.keys import QueueKeys

if TYPE_CHECKING:
    from tests.unit.conftest import ManualClock, Scripted, Told

HOME = QueueKeys("glide", "etl")
REF = flow.FlowRef(HOME, "f")
OURS, THEIRS = library(ORCHESTRATE), library(GLIDEMQ)
INFO = "redis_version:7.2.4\r\nvalkey_version:9.1.0\r\n"
VERSIONS = ["93", [OURS.version, OURS.sha256]]


def call(*words: str) -> Call[str]:
    return command(*words, decode=replies.text)


class TestTheVocabulary:
    def test_a_call_is_decoded(self, scripted: Scripted) -> None:
        assert scripted(ask(call("GET", "x")), ["v"]).value == "v"

    def test_a_refused_call_raises(self, scripted: Scripted) -> None:
        with pytest.raises(ServerBusy):
            scripted(ask(call("GET", "x")), [ServerBusy("loading")])

    def test_a_batch_of_nothing_asks_nothing(self, scripted: Scripted) -> None:
        assert scripted(ask_all([]), []).value == []
        assert scripted(ask_each([]), []).value == []

    def test_a_batch_raises_its_first_refusal_or_leaves_it_in_place(self, scripted: Scripted) -> None:
        calls = [call("GET", "x"), call("GET", "y"), call("GET", "z")]
        answers = ["v", FlowNotFound("y"), ServerBusy("z")]
        with pytest.raises(FlowNotFound):
            scripted(ask_all(calls), [answers])
        assert scripted(ask_each(calls), [answers]).value == answers
        assert scripted(ask_all(calls), [["a", "b", "c"]]).value == ["a", "b", "c"]

    def test_an_unexpected_reply_is_a_protocol_error(self, scripted: Scripted) -> None:
        with pytest.raises(ProtocolError, match="expected a text"):
            scripted(ask(call("GET", "x")), [7])
        with pytest.raises(ProtocolError, match="expected an integer"):
            replies.integer("7")
        with pytest.raises(ProtocolError, match="pairs"):
            replies.pairs(["a"])
        with pytest.raises(ProtocolError, match="2 columns"):
            replies.rows(2)(["a"])

    @pytest.mark.parametrize(
        ("text", "kind"),
        [
            ("GMO_FLOW_NOT_FOUND no flow x", FlowNotFound),
            ("GMO_FLOW_CONFLICT x", FlowConflict),
            ("GMO_STALE x", LeaseLost),
            ("GMO_JOB_NOT_FOUND x", JobNotFound),
            ("OOM command not allowed", ServerBusy),
            ("LOADING x", ServerBusy),
            ("READONLY x", ServerBusy),
            ("ERR Function not found", LibraryMissing),
            ("ERR unknown command `FCALL`, with args", ServerTooOld),
            ("WRONGTYPE x", ProtocolError),
        ],
    )
    def test_the_code_of_an_error_reply_decides_its_class(self, text: str, kind: type[GlideMQError]) -> None:
        error = replies.error_from(text)
        assert type(error) is kind
        assert error.code == text.split(" ")[0]

    @pytest.mark.parametrize(
        "reply", [{"s": [("1-1", ["a", "b"])]}, [["s", [("1-1", ["a", "b"])]]], [["s", [("1-1", {"a": "b"})]]]]
    )
    def test_stream_entries_are_read_in_either_protocol(self, reply: Any) -> None:
        assert replies.stream_entries(reply) == {"s": [("1-1", {"a": "b"})]}

    def test_a_deleted_stream_entry_has_no_fields(self) -> None:
        assert replies.stream_entries([["s", [("1-1", None)]]]) == {"s": [("1-1", {})]}
        assert replies.stream_entries(None) == {}


class TestTheServer:
    @pytest.mark.parametrize(
        ("info", "found"),
        [
            (INFO, ("valkey", "9.1.0")),
            ("# Server\r\nredis_version:7.0.0\r\n", ("redis", "7.0.0")),
            ({"redis_version": "8.2.1"}, ("redis", "8.2.1")),
        ],
    )
    def test_a_new_server_is_fine(self, scripted: Scripted, info: Any, found: tuple[str, str]) -> None:
        assert scripted(ask(server_info()), [info]).value == found

    @pytest.mark.parametrize(
        ("info", "product"), [("redis_version:6.2.9\r\n", "redis 6.2.9"), ("valkey_version:7.1\r\n", "valkey 7.1"), ("", "redis 0")]
    )
    def test_an_old_server_is_refused(self, scripted: Scripted, info: str, product: str) -> None:
        with pytest.raises(ServerTooOld, match=product):
            scripted(ensure_libraries(), [info])


class TestLibraries:
    def test_nothing_is_loaded_where_all_is_there(self, scripted: Scripted) -> None:
        told = scripted(ensure_libraries(), [INFO, *VERSIONS])
        assert told.names == ["INFO", "glidemq_version", "gmo_version"]

    def test_both_are_loaded_on_an_empty_server(self, scripted: Scripted) -> None:
        told = scripted(ensure_libraries(), [INFO, LibraryMissing("x"), "OK", LibraryMissing("x"), "OK"])
        loads = [each.words for each in told.requests if isinstance(each, Call) and each.words[0] == "FUNCTION"]
        assert loads == [("FUNCTION", "LOAD", THEIRS.source), ("FUNCTION", "LOAD", OURS.source)]

    def test_a_client_that_loses_the_race_to_load_is_fine(self, scripted: Scripted) -> None:
        taken = ProtocolError("ERR Library 'glidemq' already exists")
        script = [INFO, LibraryMissing("x"), taken, LibraryMissing("x"), taken]
        assert scripted(ensure_libraries(), script).value is None

    def test_a_library_that_cannot_be_loaded_is_told(self, scripted: Scripted) -> None:
        script = [INFO, LibraryMissing("x"), ProtocolError("ERR Error compiling function")]
        with pytest.raises(ProtocolError, match="compiling"):
            scripted(ensure_libraries(), script)

    def test_another_version_of_glide_mq_is_refused_and_nothing_loaded(self, scripted: Scripted) -> None:
        with pytest.raises(LibraryVersionMismatch, match="glidemq version 94.*needs 93") as refused:
            scripted(ensure_libraries(), [INFO, "94"])
        assert (refused.value.loaded, refused.value.required) == ("94", "93")

    @pytest.mark.parametrize("found", [["0.0.9", "x"], [OURS.version, "x"], ["0.0.9", OURS.sha256]])
    def test_an_older_or_changed_library_of_ours_is_replaced(self, scripted: Scripted, found: list[str]) -> None:
        told = scripted(ensure_libraries(), [INFO, "93", found, "OK"])
        last = told.requests[-1]
        assert isinstance(last, Call)
        assert last.words == ("FUNCTION", "LOAD", "REPLACE", OURS.source)

    @pytest.mark.parametrize("version", ["0.1.1", "0.2.0", "0.10.0", "1.0.0"])
    def test_a_newer_library_of_ours_is_left_alone(self, scripted: Scripted, version: str) -> None:
        with pytest.raises(LibraryVersionMismatch, match=ORCHESTRATE):
            scripted(ensure_libraries(), [INFO, "93", [version, "x"]])

    def test_a_call_is_asked_again_after_loading(self, scripted: Scripted) -> None:
        told = scripted(with_libraries(ask(call("GET", "x"))), [LibraryMissing("x"), INFO, *VERSIONS, "v"])
        assert told.value == "v"
        assert told.names == ["GET", "INFO", "glidemq_version", "gmo_version", "GET"]

    def test_only_the_lost_calls_of_a_batch_are_asked_again(self, scripted: Scripted) -> None:
        op: Op[Any] = ask_each([call("GET", "a"), call("GET", "b"), call("GET", "c")])
        told = scripted(
            with_libraries(op),
            [["1", LibraryMissing("x"), ServerBusy("x")], INFO, *VERSIONS, ["2"]],
        )
        assert told.value[:2] == ["1", "2"]
        assert isinstance(told.value[2], ServerBusy)
        assert [each.words for each in told.requests[-1].calls] == [("GET", "b")]  # type: ignore[union-attr]

    def test_a_call_that_is_lost_again_raises(self, scripted: Scripted) -> None:
        with pytest.raises(LibraryMissing):
            scripted(
                with_libraries(ask(call("GET", "x"))), [LibraryMissing("x"), INFO, *VERSIONS, LibraryMissing("x")]
            )

    def test_a_library_that_cannot_be_used_is_told_to_the_operation(self, scripted: Scripted) -> None:
        def op() -> Op[str]:
            try:
                return (yield from ask(call("GET", "x")))
            except LibraryVersionMismatch as exc:
                return f"told: {exc.loaded}"

        script = [LibraryMissing("x"), INFO, "94"]
        assert scripted(with_libraries(op()), script).value == "told: 94"


def spec(count: int, size: int = 1) -> FlowSpec:
    return FlowSpec("n", [FlowNode(f"n{n}", "etl", "work", "x" * size) for n in range(count)])


class TestSubmitting:
    def submit(self, clock: ManualClock, count: int = 3, size: int = 1, **kw: Any) -> Op[flow.FlowRef]:
        return flow.submit("glide", spec(count, size).check(), "f", kw.get("on_existing", "attach"), clock)

    def test_a_small_flow_is_one_trip_and_its_release(self, scripted: Scripted, clock: ManualClock) -> None:
        told = scripted(self.submit(clock), [["staging", "running"], 0])
        assert told.names == ["gmo_stage_flow", "gmo_start_flow", "gmo_advance_flow"]
        assert told.value == REF

    def test_chunks_hold_fifty_nodes(self, scripted: Scripted, clock: ManualClock) -> None:
        told = scripted(self.submit(clock, 250), [["staging"] * 5 + ["running"], 1, 0])
        assert told.names == ["gmo_stage_flow"] * 5 + ["gmo_start_flow"] + ["gmo_advance_flow"] * 2

    def test_chunks_hold_a_mebibyte(self, scripted: Scripted, clock: ManualClock) -> None:
        told = scripted(self.submit(clock, 3, 600_000), [["staging"] * 3 + ["running"], 0])
        assert told.names.count("gmo_stage_flow") == 3

    def test_a_trip_holds_twenty_calls(self, scripted: Scripted, clock: ManualClock) -> None:
        told = scripted(self.submit(clock, 1250), [["staging"] * 20, ["staging"] * 5 + ["running"], 0])
        assert [len(request.calls) for request in told.requests[:2] if isinstance(request, Batch)] == [20, 6]

    def test_a_refused_chunk_is_told_after_everything_staged_is_discarded(
        self, scripted: Scripted, clock: ManualClock, make_told: type[Told]
    ) -> None:
        script: list[Any] = [["staging", FlowConflict("job exists"), ProtocolError("GMO_FLOW_INCOMPLETE x")], 7, 0]
        told = make_told()
        with pytest.raises(FlowConflict, match="job exists"):
            scripted(self.submit(clock, 100), script, told)
        assert told.names[3:] == ["gmo_discard_flow"] * 2

    def test_a_refusal_stands_even_when_the_server_is_gone_for_the_discard(
        self, scripted: Scripted, clock: ManualClock
    ) -> None:
        with pytest.raises(FlowConflict):
            scripted(self.submit(clock), [[FlowConflict("x"), FlowConflict("x")], OutcomeUnknown("gone")])

    def test_a_broken_connection_discards_nothing(self, scripted: Scripted, clock: ManualClock) -> None:
        with pytest.raises(OutcomeUnknown):
            scripted(self.submit(clock), [OutcomeUnknown("gone")])

    @pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
    def test_attaching_to_an_ended_flow_changes_nothing(
        self, scripted: Scripted, clock: ManualClock, state: str
    ) -> None:
        assert scripted(self.submit(clock), [[state, state]]).value == REF

    @pytest.mark.parametrize("state", ["failed", "cancelled"])
    def test_a_failed_flow_is_retried_on_request(self, scripted: Scripted, clock: ManualClock, state: str) -> None:
        told = scripted(self.submit(clock, on_existing="retry_failed"), [[state, state], "running", 1, 0])
        assert told.names[2:] == ["gmo_retry_flow", "gmo_advance_flow", "gmo_advance_flow"]

    def test_a_completed_flow_is_not_retried(self, scripted: Scripted, clock: ManualClock) -> None:
        assert scripted(self.submit(clock, on_existing="retry_failed"), [["completed"] * 2]).value == REF

    def test_an_unknown_wish_is_refused_before_anything_is_sent(self, scripted: Scripted, clock: ManualClock) -> None:
        with pytest.raises(ConfigurationError, match="on_existing"):
            scripted(self.submit(clock, on_existing="restart"), [])


def record(state: str, **fields: Any) -> list[str]:
    found = {"name": "n", "state": state, "total": "3", "completed": "1", "failed": "0"} | fields
    return [word for pair in found.items() for word in map(str, pair)]


def row(name: str, rank: int, state: str, reason: str = "") -> list[str]:
    return [name, json.dumps([rank, "etl", f"f~{name}", "work"]), state, "1", "", "", reason, ""]


class TestWatching:
    def test_a_wait_ends_with_the_event_of_the_flow(self, scripted: Scripted, clock: ManualClock) -> None:
        entry = [["glide:{etl}:events", [["2-1", ["event", "flow.completed", "jobId", "", "flowId", "f"]]]]]
        told = scripted(
            flow.wait(REF, None, clock),
            [[["1-1", []]], record("running"), entry, record("completed"), ["0", ["a", "1"]]],
        )
        assert told.value.results == {"a": 1}
        assert told.value.status.state is FlowState.COMPLETED
        assert told.names == ["XREVRANGE", "gmo_flow_status", "XREAD", "gmo_flow_status", "gmo_flow_results"]

    def test_the_position_is_taken_before_the_state_is_read(self, scripted: Scripted, clock: ManualClock) -> None:
        told = scripted(flow.wait(REF, None, clock), [[["1-1", []]], record("completed"), ["0", []]])
        assert told.names == ["XREVRANGE", "gmo_flow_status", "gmo_flow_results"]

    def test_a_wait_reads_the_state_again_though_no_event_comes(self, scripted: Scripted, clock: ManualClock) -> None:
        def late(_: object) -> None:
            clock.now += flow.REREAD_MS

        told = scripted(
            flow.wait(REF, None, clock), [[], record("running"), late, record("completed"), ["0", []]]
        )
        assert told.value.status.state is FlowState.COMPLETED
        assert told.names.count("gmo_flow_status") == 2

    def test_events_of_others_move_the_position_and_wake_nobody(self, scripted: Scripted, clock: ManualClock) -> None:
        others = [["e", [["2-1", ["event", "completed", "jobId", "7"]], ["2-2", ["event", "flow.failed", "flowId", "g"]]]]]

        def late(_: object) -> None:
            clock.now += flow.REREAD_MS

        told = scripted(
            flow.wait(REF, None, clock), [[], record("running"), others, late, record("completed"), ["0", []]]
        )
        reads = [request.words for request in told.requests if isinstance(request, Call) and request.words[0] == "XREAD"]
        assert [words[-1] for words in reads] == ["0-0", "2-2"]

    def test_a_wait_that_takes_too_long_tells_how_far_it_came(self, scripted: Scripted, clock: ManualClock) -> None:
        def late(_: object) -> None:
            clock.now += 250

        with pytest.raises(WaitTimeout, match="running after 250 ms: 1 of 3"):
            scripted(flow.wait(REF, 250, clock), [[], record("running"), late])

    def test_a_wait_of_no_time_asks_once(self, scripted: Scripted, clock: ManualClock) -> None:
        with pytest.raises(WaitTimeout):
            scripted(flow.wait(REF, 0, clock), [[], record("running")])

    def test_pages_are_put_together_in_order_and_each_node_once(self, scripted: Scripted) -> None:
        pages = [["7", *row("b", 1, "waiting"), *row("c", 2, "")], ["0", *row("a", 0, "completed"), *row("b", 1, "active")]]
        found = scripted(flow.nodes(REF), pages).value
        assert [(node.name, str(node.state)) for node in found] == [("a", "completed"), ("b", "active"), ("c", "completed")]

    def test_an_outcome_lists_causes_before_consequences(self, scripted: Scripted) -> None:
        page = ["0", *row("a", 0, "failed", "upstream failed: z"), *row("b", 1, "completed"), *row("c", 2, "failed", "ValueError: x")]
        status = scripted(flow.status(REF), [record("failed", failed=2)]).value
        ended = scripted(flow.outcome(REF, status), [["0", ["b", "[1]"]], page]).value
        assert [(node.name, node.reason) for node in ended.failed] == [("c", "ValueError: x"), ("a", "upstream failed: z")]
        assert ended.results == {"b": [1]}
        with pytest.raises(FlowFailed, match="c: ValueError: x"):
            flow.raise_unless_completed(ended)

    def test_a_cancelled_flow_raises_what_it_is(self, scripted: Scripted) -> None:
        status = scripted(flow.status(REF), [record("cancelled", reason="too late")]).value
        ended = scripted(flow.outcome(REF, status), [["0", []]]).value
        with pytest.raises(FlowCancelled, match="too late"):
            flow.raise_unless_completed(ended)

    def test_an_unknown_flow_is_told(self, scripted: Scripted) -> None:
        with pytest.raises(FlowNotFound, match="no flow f"):
            scripted(flow.find("glide", "f"), [None])
        assert scripted(flow.find("glide", "f"), ["etl"]).value == REF

    def test_a_cancelled_flow_is_worked_off_and_an_ended_one_left_alone(
        self, scripted: Scripted, clock: ManualClock
    ) -> None:
        assert scripted(flow.cancel(REF, "x", clock), ["running", 5, 0]).value is FlowState.RUNNING
        assert scripted(flow.cancel(REF, "x", clock), ["completed"]).value is FlowState.COMPLETED

    def test_events_are_read_with_their_fields(self, scripted: Scripted) -> None:
        reply = [["e", [["1700000000000-1", ["event", "failed", "jobId", "7", "failedReason", "x"]]]]]
        (event,) = scripted(events.read(HOME, "0-0", None), [reply]).value
        assert (event.kind, event.job_id, event.flow_id, event.fields) == ("failed", "7", "", {"failedReason": "x"})
        assert event.at.year == 2023

    @pytest.mark.parametrize(("block", "words"), [(None, 0), (0, 1), (5, 5)])
    def test_a_read_never_waits_for_ever(self, scripted: Scripted, block: int | None, words: int) -> None:
        (request,) = scripted(events.read(HOME, "0-0", block), [None]).requests
        assert isinstance(request, Call)
        assert ("BLOCK" in request.words) == bool(words)
        if words:
            assert request.words[request.words.index("BLOCK") + 1] == words


@dataclass
class Fleet:
    """What the server says of the workers of one queue."""

    ours: dict[str, list[str] | None]
    consumers: list[tuple[str, int]]

    def script(self) -> list[Any]:
        listed: list[Any] = [list(self.ours)]
        if self.ours:
            listed.append([told if told is None else json.dumps({"handlers": told}) for told in self.ours.values()])
        listed.append([["name", name, "pending", 0, "idle", idle] for name, idle in self.consumers])
        return listed


W1, W2 = "gmo-worker-1-a", "gmo-worker-2-b"
NODE = "node-consumer"


class TestRequiringWorkers:
    def require(self, scripted: Scripted, fleet: Fleet, *jobs: str) -> None:
        scripted(workers.require("glide", {"etl": jobs}, 0), fleet.script())

    @pytest.mark.parametrize(
        "fleet",
        [
            Fleet({W1: ["a", "b"]}, [(W1, 5)]),
            Fleet({W1: ["a"], W2: ["b"]}, []),
            Fleet({}, [(NODE, 9_999)]),
            Fleet({W1: []}, [(NODE, 0)]),
        ],
    )
    def test_a_served_queue_is_fine(self, scripted: Scripted, fleet: Fleet) -> None:
        self.require(scripted, fleet, "a", "b")

    @pytest.mark.parametrize(
        "fleet",
        [
            Fleet({}, []),
            Fleet({}, [(NODE, 10_000)]),
            Fleet({}, [(W1, 0)]),
            Fleet({W1: None}, [(W1, 0)]),
        ],
    )
    def test_a_queue_without_a_live_worker_is_refused(self, scripted: Scripted, fleet: Fleet) -> None:
        with pytest.raises(QueueNotServed, match="queue etl") as refused:
            self.require(scripted, fleet, "a")
        assert refused.value.queues == ["etl"]

    @pytest.mark.parametrize("fleet", [Fleet({W1: ["a"]}, [(NODE, 10_000)]), Fleet({W1: ["a"], W2: None}, [(W2, 1)])])
    def test_a_job_that_no_worker_knows_is_refused(self, scripted: Scripted, fleet: Fleet) -> None:
        with pytest.raises(HandlerNotFound, match="no handler for jobs b, c .known: a") as refused:
            self.require(scripted, fleet, "c", "a", "b")
        assert refused.value.missing == {"etl": ["b", "c"]}

    def test_a_worker_without_handlers_is_a_worker_that_knows_nothing(self, scripted: Scripted) -> None:
        with pytest.raises(HandlerNotFound, match="known: none"):
            self.require(scripted, Fleet({W1: []}, []), "a")

    def test_a_queue_that_never_had_a_group_is_not_served(self, scripted: Scripted) -> None:
        with pytest.raises(QueueNotServed):
            scripted(workers.require("glide", {"etl": ["a"]}, 0), [[], ProtocolError("ERR no such key")])

    def test_a_server_that_is_gone_is_not_a_missing_worker(self, scripted: Scripted) -> None:
        with pytest.raises(ServerBusy):
            scripted(workers.require("glide", {"etl": ["a"]}, 0), [[], ServerBusy("LOADING")])

    def test_all_unserved_queues_are_told_at_once(self, scripted: Scripted) -> None:
        with pytest.raises(QueueNotServed, match="queues a, b"):
            scripted(workers.require("glide", {"a": ["x"], "b": ["x"]}, 0), [[], [], [], []])


class TestQueues:
    def test_a_job_without_a_name_is_refused(self, scripted: Scripted) -> None:
        with pytest.raises(InvalidJob, match="needs a name"):
            scripted(queue.add_job(HOME, "", None, JobOptions(), 0), [])

    def test_a_taken_id_is_told(self, scripted: Scripted) -> None:
        with pytest.raises(InvalidJob, match="'own' exists already in queue etl"):
            scripted(queue.add_job(HOME, "work", None, JobOptions(job_id="own"), 0), ["duplicate"])

    def test_a_refusal_by_the_library_is_told(self, scripted: Scripted) -> None:
        with pytest.raises(ProtocolError, match="ERR:ID_EXHAUSTED"):
            scripted(queue.add_job(HOME, "work", None, JobOptions(), 0), ["ERR:ID_EXHAUSTED"])

    def test_a_job_that_is_gone_is_not_found(self, scripted: Scripted) -> None:
        with pytest.raises(JobNotFound, match="no job 7 in queue etl"):
            scripted(queue.get_job(HOME, "7"), [[]])


class TestTheWorkersCalls:
    def test_existing_groups_are_fine_and_other_refusals_are_not(self, scripted: Scripted) -> None:
        assert scripted(attempts.open_queues([HOME]), [[ProtocolError("BUSYGROUP x")]]).value is None
        with pytest.raises(ProtocolError, match="WRONGTYPE"):
            scripted(attempts.open_queues([HOME]), [[ProtocolError("WRONGTYPE x")]])

    def test_entries_without_a_job_are_passed_over(self, scripted: Scripted) -> None:
        reply = [["glide:{etl}:stream", [["1-1", ["jobId", "7"]], ["1-2", ["x", "y"]], ["1-3", None]]]]
        found = scripted(attempts.fetch([HOME], "w", 1, 10, again=False), [reply]).value
        assert found == [(HOME, "7", "1-1")]

    def test_a_lost_group_is_made_again(self, scripted: Scripted) -> None:
        lost = ProtocolError("NOGROUP No such key 'glide:{etl}:stream' or consumer group")
        told = scripted(attempts.fetch([HOME], "w", 1, 10, again=False), [lost, ["OK"]])
        assert told.value == []
        assert told.names == ["XREADGROUP", "XGROUP"]

    def test_what_is_given_back_twice_or_lost_is_fine(self, scripted: Scripted) -> None:
        delivery = attempts.Delivery(HOME, "7", "1-1", "t")
        assert scripted(attempts.leave({}, [], [delivery], ManualNow()), [[LeaseLost("x")]]).value is None
        with pytest.raises(ServerBusy):
            scripted(attempts.leave({}, [], [delivery], ManualNow()), [[ServerBusy("x")]])

    def test_only_begun_attempts_are_answered(self, scripted: Scripted) -> None:
        deliveries = [attempts.Delivery(HOME, job, f"{job}-1", "t") for job in ("1", "2", "3")]
        fields = ["id", "2", "state", "active", "processedOn", "5", "gmo:flow", "f", "gmo:node", "n"]
        script: list[Any] = [[["NOT_WAITING"], fields, ["GONE"]], [["a", "[1]"]]]
        ((attempt, inputs),) = scripted(attempts.activate(deliveries, 5), script).value
        assert (attempt.job_id, attempt.entry_id, attempt.flow_id) == ("2", "2-1", "f")
        assert inputs == {"a": "[1]"}

    def test_upkeep_goes_on_where_a_flow_is_gone(self, scripted: Scripted, clock: ManualClock) -> None:
        script: list[Any] = [[0], [["x", "y"]], FlowNotFound("x"), 0, [-1]]
        assert scripted(attempts.upkeep([HOME], clock), script).value == -1

    def test_upkeep_tells_when_the_first_job_of_all_queues_is_due(self, scripted: Scripted, clock: ManualClock) -> None:
        other = QueueKeys("glide", "other")
        assert scripted(attempts.upkeep([HOME, other], clock), [[0, 0], [[], []], [700, 500]]).value == 500

    def test_reclaiming_passes_over_queues_without_a_group(self, scripted: Scripted, clock: ManualClock) -> None:
        op = attempts.reclaim([HOME], "w", lock_ms=1, max_lost=1, clock=clock)
        assert scripted(op, [[ProtocolError("NOGROUP x")]]).value is None

    def test_a_worker_that_leaves_keeps_its_consumer_while_entries_are_pending(self, scripted: Scripted) -> None:
        told = scripted(attempts.withdraw([HOME], "w"), [[1, 1, [["1-1", "w", 9, 1]]]])
        assert told.names == ["UNLINK", "ZREM", "XPENDING"]
        told = scripted(attempts.withdraw([HOME], "w"), [[1, 1, []], [0]])
        assert told.names == ["UNLINK", "ZREM", "XPENDING", "XGROUP"]


class ManualNow:
    def now_ms(self) -> int:
        return 0
