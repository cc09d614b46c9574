"""Calls: what their replies mean, why one cannot be read, and which may be repeated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glidemq_orchestrate import JobOptions, events, registry
from glidemq_orchestrate.errors import GlideMQError, LeaseLost, ProtocolError
from glidemq_orchestrate.flows.generation import flow_status
from glidemq_orchestrate.flows.home import expire_due
from glidemq_orchestrate.flows.node_table import flow_nodes
from glidemq_orchestrate.flows.staged.lost_jobs import check_open, delivered, stream_page
from glidemq_orchestrate.flows.staged.submit import advance_flow, retry_flow
from glidemq_orchestrate.jobs import pages
from glidemq_orchestrate.jobs.adding import add_job_call
from glidemq_orchestrate.jobs.attempt import from_outside
from glidemq_orchestrate.jobs.job import job_fields
from glidemq_orchestrate.jobs.output import append_log
from glidemq_orchestrate.server import calls as server
from glidemq_orchestrate.server import libraries
from glidemq_orchestrate.wire.call import Call, ask, ask_all, ask_each, command, function
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.worker.usage_limits import record_usage

ETL = QueueKeys("glide", "etl")
RAW = [
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    OverflowError,
    RecursionError,
    AttributeError,
    ZeroDivisionError,
]

# What a driver could make of a reply, at any depth.
REPLIES = st.recursive(
    st.none() | st.integers() | st.text() | st.binary().map(lambda raw: raw.decode(errors="surrogateescape")),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)

CALLED: list[tuple[Any, str]] = [
    (("FCALL", "gmo_sweep", 1, "glide:{a b}:gmo:flows", "{x}:{y}"), "gmo_sweep of queue a b"),
    (("XREAD", "COUNT", 1, "STREAMS", "p:{q}:events", "0-0"), "XREAD of queue q"),
    (("GET", "glide:{\udcff}:id"), "GET of queue \\udcff"),
    (("TIME",), "TIME"),
]


def raising(error: type[Exception]) -> Callable[[Any], Any]:
    def decode(_: Any) -> Any:
        raise error("a payload")

    return decode


def end(op: Any, reply: Any) -> Any:
    """What an operation of one request returns for a reply."""
    next(op)
    with pytest.raises(StopIteration) as stop:
        op.send(reply)
    return stop.value.value


def test_what_a_decoder_raises_is_told_with_its_place_not_its_input(
    subtests: pytest.Subtests,
) -> None:
    for error in RAW:
        with subtests.test(error=error):
            call = function("gmo_flow_status", [ETL.flow("f")], (), raising(error))
            (raised,) = end(ask_each([call]), ["x"])
            assert type(raised) is ProtocolError
            assert (
                str(raised) == f"the reply to gmo_flow_status of queue etl cannot be read: {error.__name__}"
            )
            op = ask(call)
            next(op)
            with pytest.raises(ProtocolError, match="gmo_flow_status of queue etl"):
                op.send("x")


def test_one_reply_that_cannot_be_read_leaves_the_others() -> None:
    calls = [command("GET", ETL.key("id"), decode=int) for _ in range(3)]
    first, broken, last = end(ask_each(calls), ["1", "x", "3"])
    assert (first, last) == (1, 3)
    assert "GET of queue etl" in str(broken)
    op = ask_all(calls)
    next(op)
    with pytest.raises(ProtocolError, match="GET of queue etl"):
        op.send(["1", "x", "3"])


def test_an_unknown_refusal_names_the_call_once() -> None:
    call = command("GET", ETL.key("id"), decode=int)
    wrong = ProtocolError("WRONGTYPE of some kind")
    for _ in range(2):
        op = ask(call)
        next(op)
        with pytest.raises(ProtocolError) as raised:
            op.throw(wrong)
        assert str(raised.value) == "WRONGTYPE of some kind (GET of queue etl)"
    (lost,) = end(ask_each([call]), [LeaseLost("gone")])
    assert str(lost) == "gone"


def test_a_place_says_what_was_called_for_which_queue(subtests: pytest.Subtests) -> None:
    for words, place in CALLED:
        with subtests.test(words=words):
            assert Call(words, str).place == place


def test_what_only_reads_is_repeatable_and_what_counts_is_not() -> None:
    assert job_fields(ETL, "1").repeatable
    assert flow_status(ETL, "f").repeatable
    assert advance_flow(ETL, "f", 1).repeatable
    assert not append_log(ETL, from_outside("1"), "line").repeatable
    assert not server.server_time().repeatable
    assert not retry_flow(ETL, "f", 1).repeatable
    assert not record_usage("b", "{}", "{}", 1, 1, "{}", "{}").repeatable


@given(REPLIES)
def test_no_reply_makes_a_builder_raise_anything_raw(reply: Any) -> None:
    calls: list[Call[Any]] = [
        libraries.orchestrate_version(),
        flow_status(ETL, "f"),
        flow_nodes(ETL, "f", "0"),
        expire_due(ETL, 1),
        check_open(ETL, "f", 0, 1, 1),
        delivered(ETL),
        stream_page(ETL, ""),
        pages.pending_page(ETL, "-", 1, "workers"),
        pages.score(ETL, "scheduled", "y"),
        pages.stream_page(ETL, "-", 1),
        registry.consumers(ETL),
        events.has_lost_events(ETL),
        events.read_events(ETL, "0", 1, None),
        add_job_call(ETL, "n", "", JobOptions(), 1),
    ]
    for call in calls:
        with contextlib.suppress(GlideMQError):
            call.read(reply)
