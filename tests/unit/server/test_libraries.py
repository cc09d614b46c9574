"""Use cases driven by scripts: what they ask next, whatever the server replies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate._lua import GLIDEMQ, ORCHESTRATE, library
from glidemq_orchestrate.errors import (
    ConfigurationError,
    FlowConflict,
    FlowNotFound,
    GlideMQError,
    JobNotFound,
    LeaseLost,
    LibraryMissing,
    LibraryVersionMismatch,
    ProtocolError,
    ServerBusy,
    ServerTooOld,
)
from glidemq_orchestrate.flows.generation import FlowRef
from glidemq_orchestrate.server.calls import server_info
from glidemq_orchestrate.server.libraries import LOADS, ensure_libraries, repeat_lost
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Batch, Call, ask, ask_all, ask_each, command
from glidemq_orchestrate.wire.keys import QueueKeys

if TYPE_CHECKING:
    from tests.unit.conftest import Scripted

HOME = QueueKeys("glide", "etl")
REF = FlowRef(HOME, "f")
OURS, THEIRS = library(ORCHESTRATE), library(GLIDEMQ)
INFO = "redis_version:7.2.4\r\nvalkey_version:9.1.0\r\n"
VERSIONS = ["93", [OURS.version, OURS.sha256]]

ERROR_REPLIES: list[tuple[str, type[GlideMQError]]] = [
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
]

STREAM_REPLIES: list[Any] = [
    {"s": [("1-1", ["a", "b"])]},
    [["s", [("1-1", ["a", "b"])]]],
    [["s", [("1-1", {"a": "b"})]]],
]

NEW_SERVERS: list[tuple[Any, tuple[str, str]]] = [
    (INFO, ("valkey", "9.1.0")),
    ("# Server\r\nredis_version:7.0.0\r\n", ("redis", "7.0.0")),
    ({"redis_version": "8.2.1"}, ("redis", "8.2.1")),
]

OLD_SERVERS: list[tuple[str, str]] = [
    ("redis_version:6.2.9\r\n", "redis 6.2.9"),
    ("valkey_version:7.1\r\n", "valkey 7.1"),
    ("", "redis 0"),
]


def call(*words: str) -> Call[str]:
    return command(*words, decode=replies.text)


GETS = [call("GET", "a"), call("GET", "b"), call("GET", "c")]
LOST = LibraryMissing("x")


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

    def test_the_code_of_an_error_reply_decides_its_class(self, subtests: pytest.Subtests) -> None:
        for text, kind in ERROR_REPLIES:
            with subtests.test(text=text):
                error = replies.error_from(text)
                assert type(error) is kind
                assert error.code == text.split(" ", maxsplit=1)[0]

    def test_stream_entries_are_read_in_either_protocol(self, subtests: pytest.Subtests) -> None:
        for reply in STREAM_REPLIES:
            with subtests.test(reply=reply):
                assert replies.stream_entries(reply) == {"s": [("1-1", {"a": "b"})]}

    def test_a_deleted_stream_entry_has_no_fields(self) -> None:
        assert replies.stream_entries([["s", [("1-1", None)]]]) == {"s": [("1-1", {})]}
        assert replies.stream_entries(None) == {}


class TestTheServer:
    def test_a_new_server_is_fine(self, scripted: Scripted, subtests: pytest.Subtests) -> None:
        for info, found in NEW_SERVERS:
            with subtests.test(info=info):
                assert scripted(ask(server_info()), [info]).value == found

    def test_an_old_server_is_refused(self, scripted: Scripted, subtests: pytest.Subtests) -> None:
        for info, product in OLD_SERVERS:
            with subtests.test(info=info), pytest.raises(ServerTooOld, match=product):
                scripted(ensure_libraries(), [info])


class TestLibraries:
    def test_nothing_is_loaded_where_all_is_there(self, scripted: Scripted) -> None:
        transcript = scripted(ensure_libraries(), [INFO, *VERSIONS])
        assert transcript.names == ["INFO", "glidemq_version", "gmo_version"]

    def test_both_are_loaded_on_an_empty_server(self, scripted: Scripted) -> None:
        transcript = scripted(
            ensure_libraries(), [INFO, LibraryMissing("x"), "OK", LibraryMissing("x"), "OK"]
        )
        loads = [
            each.words
            for each in transcript.requests
            if isinstance(each, Call) and each.words[0] == "FUNCTION"
        ]
        assert loads == [("FUNCTION", "LOAD", THEIRS.source), ("FUNCTION", "LOAD", OURS.source)]

    def test_a_client_that_loses_the_race_to_load_is_fine(self, scripted: Scripted) -> None:
        taken = ProtocolError("ERR Library 'glidemq' already exists")
        script = [INFO, LibraryMissing("x"), taken, LibraryMissing("x"), taken]
        assert scripted(ensure_libraries(), script).value is None

    def test_a_library_that_cannot_be_loaded_is_reported(self, scripted: Scripted) -> None:
        script = [INFO, LibraryMissing("x"), ProtocolError("ERR Error compiling function")]
        with pytest.raises(ProtocolError, match="compiling"):
            scripted(ensure_libraries(), script)

    def test_another_version_of_glide_mq_is_refused_and_nothing_loaded(self, scripted: Scripted) -> None:
        with pytest.raises(LibraryVersionMismatch, match=r"glidemq version 94.*needs 93") as refused:
            scripted(ensure_libraries(), [INFO, "94"])
        assert (refused.value.loaded, refused.value.required) == ("94", "93")

    def test_an_older_or_changed_library_of_ours_is_replaced(
        self, scripted: Scripted, subtests: pytest.Subtests
    ) -> None:
        for found in (["0.0.9", "x"], [OURS.version, "x"], ["0.0.9", OURS.sha256]):
            with subtests.test(found=found):
                transcript = scripted(ensure_libraries(), [INFO, "93", found, "OK"])
                last = transcript.requests[-1]
                assert isinstance(last, Call)
                assert last.words == ("FUNCTION", "LOAD", "REPLACE", OURS.source)

    def test_a_newer_library_of_ours_is_left_alone(
        self, scripted: Scripted, subtests: pytest.Subtests
    ) -> None:
        for version in ("0.1.1", "0.2.0", "0.10.0", "1.0.0"):
            with subtests.test(version=version), pytest.raises(LibraryVersionMismatch, match=ORCHESTRATE):
                scripted(ensure_libraries(), [INFO, "93", [version, "x"]])

    def test_a_call_is_asked_again_after_loading(self, scripted: Scripted) -> None:
        transcript = scripted(repeat_lost(GETS[:1], [LOST]), [INFO, *VERSIONS, ["v"]])
        assert transcript.value == ["v"]
        assert transcript.names == ["INFO", "glidemq_version", "gmo_version", "GET"]

    def test_only_the_lost_calls_of_a_batch_are_asked_again(self, scripted: Scripted) -> None:
        busy = ServerBusy("x")
        transcript = scripted(repeat_lost(GETS, ["1", LOST, busy]), [INFO, *VERSIONS, ["2"]])
        assert transcript.value == ["1", "2", busy]
        assert transcript.requests[-1] == Batch((GETS[1],))

    def test_libraries_that_are_lost_again_are_loaded_again(self, scripted: Scripted) -> None:
        script = [INFO, *VERSIONS, [LOST], INFO, *VERSIONS, ["v"]]
        assert scripted(repeat_lost(GETS[:1], [LOST]), script).value == ["v"]

    def test_a_replica_without_functions_is_busy_not_forbidden(self, scripted: Scripted) -> None:
        script = [INFO, LOST, ConfigurationError("may not load")]
        for role, error in (("slave", ServerBusy), ("master", ConfigurationError)):
            with pytest.raises(error):
                scripted(repeat_lost(GETS[:1], [LOST]), [*script, f"{INFO}role:{role}\r\n"])

    def test_they_may_be_lost_while_they_are_looked_at(self, scripted: Scripted) -> None:
        transcript = scripted(repeat_lost(GETS[:1], [LOST]), [INFO, LOST, LOST, ["v"]])
        assert (transcript.value, transcript.names[-1]) == (["v"], "GET")

    def test_a_call_that_is_lost_for_ever_keeps_its_error(self, scripted: Scripted) -> None:
        script = [INFO, *VERSIONS, [LOST]] * LOADS
        assert scripted(repeat_lost(GETS[:1], [LOST]), script).value == [LOST]

    def test_a_library_that_cannot_be_used_is_raised(self, scripted: Scripted) -> None:
        with pytest.raises(LibraryVersionMismatch, match="94"):
            scripted(repeat_lost(GETS[:1], [LOST]), [INFO, "94"])
