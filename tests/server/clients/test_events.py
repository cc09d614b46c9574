"""Readers of events: kept positions, lost events that are reported, typed fields, filters, iteration."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from glidemq_orchestrate import NewJob
from glidemq_orchestrate.cli import app
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.events import Event, EventFilter, EventKind

if TYPE_CHECKING:
    from tests.server.conftest import Clients

EVENTS = "glide:{etl}:events"
SHORT = timedelta(milliseconds=50)


def emit(client: Any, count: int, start: int = 0) -> list[str]:
    return [
        client.xadd(EVENTS, {"event": "added", "jobId": str(n), "name": "n"})
        for n in range(start, start + count)
    ]


class TestGaps:
    def test_lost_events_are_reported_in_their_place(self, clients: Clients, redis_client: Any) -> None:
        ids = emit(redis_client, 20)
        redis_client.xtrim(EVENTS, maxlen=5, approximate=False)
        reader = clients.events(position=ids[3])
        gap, *rest = reader.read()
        assert (gap.is_gap, gap.kind, gap.id) == (True, EventKind.EVENTS_LOST, ids[3])
        assert [event.id for event in rest] == ids[15:]
        emit(redis_client, 1)
        assert [event.is_gap for event in reader.read()] == [False]

    def test_a_position_that_is_still_there_has_no_gap(self, clients: Clients, redis_client: Any) -> None:
        ids = emit(redis_client, 20)
        redis_client.xtrim(EVENTS, maxlen=5, approximate=False)
        assert [event.id for event in clients.events(position=ids[15]).read()] == ids[16:]

    def test_a_reader_of_a_queue_that_was_empty_loses_nothing_silently(
        self, clients: Clients, redis_client: Any
    ) -> None:
        reader = clients.events()
        assert reader.start() == "0-0"
        emit(redis_client, 9)
        redis_client.xtrim(EVENTS, maxlen=5, approximate=False)
        assert [event.is_gap for event in reader.read()] == [True] + [False] * 5

    def test_a_filter_lets_gaps_through(self, clients: Clients, redis_client: Any) -> None:
        ids = emit(redis_client, 9)
        redis_client.xtrim(EVENTS, maxlen=5, approximate=False)
        reader = clients.events(position=ids[0], where=EventFilter(jobs=["7"]))
        assert [event.job_id for event in reader.read()] == ["", "7"]
        assert reader.position == ids[-1]


class TestTypedFields:
    def test_fields_are_read_as_what_they_are(self, clients: Clients, redis_client: Any) -> None:
        for fields, attribute, value in [
            ({"event": "completed", "jobId": "1", "returnvalue": '{"a":1}'}, "result", {"a": 1}),
            ({"event": "progress", "jobId": "1", "data": "50"}, "progress", 50),  # fact 25
            ({"event": "progress", "jobId": "1", "data": "half"}, "progress", "half"),
            ({"event": "retrying", "jobId": "1", "attemptsMade": "2"}, "attempts_made", 2),
            ({"event": "retrying", "jobId": "1", "delay": "200"}, "delay", timedelta(milliseconds=200)),
            ({"event": "failed", "jobId": "1", "failedReason": "boom"}, "failed_reason", "boom"),
            ({"event": "priority-changed", "jobId": "1", "priority": "4"}, "priority", 4),
            ({"event": "priority-changed", "jobId": "1", "priority": "odd"}, "priority", None),
            ({"event": "drained", "jobId": "12"}, "count", 12),
            ({"event": "drained", "jobId": "12"}, "job", None),
            ({"event": "resumed", "jobId": "0"}, "job", None),
            ({"event": "resumed", "jobId": "7", "signal": "go"}, "job", "7"),
            ({"event": "added", "jobId": "7"}, "count", None),
        ]:
            redis_client.xadd(EVENTS, fields)
            (*_, event) = clients.events(position="0-0").read()
            assert getattr(event, attribute) == value, fields


class TestIterating:
    def test_it_gives_what_is_wanted_and_ends_after_silence(self, twins: Clients, redis_client: Any) -> None:
        ids = emit(redis_client, 120)
        reader = twins.events(position="0-0", where=EventFilter(jobs=["3", "110"]), idle_timeout=SHORT)
        places: list[tuple[str, str | None]] = []

        async def every() -> None:
            places.extend([(event.job_id, reader.position) async for event in reader])

        if twins.runner is None:
            places.extend((event.job_id, reader.position) for event in reader)
        else:
            twins.do(every())
        assert places == [("3", ids[3]), ("110", ids[110])]
        assert reader.position == ids[-1]

    def test_the_command_prints_a_json_object_a_line(self, url: str, redis_client: Any) -> None:
        ids = emit(redis_client, 3)
        words = ["events", "--queue", "etl", "--url", url, "--no-follow"]
        output = CliRunner().invoke(app, [*words, "--from", ids[0], "--json"]).stdout
        lines = [json.loads(line) for line in output.splitlines()]
        assert [(line["id"], line["kind"], line["job"]) for line in lines] == [
            (ids[1], "added", "1"),
            (ids[2], "added", "2"),
        ]
        redis_client.xtrim(EVENTS, maxlen=1, approximate=False)
        output = CliRunner().invoke(app, [*words, "--from", ids[0]]).stdout
        assert "were lost" in output.splitlines()[0]
        assert "added  2" in output.splitlines()[1]


def test_an_event_of_a_flow_is_filtered_by_its_flow() -> None:
    event = Event("1-0", "flow.completed", "", "f", {})
    assert EventFilter(flows=["f"]).takes(event)
    assert not EventFilter(flows=["g"]).takes(event)
    assert not EventFilter(kinds=[EventKind.ADDED]).takes(event)


def test_an_invalid_position_is_refused_by_that_name(clients: Clients) -> None:
    for position in ["abc-xyz", "", "1-", "-1", "1-2-3", "9" * 40, "$", "\ud83d"]:
        with pytest.raises(ConfigurationError, match="is not a position of an event reader"):
            clients.events(position=position).read()


def test_events_that_hold_garbage_are_shown_and_read_past(clients: Clients, redis_client: Any) -> None:
    for fields in (
        {"event": b"\xff", "jobId": b"caf\xe9"},
        {b"\xfe": "x"},
        {"event": "retrying", "delay": "9" * 400},
    ):
        redis_client.xadd("glide:{etl}:events", fields, id="*")
    redis_client.xadd("glide:{etl}:events", {"event": "failed", "failedReason": b"\xff"}, id="9" * 19 + "-1")
    reader = clients.events(position="0-0")
    events = reader.read()
    assert [event.kind for event in events] == ["\udcff", "", "retrying", "failed"]
    assert events[0].job_id == "caf\udce9"
    assert (events[2].delay, events[3].failed_reason) == (None, "\ufffd")
    assert events[3].at == datetime.max.replace(tzinfo=UTC)
    assert reader.read() == []


def test_the_log_of_a_busy_queue_stays_short(clients: Clients, redis_client: Any) -> None:
    """One event in 31 trims it, by whole pages of a hundred. Other queues in between change nothing."""
    queues = [clients.queue(name) for name in ("etl", "other")]
    for queue in queues:
        queue.add_many([NewJob("work", n) for n in range(4_000)])
    for _ in range(40):
        for queue in queues:
            queue.add("work")
    assert 1_000 <= redis_client.xlen(EVENTS) < 1_150
    assert 1_000 <= redis_client.xlen("glide:{other}:events") < 1_150


def test_the_logs_of_two_databases_that_take_turns_stay_short(redis_client: Any) -> None:
    """The library counts the events of a key, whatever its database."""
    with redis_client.client() as connection:
        own = int(redis_client.connection_pool.connection_kwargs.get("db", 0))
        databases = [own, own + 1 if own == 0 else own - 1]
        job = ("work", "{}", 0, 0, 0, 0, 0, 0, "", 1, "1")
        for _ in range(1_500):
            for database in databases:
                connection.execute_command("SELECT", database)
                connection.fcall("gmo_add_jobs", 1, "glide:{etl}:id", 1_000, *job)
        lengths = [
            connection.execute_command("SELECT", database) and connection.xlen(EVENTS)
            for database in databases
        ]
        connection.flushdb()
        connection.execute_command("SELECT", own)
    assert max(lengths) < 1_200
