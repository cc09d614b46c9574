"""Use cases driven by scripts: what they ask next, whatever the server replies."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import JobOptions, NewJob
from glidemq_orchestrate._lua import GLIDEMQ, ORCHESTRATE, library
from glidemq_orchestrate.attempts import upkeep, workers
from glidemq_orchestrate.attempts.exchange import Held, News, Request, exchange, let_events_gather, listen
from glidemq_orchestrate.errors import (
    FlowNotFound,
    HandlerNotFound,
    InvalidJob,
    JobNotFound,
    ProtocolError,
    QueueNotServed,
    ServerBusy,
)
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.jobs import adding
from glidemq_orchestrate.jobs.job import get_job
from glidemq_orchestrate.jobs.job_hash import JOB_FIELDS
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, command
from glidemq_orchestrate.wire.keys import QueueKeys

if TYPE_CHECKING:
    from tests.unit.conftest import ManualClock, Scripted

HOME = QueueKeys("glide", "etl")
REF = FlowRef(HOME, "f")
OURS, THEIRS = library(ORCHESTRATE), library(GLIDEMQ)
INFO = "redis_version:7.2.4\r\nvalkey_version:9.1.0\r\n"
VERSIONS = ["93", [OURS.version, OURS.sha256]]


def call(*words: str) -> Call[str]:
    return command(*words, decode=replies.text)


@dataclass
class Fleet:
    """What the server holds about the workers of one queue."""

    ours: dict[str, list[str] | None]
    consumers: list[tuple[str, int]]

    def script(self) -> list[Any]:
        listed: list[Any] = [list(self.ours)]
        if self.ours:
            listed.append(
                [names if names is None else json.dumps({"handlers": names}) for names in self.ours.values()]
            )
        listed.append([["name", name, "pending", 0, "idle", idle] for name, idle in self.consumers])
        return listed


W1, W2 = "gmo-worker-1-a", "gmo-worker-2-b"
NODE = "node-consumer"

SERVED: list[Fleet] = [
    Fleet({W1: ["a", "b"]}, [(W1, 5)]),
    Fleet({W1: ["a"], W2: ["b"]}, []),
    Fleet({}, [(NODE, 9_999)]),
    Fleet({W1: []}, [(NODE, 0)]),
]

UNSERVED: list[Fleet] = [
    Fleet({}, []),
    Fleet({}, [(NODE, 10_000)]),
    Fleet({}, [(W1, 0)]),
    Fleet({W1: None}, [(W1, 0)]),
]


class TestRequiringWorkers:
    def require(self, scripted: Scripted, fleet: Fleet, *jobs: str) -> None:
        scripted(workers.require("glide", {"etl": jobs}, 0), fleet.script())

    def test_a_served_queue_is_fine(self, scripted: Scripted, subtests: pytest.Subtests) -> None:
        for fleet in SERVED:
            with subtests.test(fleet=fleet):
                self.require(scripted, fleet, "a", "b")

    def test_a_queue_without_a_live_worker_is_refused(
        self, scripted: Scripted, subtests: pytest.Subtests
    ) -> None:
        for fleet in UNSERVED:
            with subtests.test(fleet=fleet):
                with pytest.raises(QueueNotServed, match="queue etl") as refused:
                    self.require(scripted, fleet, "a")
                assert refused.value.queues == ["etl"]

    @pytest.mark.parametrize(
        "fleet", [Fleet({W1: ["a"]}, [(NODE, 10_000)]), Fleet({W1: ["a"], W2: None}, [(W2, 1)])]
    )
    def test_a_job_that_no_worker_knows_is_refused(self, scripted: Scripted, fleet: Fleet) -> None:
        with pytest.raises(HandlerNotFound, match=r"no handler for jobs b, c \(known: a") as refused:
            self.require(scripted, fleet, "c", "a", "b")
        assert refused.value.missing == {"etl": ["b", "c"]}

    def test_a_worker_without_handlers_is_a_worker_that_knows_nothing(self, scripted: Scripted) -> None:
        with pytest.raises(HandlerNotFound, match="known: none"):
            self.require(scripted, Fleet({W1: []}, []), "a")

    def test_a_queue_that_never_had_a_group_is_not_served(self, scripted: Scripted) -> None:
        with pytest.raises(QueueNotServed):
            scripted(workers.require("glide", {"etl": ["a"]}, 0), [[], ProtocolError("ERR no such key")])

    def test_a_server_that_is_down_is_not_a_missing_worker(self, scripted: Scripted) -> None:
        with pytest.raises(ServerBusy):
            scripted(workers.require("glide", {"etl": ["a"]}, 0), [[], ServerBusy("LOADING")])

    def test_all_unserved_queues_are_reported_together(self, scripted: Scripted) -> None:
        with pytest.raises(QueueNotServed, match="queues a, b"):
            scripted(workers.require("glide", {"a": ["x"], "b": ["x"]}, 0), [[], [], [], []])


class TestQueues:
    def test_a_job_without_a_name_is_refused(self, scripted: Scripted) -> None:
        with pytest.raises(InvalidJob, match=r"job name .. is not valid"):
            scripted(adding.add_job(HOME, NewJob(""), 0), [])

    def test_a_taken_id_is_reported(self, scripted: Scripted) -> None:
        with pytest.raises(InvalidJob, match="'own' already exists in queue etl"):
            scripted(
                adding.add_job(HOME, NewJob("work", None, options=JobOptions(job_id="own")), 0), ["duplicate"]
            )

    def test_a_refusal_by_the_library_is_reported(self, scripted: Scripted) -> None:
        with pytest.raises(ProtocolError, match="ERR:ID_EXHAUSTED"):
            scripted(adding.add_job(HOME, NewJob("work"), 0), ["ERR:ID_EXHAUSTED"])

    def test_a_missing_job_is_not_found(self, scripted: Scripted) -> None:
        with pytest.raises(JobNotFound, match="no job 7 in queue etl"):
            scripted(get_job(HOME, "7"), [[None] * len(JOB_FIELDS)])


class TestTheWorkersCalls:
    def test_existing_groups_are_fine_and_other_refusals_are_not(self, scripted: Scripted) -> None:
        assert scripted(workers.open_queues([HOME]), [[ProtocolError("BUSYGROUP x")]]).value is None
        with pytest.raises(ProtocolError, match="WRONGTYPE"):
            scripted(workers.open_queues([HOME]), [[ProtocolError("WRONGTYPE x")]])

    def test_the_inputs_of_a_wide_node_come_in_pages(self, scripted: Scripted, clock: ManualClock) -> None:
        row = ["2", "2-1", "5", "work", "null", "{}", "0", "f", "n", None, None, None, None, "9", None, ""]
        answer: list[Any] = [[], ["f"], [row], "", "", -1, "", []]
        op = exchange(HOME, "w", Request([], 1, "t"), clock)
        transcript = scripted(op, [answer, ["7", ["a", "1"], []], ["0", ["b", "2", "a", "1"], []]])
        assert transcript.names == ["gmo_finish_and_fetch", "gmo_node_inputs", "gmo_node_inputs"]
        (attempt,) = transcript.value.fetched
        assert (attempt.job_id, attempt.entry_id, attempt.flow_id) == ("2", "2-1", "f")
        assert attempt.inputs == {"a": "1", "b": "2"}
        assert attempt.epoch == 9
        assert transcript.value.positions is None

    def test_news_matter_when_they_make_a_job_ready(self, scripted: Scripted) -> None:
        def heard(stream: list[Any], events: list[Any], held: Held = Held.NOTHING) -> News:
            reply = [["glide:{etl}:stream", stream], ["glide:{etl}:events", events]]
            transcript = scripted(listen(HOME, ("1-1", "5-0"), 10, held), [reply])
            news: News = transcript.value
            return news

        at = ("1-1", "5-0")
        assert heard([["2-1", ["jobId", "7"]]], []).matters(at)
        assert heard([], [["6-0", ["event", "added"]], ["6-1", ["event", "completed"]]]).matters(at)
        ended = heard([], [["6-0", ["event", "completed"]]])
        assert not ended.matters(at)
        assert ended.beyond(at) == ("1-1", "6-0")
        assert heard([], [["6-0", ["event", "completed"]]], Held.CONCURRENCY).matters(at)
        assert heard([], []).matters(at), "another client may write no events"
        assert not heard([["2-1", ["jobId", "7"]]], []).matters(("2-1", "5-0")), "it was known already"
        assert heard([["10-1", ["jobId", "7"]]], []).matters(("9-1", "5-0")), "ids are numbers, not texts"

    def test_a_job_ends_the_time_in_which_events_of_others_gather(self, scripted: Scripted) -> None:
        job = [["glide:{etl}:stream", [["2-1", ["jobId", "7"]]]]]
        assert scripted(let_events_gather(HOME, "1-1", 5), [job]).value is True
        assert scripted(let_events_gather(HOME, "1-1", 5), [None]).value is False
        (words,) = [asked.words for asked in let_events_gather(HOME, "1-1", 5) if isinstance(asked, Call)]
        assert words[-3:] == ("STREAMS", "glide:{etl}:stream", "1-1"), "the events are left alone"

    def test_upkeep_goes_on_where_a_flow_is_missing(self, scripted: Scripted, clock: ManualClock) -> None:
        script: list[Any] = [[0], [0], [["x", "y"]], FlowNotFound("x"), 0, [(0, -1)]]
        assert scripted(upkeep.upkeep([HOME], clock), script).value == -1

    def test_upkeep_returns_when_the_first_job_of_all_queues_is_due(
        self, scripted: Scripted, clock: ManualClock
    ) -> None:
        other = QueueKeys("glide", "other")
        assert (
            scripted(
                upkeep.upkeep([HOME, other], clock),
                [[0, 0], [0, 0], [[], []], [(0, -1), (0, 600)]],
            ).value
            == 600
        )

    def test_upkeep_ends_what_is_overdue_and_returns_when_the_next_is(
        self, scripted: Scripted, clock: ManualClock
    ) -> None:
        script: list[Any] = [[0], [0], [[]], [(20, 5)], [(3, 400)], [(0, 400)]]
        assert scripted(upkeep.upkeep([HOME], clock), script).value == 400

    def test_reclaiming_passes_over_a_queue_without_a_group(
        self, scripted: Scripted, clock: ManualClock
    ) -> None:
        op = upkeep.reclaim(HOME, "w", lock_ms=1, max_stalled=1, clock=clock)
        assert scripted(op, [[ProtocolError("NOGROUP x"), 0, 0]]).value == ([], [])

    def test_a_worker_that_leaves_keeps_its_consumer_while_entries_are_pending(
        self, scripted: Scripted
    ) -> None:
        transcript = scripted(workers.withdraw([HOME], "w"), [[1, 1, [["1-1", "w", 9, 1]]]])
        assert transcript.names == ["UNLINK", "ZREM", "XPENDING"]
        transcript = scripted(workers.withdraw([HOME], "w"), [[1, 1, []], [0]])
        assert transcript.names == ["UNLINK", "ZREM", "XPENDING", "XGROUP"]
