"""Which server of a cluster gets a call, and what a topology makes of the answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis.crc import key_slot

from glidemq_orchestrate.errors import ConfigurationError, ConnectionFailed, OutcomeUnknown, ServerBusy
from glidemq_orchestrate.io.slots import SlotMap, target, undivided
from glidemq_orchestrate.io.topology import Cluster, Parcel, Sentinel, Topology
from glidemq_orchestrate.io.translate import Redirected
from glidemq_orchestrate.jobs.pages import scan_keys, scan_page
from glidemq_orchestrate.settings import ConnectionSettings, Endpoint
from glidemq_orchestrate.wire.call import Call, command, function
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.replies import anything, error_from
from glidemq_orchestrate.wire.trips import Leading, Trips


def slot(key: str) -> int:
    return int(key_slot(key.encode()))


KEYS_AND_PLACES: list[tuple[tuple[Any, ...], Any]] = [
    (("HGET", "glide:{a}:job:1", "state"), slot("a")),
    (("FCALL", "gmo_x", 2, "glide:{a}:x", "glide:{b}:y", 1), slot("a")),
    (("FCALL", "glidemq_version", 0), "all"),
    (("EVALSHA", "0123456789abcdef", 1, "{a}:x", 1), slot("a")),
    (("XREAD", "COUNT", 100, "BLOCK", 10, "STREAMS", "glide:{a}:s", "glide:{a}:e", "0", "0"), slot("a")),
    (("XREADGROUP", "GROUP", "STREAM", "c", "STREAMS", "glide:{a}:s", ">"), slot("a")),
    (("XINFO", "STREAM", "glide:{a}:s"), slot("a")),
    (("XGROUP", "CREATE", "glide:{a}:s", "workers", "0"), slot("a")),
    (("FUNCTION", "LOAD", "#!lua"), "all"),
    (("FUNCTION", "LIST", "LIBRARYNAME", "x"), "any"),
    (("INFO", "server"), "any"),
    (scan_page(QueueKeys("glide", "a"), "0", "job", 9).words, slot("a")),
    (scan_page(QueueKeys("glide", "a*[b]?"), "0", "job", 9).words, slot("a*[b]?")),
    (scan_keys("glide:{*", "0", 9).words, "scan"),
    (scan_keys("glide:{a*}:x", "0", 9).words, "scan"),
    (("SCAN", "0"), "scan"),
]


def test_a_key_decides_where_a_call_goes(subtests: pytest.Subtests) -> None:
    for words, where in KEYS_AND_PLACES:
        with subtests.test(words=words):
            assert target(words) == where


def test_every_function_has_a_key_that_never_exists() -> None:
    call: Call[Any] = function("gmo_x", ["glide:{a}:x", "glide:{a}:y"], ["z", 1], anything, repeatable=True)
    sent = undivided(call)
    key = "glide:{a}:x:gmo:absent"
    assert sent.words == ("FCALL", "gmo_x", 3, "glide:{a}:x", "glide:{a}:y", key, "z", 1)
    assert sent.repeatable
    for other in (function("gmo_version", (), (), anything), command("GET", "x", decode=anything)):
        assert undivided(other) is other


def test_the_first_call_of_a_trip_knows_the_next_trip_in_a_cluster_too() -> None:
    trips = Trips(function("gmo_x", ["glide:{a}:x"], [number], anything) for number in range(6))
    first, *_ = trips.take()
    sent = undivided(first)
    assert isinstance(sent, Leading)
    assert [call.words[-1] for call in sent.following()] == [1, 2, 3, 4]
    assert sent.packed is None


A, B, C = (Endpoint(name, 1) for name in "abc")
# Slots of a, b and c: 15495, 3300, 7365.
SLOTS_REPLY = [
    [0, 5000, ["b", 1, "id"]],
    [5001, 10000, ["", 1, "id"]],
    [10001, 16383, ["a", 1, "id"], ["r", 1]],
]


def test_a_map_knows_owners_and_gaps() -> None:
    slots = SlotMap.read(SLOTS_REPLY, C)
    assert (slots.primaries, slots.covered) == ((A, B, C), 16384)
    assert [slots.owner(slot(name)) for name in "abc"] == [A, B, C]
    assert SlotMap.read(SLOTS_REPLY[1:], C).owner(1) is None


Answer = Callable[[Parcel], Any]


class Wire:
    """Answers parcels by a function, and records what was sent where."""

    def __init__(self, answer: Answer) -> None:
        self.answer, self.sent = answer, list[tuple[str, list[str]]]()

    def deliver(self, topology: Topology, *calls: Call[Any]) -> list[Any]:
        delivery = topology.deliver(calls)
        try:
            parcels = next(delivery)
            while True:
                for parcel in parcels:
                    commands = [" ".join(map(str, call.words)) for call in parcel.calls]
                    self.sent.append((parcel.place.host, commands))
                parcels = delivery.send([self.answer(parcel) for parcel in parcels])
        except StopIteration as stop:
            return list(stop.value)


def get(name: str) -> Call[Any]:
    return command("GET", f"{{{name}}}", decode=str)


def serve(special: dict[tuple[str, str], Any] | None = None) -> Answer:
    """Every node answers with its name and the key; but for ``special``, by node and first word and key."""

    def reply(place: Endpoint, call: Call[Any]) -> Any:
        if call.words[:2] == ("CLUSTER", "SLOTS"):
            return SLOTS_REPLY
        found = (special or {}).get((place.host, str(call.words[-1])))
        return found or f"{place.host}{call.words[-1]}"

    return lambda parcel: [reply(parcel.place, call) for call in parcel.calls]


def cluster() -> Cluster:
    return Cluster(ConnectionSettings("valkey+cluster://c:1"))


def test_a_batch_is_split_and_its_replies_are_in_order() -> None:
    wire, topology = Wire(serve()), cluster()
    assert wire.deliver(topology, get("b"), get("a"), get("b")) == ["b{b}", "a{a}", "b{b}"]
    assert wire.sent == [
        ("c", ["CLUSTER SLOTS"]), ("b", ["GET {b}", "GET {b}"]), ("a", ["GET {a}"])
    ]  # fmt: skip
    wire.sent.clear()
    wire.deliver(topology, get("c"))
    assert wire.sent == [("c", ["GET {c}"])]


def test_a_moved_slot_is_followed_once_with_that_call_alone(subtests: pytest.Subtests) -> None:
    for ask in (False, True):
        with subtests.test(ask=ask):
            wire, topology = Wire(serve({("a", "{a}"): Redirected(1, Endpoint("b", 1), ask=ask)})), cluster()
            assert wire.deliver(topology, get("a"), get("b"), get("a")) == ["b{a}", "b{b}", "b{a}"]
            again = ["ASKING", "GET {a}"] * 2 if ask else ["GET {a}"] * 2
            assert wire.sent[1:] == [("a", ["GET {a}"] * 2), ("b", ["GET {b}"]), ("b", again)]
            wire.sent.clear()
            wire.deliver(topology, get("b"))
            assert (wire.sent[0][1] == ["CLUSTER SLOTS"]) is not ask


def test_a_call_that_is_sent_from_one_to_the_other_is_refused() -> None:
    moved = {("a", "{a}"): Redirected(1, B, ask=False), ("b", "{a}"): Redirected(1, A, ask=False)}
    (answer,) = Wire(serve(moved)).deliver(cluster(), get("a"))
    assert isinstance(answer, ServerBusy)


def test_a_lost_node_costs_its_own_calls_only_and_nothing_is_sent_twice() -> None:
    def answer(parcel: Parcel) -> Any:
        return OutcomeUnknown("gone") if parcel.place == A else serve()(parcel)

    wire, topology = Wire(answer), cluster()
    lost, kept = wire.deliver(topology, get("a"), get("b"))
    assert (type(lost), kept) == (OutcomeUnknown, "b{b}")
    assert [sent for sent in wire.sent if "GET {a}" in sent[1]] == [("a", ["GET {a}"])]
    wire.sent.clear()
    with pytest.raises(OutcomeUnknown):
        wire.deliver(topology, get("a"), get("a"))
    # The map is looked up again, and not where it was lost.
    assert wire.sent[0] == ("b", ["CLUSTER SLOTS"])


def test_only_what_was_not_sent_goes_to_the_new_owner_of_the_slot() -> None:
    maps = [SLOTS_REPLY, [[0, 5000, ["b", 1]], [5001, 16383, ["c", 1]]]]

    def answer(parcel: Parcel) -> Any:
        if parcel.calls[0].words[0] == "CLUSTER":
            return [maps.pop(0)]
        return ConnectionFailed("refused") if parcel.place == A else serve()(parcel)

    wire = Wire(answer)
    assert wire.deliver(cluster(), get("b"), get("a")) == ["b{b}", "c{a}"]
    assert wire.sent[-1] == ("c", ["GET {a}"])


def test_a_node_that_is_cut_off_from_its_cluster_is_asked_last() -> None:
    down = error_from("CLUSTERDOWN The cluster is down")
    wire, topology = Wire(serve({("a", "{a}"): down})), cluster()
    for _ in range(2):
        (answer,) = wire.deliver(topology, get("a"))
        assert isinstance(answer, ServerBusy)
    assert [place for place, words in wire.sent if words == ["CLUSTER SLOTS"]] == ["c", "b"]


def test_a_slot_without_an_owner_is_reported_as_retryable() -> None:
    def answer(parcel: Parcel) -> Any:
        return [SLOTS_REPLY[:1]] if parcel.calls[0].words[0] == "CLUSTER" else serve()(parcel)

    answers = Wire(answer).deliver(cluster(), get("a"), get("b"))
    assert (type(answers[0]), answers[0].retryable, answers[1]) == (ServerBusy, True, "b{b}")


def test_what_has_no_key_goes_to_every_primary_and_tells_a_refusal() -> None:
    load = command("FUNCTION", "LOAD", "x", decode=str)
    wire = Wire(serve({("b", "x"): error_from("ERR Function not found")}))
    (answer,) = wire.deliver(cluster(), load)
    assert answer.code == "ERR"
    assert [place for place, _ in wire.sent[1:]] == ["a", "b", "c"]


def test_a_scan_goes_through_one_primary_after_the_other() -> None:
    pages = {
        ("a", "0"): ["7", ["k1"]],
        ("a", "7"): ["0", ["k2"]],
        ("b", "0"): ["0", []],
        ("c", "0"): ["0", ["k3"]],
    }

    def answer(parcel: Parcel) -> Any:
        words = parcel.calls[0].words
        return [SLOTS_REPLY] if words[0] == "CLUSTER" else [pages[parcel.place.host, str(words[1])]]

    wire, topology, cursor, found = Wire(answer), cluster(), "0", list[str]()
    while True:
        (reply,) = wire.deliver(topology, scan_keys("glide:{*", cursor, 9))
        cursor, keys = reply
        found += keys
        if cursor == "0":
            break
    assert found == ["k1", "k2", "k3"]


def test_a_server_outside_a_cluster_is_reported() -> None:
    refusal = error_from("ERR This instance has cluster support disabled")
    with pytest.raises(ConfigurationError, match="not a cluster"):
        Wire(lambda _: [refusal]).deliver(cluster(), get("a"))


def sentinel() -> Sentinel:
    return Sentinel(ConnectionSettings("valkey+sentinel://s1,s2/main"))


def test_the_first_sentinel_that_knows_counts_until_the_primary_is_lost() -> None:
    primary = ["a", "1"]

    def answer(parcel: Parcel) -> Any:
        if parcel.place.host == "s1":
            return OutcomeUnknown("down")
        if parcel.sentinel:
            return [list(primary)]
        return OutcomeUnknown("lost") if parcel.place.host == "a" else serve()(parcel)

    wire, topology = Wire(answer), sentinel()
    with pytest.raises(OutcomeUnknown):
        wire.deliver(topology, get("x"))
    primary[0] = "b"
    assert wire.deliver(topology, get("x")) == ["b{x}"]
    assert wire.deliver(topology, get("x")) == ["b{x}"]
    assert [place for place, _ in wire.sent] == ["s1", "s2", "a", "s1", "s2", "b", "b"]


def test_what_could_not_be_sent_goes_to_the_new_primary() -> None:
    primaries = [["a", "1"], ["b", "1"]]

    def answer(parcel: Parcel) -> Any:
        if parcel.sentinel:
            return [primaries.pop(0)]
        return ConnectionFailed("refused") if parcel.place.host == "a" else serve()(parcel)

    assert Wire(answer).deliver(sentinel(), get("x")) == ["b{x}"]


def test_a_primary_that_became_a_replica_is_looked_up_again() -> None:
    replies = {("a", "{x}"): error_from("READONLY You can't write against a read only replica.")}
    wire, topology = Wire(lambda p: [["a", "1"]] if p.sentinel else serve(replies)(p)), sentinel()
    for _ in range(2):
        (answer,) = wire.deliver(topology, get("x"))
        assert isinstance(answer, ServerBusy)
    # The sentinel that named it may be cut off: the other one is asked.
    assert [place for place, _ in wire.sent] == ["s1", "a", "s2", "a"]


def test_a_missing_sentinel_and_an_unknown_service_are_told_apart() -> None:
    with pytest.raises(ConnectionFailed):
        Wire(lambda _: OutcomeUnknown("down")).deliver(sentinel(), get("x"))
    with pytest.raises(ConfigurationError, match="do not know the service 'main'"):
        Wire(lambda _: [None]).deliver(sentinel(), get("x"))
