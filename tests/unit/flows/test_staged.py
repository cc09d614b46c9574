"""Use cases driven by scripts: what they ask next, whatever the server replies."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowNode, FlowSpec, FlowState, events
from glidemq_orchestrate._lua import GLIDEMQ, ORCHESTRATE, library
from glidemq_orchestrate.errors import (
    ConfigurationError,
    FlowCancelled,
    FlowConflict,
    FlowFailed,
    FlowIncomplete,
    FlowNotFound,
    OutcomeUnknown,
    ServerBusy,
    WaitTimeout,
)
from glidemq_orchestrate.flows.checked import CheckedFlow, check_flow
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.flows.node_table import STATUS_FIELDS
from glidemq_orchestrate.flows.outcome import outcome
from glidemq_orchestrate.flows.staged import reading
from glidemq_orchestrate.flows.staged import submit as submitting
from glidemq_orchestrate.flows.staged.changes import cancel
from glidemq_orchestrate.flows.staged.reading import REREAD_MS, find, wait
from glidemq_orchestrate.flows.status import raise_unless_completed
from glidemq_orchestrate.flows.submission import submit_flow
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Batch, Call, Op, command
from glidemq_orchestrate.wire.keys import QueueKeys

if TYPE_CHECKING:
    from tests.unit.conftest import ManualClock, Scripted, Transcript

HOME = QueueKeys("glide", "etl")
REF = FlowRef(HOME, "f")
OURS, THEIRS = library(ORCHESTRATE), library(GLIDEMQ)
INFO = "redis_version:7.2.4\r\nvalkey_version:9.1.0\r\n"
VERSIONS = ["93", [OURS.version, OURS.sha256]]


def call(*words: str) -> Call[str]:
    return command(*words, decode=replies.text)


def spec(count: int, size: int = 1) -> FlowSpec:
    return FlowSpec("n", [FlowNode(f"n{n}", queue="etl", job="work", data="x" * size) for n in range(count)])


def fan_in(width: int) -> CheckedFlow:
    nodes = [FlowNode(f"n{n}", queue="etl", job="work") for n in range(width)]
    nodes.append(FlowNode("all", queue="etl", job="work", after=[node.name for node in nodes]))
    return check_flow(FlowSpec("n", nodes))


HEAD = ["SADD", "SET", "PERSIST"]
CLAIMED = [True, "etl", [None, None, None], []]


class TestSubmitting:
    def submit(self, clock: ManualClock, count: int = 3, size: int = 1, **kw: Any) -> Op[None]:
        return submitting.submit(REF, check_flow(spec(count, size)), kw.get("on_existing", "attach"), clock)

    def test_a_small_flow_is_one_trip_and_its_release(self, scripted: Scripted, clock: ManualClock) -> None:
        transcript = scripted(self.submit(clock), [[1, 1, 1, "staging", "running", 0]])
        assert transcript.names == [*HEAD, "gmo_stage_flow", "gmo_start_flow", "gmo_advance_flow"]

    def test_chunks_hold_fifty_nodes(self, scripted: Scripted, clock: ManualClock) -> None:
        script = [[1, 1, 1, "staging"], [*["staging"] * 4, "running", *[9] * 3], 1, 0]
        transcript = scripted(self.submit(clock, 250), script)
        staged = [*HEAD, *["gmo_stage_flow"] * 5]
        assert transcript.names == [*staged, "gmo_start_flow", *["gmo_advance_flow"] * 5]

    def test_chunks_hold_a_mebibyte(self, scripted: Scripted, clock: ManualClock) -> None:
        script = [[1, 1, 1, "staging"], [*["staging"] * 2, "running", 0]]
        transcript = scripted(self.submit(clock, 3, 600_000), script)
        assert transcript.names.count("gmo_stage_flow") == 3

    def test_a_trip_holds_32_calls(self, scripted: Scripted, clock: ManualClock) -> None:
        longer = [["staging"] * 4, ["staging"] * 16, *[["staging"] * 32] * 8]
        script = [[1, 1, 1, "staging"], *longer, [*["staging"] * 23, "running", *[0] * 20]]
        transcript = scripted(self.submit(clock, 15_000), script)
        trips = [len(request.calls) for request in transcript.requests if isinstance(request, Batch)]
        assert trips == [4, 4, 16, *[32] * 8, 44]

    def test_the_start_of_a_node_in_several_calls_waits_until_each_was_accepted(
        self, scripted: Scripted, clock: ManualClock, make_transcript: type[Transcript]
    ) -> None:
        transcript = make_transcript()
        refused = ["staging", "staging", ServerBusy("OOM"), "staging"]
        script = [[1, 1, 1, "staging"], refused, 0]
        with pytest.raises(ServerBusy):
            scripted(submitting.submit(REF, fan_in(1_010), "attach", clock), script, transcript)
        assert "gmo_start_flow" not in transcript.names

    def test_the_start_is_refused_with_the_chunk_before_it(
        self, scripted: Scripted, clock: ManualClock, make_transcript: type[Transcript]
    ) -> None:
        transcript = make_transcript()
        script = [[1, 1, 1, "staging"], [ServerBusy("OOM"), FlowIncomplete("x"), 0], 0]
        with pytest.raises(ServerBusy):
            scripted(self.submit(clock, 100), script, transcript)
        assert transcript.names[5:] == ["gmo_start_flow", "gmo_advance_flow", "gmo_discard_flow"]

    def test_nothing_more_is_sent_of_a_flow_that_is_there(
        self, scripted: Scripted, clock: ManualClock
    ) -> None:
        transcript = scripted(self.submit(clock, 15_000), [[1, 1, 1, "completed"]])
        assert len(transcript.requests) == 1

    def test_nodes_that_a_sweep_took_are_staged_again(self, scripted: Scripted, clock: ManualClock) -> None:
        swept = [1, 1, 1, "staging", FlowIncomplete("x"), 0]
        script = [swept, CLAIMED, [1, 1, 1, "staging", "running", 0]]
        transcript = scripted(self.submit(clock), script)
        staged = [*HEAD, "gmo_stage_flow", "gmo_start_flow", "gmo_advance_flow"]
        assert transcript.names == [*staged, "SET", "GET", "HMGET", "XREVRANGE", *staged]

    def test_what_stays_incomplete_is_reported(self, scripted: Scripted, clock: ManualClock) -> None:
        swept = [1, 1, 1, "staging", FlowIncomplete("x"), 0]
        with pytest.raises(FlowIncomplete):
            scripted(self.submit(clock), [swept, CLAIMED, swept, CLAIMED, swept, 0])

    def test_a_node_with_many_edges_travels_in_pieces(self, scripted: Scripted, clock: ManualClock) -> None:
        longer = [["staging"] * 4, ["staging"] * 16, ["staging"] * 32]
        script = [[1, 1, 1, "staging"], *longer, ["running", *[0] * 20]]
        transcript = scripted(submitting.submit(REF, fan_in(2_500), "attach", clock), script)
        assert transcript.names.count("gmo_stage_flow") == 53

    def test_a_refused_chunk_is_reported_after_everything_staged_is_discarded(
        self, scripted: Scripted, clock: ManualClock, make_transcript: type[Transcript]
    ) -> None:
        script: list[Any] = [
            [1, 1, 1, "staging"],
            [FlowConflict("job exists"), FlowIncomplete("x"), 0],
            7,
            0,
        ]
        transcript = make_transcript()
        with pytest.raises(FlowConflict, match="job exists"):
            scripted(self.submit(clock, 100), script, transcript)
        assert transcript.names[7:] == ["gmo_discard_flow"] * 2

    def test_a_refusal_stands_even_when_the_server_is_down_for_the_discard(
        self, scripted: Scripted, clock: ManualClock
    ) -> None:
        with pytest.raises(FlowConflict):
            scripted(
                self.submit(clock),
                [[1, 1, 1, FlowConflict("x"), FlowConflict("x"), 0], OutcomeUnknown("gone")],
            )

    def test_a_broken_connection_discards_nothing(self, scripted: Scripted, clock: ManualClock) -> None:
        with pytest.raises(OutcomeUnknown):
            scripted(self.submit(clock), [OutcomeUnknown("gone")])

    def test_attaching_to_an_ended_flow_changes_nothing(
        self, scripted: Scripted, clock: ManualClock, subtests: pytest.Subtests
    ) -> None:
        for state in ("completed", "failed", "cancelled"):
            with subtests.test(state=state):
                assert len(scripted(self.submit(clock), [[1, 1, 1, state, state, 0]]).requests) == 1

    @pytest.mark.parametrize("state", ["failed", "cancelled"])
    def test_a_failed_flow_is_retried_on_request(
        self, scripted: Scripted, clock: ManualClock, state: str
    ) -> None:
        transcript = scripted(
            self.submit(clock, on_existing="retry_failed"),
            [[1, 1, 1, state, state, 0], ["0", []], "running", 1, 0],
        )
        assert transcript.names[6:] == ["SSCAN", "gmo_retry_flow", *["gmo_advance_flow"] * 2]

    def test_a_completed_flow_is_not_retried(self, scripted: Scripted, clock: ManualClock) -> None:
        asked = scripted(
            self.submit(clock, on_existing="retry_failed"), [[1, 1, 1, "completed", "completed", 0]]
        )
        assert len(asked.requests) == 1

    def test_an_unknown_wish_is_refused_before_anything_is_sent(
        self, scripted: Scripted, clock: ManualClock
    ) -> None:
        wish: Any = "replace"
        with pytest.raises(ConfigurationError, match="on_existing"):
            scripted(submit_flow("glide", check_flow(spec(1)), "f", wish, clock), [])


NOTHING: list[Any] = ["0", [], []]


def record(state: str, **fields: Any) -> list[str]:
    found = {"name": "n", "state": state, "total": "3", "completed": "1", "failed": "0"} | fields
    return [word for pair in found.items() for word in map(str, pair)]


def row(name: str, rank: int, state: str, reason: str = "") -> list[str]:
    place = json.dumps([rank, "etl", f"f~{name}", "work"])
    return [name, place, state, "1", "", "", reason, *[""] * (len(STATUS_FIELDS) - 5)]


IDLE = (0, -1)  # nothing is overdue


class TestWatching:
    def test_a_wait_ends_with_the_event_of_the_flow(self, scripted: Scripted, clock: ManualClock) -> None:
        entry = [["glide:{etl}:events", [["2-1", ["event", "flow.completed", "jobId", "", "flowId", "f"]]]]]
        transcript = scripted(
            wait(REF, None, clock),
            [[["1-1", []]], record("running"), IDLE, entry, record("completed")],
        )
        assert transcript.value.state is FlowState.COMPLETED
        assert transcript.names == [
            "XREVRANGE", "gmo_flow_status", "gmo_expire_due", "XREAD", "gmo_flow_status"
        ]  # fmt: skip

    def test_the_position_is_taken_before_the_state_is_read(
        self, scripted: Scripted, clock: ManualClock
    ) -> None:
        transcript = scripted(wait(REF, None, clock), [[["1-1", []]], record("completed")])
        assert transcript.names == ["XREVRANGE", "gmo_flow_status"]

    def test_a_wait_reads_the_state_again_though_no_event_comes(
        self, scripted: Scripted, clock: ManualClock
    ) -> None:
        def late(_: object) -> None:
            clock.now += REREAD_MS

        transcript = scripted(
            wait(REF, None, clock),
            [[], record("running"), IDLE, late, record("completed")],
        )
        assert transcript.value.state is FlowState.COMPLETED
        assert transcript.names.count("gmo_flow_status") == 2

    def test_events_of_others_move_the_position_and_end_no_wait(
        self, scripted: Scripted, clock: ManualClock
    ) -> None:
        others = [
            [
                "e",
                [
                    ["2-1", ["event", "completed", "jobId", "7"]],
                    ["2-2", ["event", "flow.failed", "flowId", "g"]],
                ],
            ]
        ]

        def late(_: object) -> None:
            clock.now += REREAD_MS

        transcript = scripted(
            wait(REF, None, clock),
            [[], record("running"), IDLE, others, late, record("completed")],
        )
        reads = [
            request.words
            for request in transcript.requests
            if isinstance(request, Call) and request.words[0] == "XREAD"
        ]
        assert [words[-1] for words in reads] == ["0-0", "2-2"]

    def test_a_wait_that_takes_too_long_reports_how_far_it_came(
        self, scripted: Scripted, clock: ManualClock
    ) -> None:
        def late(_: object) -> None:
            clock.now += 250

        with pytest.raises(WaitTimeout, match="still running: 1 of 3"):
            scripted(wait(REF, 250, clock), [[], record("running"), IDLE, late])

    def test_a_wait_of_no_time_asks_once(self, scripted: Scripted, clock: ManualClock) -> None:
        with pytest.raises(WaitTimeout):
            scripted(wait(REF, 0, clock), [[], record("running"), IDLE])

    def test_pages_are_put_together_in_order_and_each_node_once(self, scripted: Scripted) -> None:
        pages = [
            ["7", *row("b", 1, "waiting"), *row("c", 2, "removed-completed")],
            ["0", *row("a", 0, "completed"), *row("b", 1, "active")],
        ]
        found = scripted(reading.nodes(REF), pages).value
        assert [(node.name, str(node.state)) for node in found] == [
            ("a", "completed"),
            ("b", "active"),
            ("c", "completed"),
        ]

    def test_an_outcome_lists_causes_before_consequences(self, scripted: Scripted) -> None:
        page = [
            "0",
            *row("a", 0, "failed", "upstream failed: z"),
            *row("b", 1, "completed"),
            *row("c", 2, "failed", "ValueError: x"),
        ]
        status = scripted(reading.status(REF), [record("failed", failed=2)]).value
        ended = scripted(outcome(REF, status), [["0", ["b", "[1]"], []], page]).value
        assert [(node.name, node.reason) for node in ended.failed] == [
            ("c", "ValueError: x"),
            ("a", "upstream failed: z"),
        ]
        assert ended.results == {"b": [1]}
        with pytest.raises(FlowFailed, match="c: ValueError: x"):
            raise_unless_completed(ended)

    def test_a_cancelled_flow_raises_what_it_is(self, scripted: Scripted) -> None:
        status = scripted(reading.status(REF), [record("cancelled", reason="too late")]).value
        ended = scripted(outcome(REF, status), [NOTHING]).value
        with pytest.raises(FlowCancelled, match="too late"):
            raise_unless_completed(ended)

    def test_an_unknown_flow_is_reported(self, scripted: Scripted) -> None:
        with pytest.raises(FlowNotFound, match="no flow f"):
            scripted(find("glide", "f"), [None])
        assert scripted(find("glide", "f"), ["etl"]).value == REF

    def test_a_cancelled_flow_is_worked_off_and_an_ended_one_left_alone(
        self, scripted: Scripted, clock: ManualClock
    ) -> None:
        assert scripted(cancel(REF, "x", clock), ["running", 5, 0]).value is FlowState.RUNNING
        assert scripted(cancel(REF, "x", clock), ["completed"]).value is FlowState.COMPLETED

    def test_events_are_read_with_their_fields(self, scripted: Scripted) -> None:
        reply = [["e", [["1700000000000-1", ["event", "failed", "jobId", "7", "failedReason", "x"]]]]]
        (event,) = scripted(events.read(HOME, "0-0", None), [reply]).value
        assert (event.kind, event.job_id, event.flow_id, event.fields) == (
            "failed",
            "7",
            "",
            {"failedReason": "x"},
        )
        assert event.at.year == 2023

    def test_a_read_never_waits_for_ever(self, scripted: Scripted, subtests: pytest.Subtests) -> None:
        for block, words in ((None, 0), (0, 1), (5, 5)):
            with subtests.test(block=block):
                (request,) = scripted(events.read(HOME, "0-0", block), [None]).requests
                assert isinstance(request, Call)
                assert ("BLOCK" in request.words) == bool(words)
                if words:
                    assert request.words[request.words.index("BLOCK") + 1] == words
