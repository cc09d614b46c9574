"""Arguments of any type and value for everything that users construct, and what is then made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from hypothesis import strategies as st

import glidemq_orchestrate as gmo
from glidemq_orchestrate import flows
from glidemq_orchestrate.clients import Schedules
from glidemq_orchestrate.events import EventFilter
from glidemq_orchestrate.jobs.option_values import Fallback, JobRef, TokenBucket
from glidemq_orchestrate.jobs.options import RunOptions
from glidemq_orchestrate.jobs.usage import Usage
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.worker import TokenLimit
from glidemq_orchestrate.worker.services.supervisor import Supervisor
from tests.fuzz import odd
from tests.fuzz.entry import Entry, Target, outcome
from tests.fuzz.secret import PASSWORD, PAYLOAD, refuse

URL: Final = f"valkey://u:{PASSWORD}@h"
SECOND: Final = timedelta(seconds=1)
DATA: Final = {"token": PAYLOAD}
NODE: Final = gmo.FlowNode("a", queue="etl", job="work", data=DATA)
FLOW: Final = gmo.FlowSpec("nightly", [NODE])


@dataclass(frozen=True)
class Made:
    """Something to construct.

    Attributes:
        make: The class or function.
        good: Arguments with which it works.
        use: What is done with the result; may raise what ``make`` may.
        shows: Its repr shows the payload, as it is there to hold it.
    """

    make: Callable[..., Any]
    good: dict[str, Any]
    use: Callable[[Any], Any] = lambda made: made
    shows: bool = False


def _use_options(options: Any) -> None:
    RunOptions.from_wire(options.to_wire())


def _use_schedule(schedule: Any) -> None:
    schedule.to_wire()
    _ = schedule.is_ours


def _use_node(node: Any) -> None:
    _use_flow(gmo.FlowSpec("nightly", [node]))


def _use_nodes(nodes: Any) -> None:
    _use_flow(gmo.FlowSpec("nightly", nodes))


def _use_flow(flow: Any) -> None:
    gmo.check_flow(flow)
    flow.to_dict()
    flow.to_mermaid()
    flow.to_dot()
    flows.nested(flow, name="inner")


CLIENT: Final = {"url": URL, "prefix": "glide", "clock": None}
MADE: Final[dict[str, Made]] = {
    "Backoff": Made(gmo.Backoff, {"kind": "fixed", "delay": SECOND, "jitter": 0.5}),
    "Keep": Made(gmo.Keep, {"count": 1, "age": SECOND}),
    "Deduplication": Made(gmo.Deduplication, {"id": "a", "mode": "throttle", "ttl": SECOND}),
    "RateLimit": Made(gmo.RateLimit, {"max": 1, "per": SECOND}),
    "TokenBucket": Made(TokenBucket, {"capacity": 5.0, "refill_per_second": 1.0}),
    "Ordering": Made(
        gmo.Ordering,
        {"key": "k", "concurrency": 1, "rate_limit": gmo.RateLimit(1, SECOND), "token_bucket": None},
        lambda made: gmo.JobOptions(ordering=made).to_wire(),
    ),
    "Fallback": Made(
        Fallback,
        {"model": "m", "provider": "p", "metadata": DATA},
        lambda made: made.to_wire(),
        shows=True,
    ),
    "JobRef": Made(JobRef, {"queue": "etl", "id": "1"}),
    "JobOptions": Made(
        gmo.JobOptions,
        {
            "attempts": 3,
            "backoff": gmo.Backoff(),
            "timeout": SECOND,
            "delay": SECOND,
            "job_id": "a",
            "priority": 1,
            "lifo": False,
            "ttl": SECOND,
            "ordering": gmo.Ordering("k"),
            "cost": 1.0,
            "deduplication": gmo.Deduplication("a"),
            "lease": SECOND,
            "remove_on_complete": gmo.Keep(1),
            "remove_on_fail": 1,
            "fallbacks": [Fallback("m")],
            "parent": JobRef("etl", "1"),
            "traceparent": "00-1-1-01",
        },
        _use_options,
    ),
    "Usage": Made(
        Usage,
        {
            "model": "m",
            "provider": "p",
            "tokens": {"in": 1},
            "total_tokens": 1.0,
            "costs": {"in": 0.1},
            "total_cost": 0.1,
            "cost_unit": "USD",
            "latency": SECOND,
            "cached": True,
        },
        lambda made: made.to_wire(),
    ),
    "Schedule every": Made(
        gmo.Schedule,
        {
            "every": SECOND,
            "start": datetime(2026, 1, 1, tzinfo=UTC),
            "end": datetime(2027, 1, 1, tzinfo=UTC),
            "limit": 5,
            "catch_up": "all",
            "catch_up_limit": 5,
            "overlap": True,
            "logical_time": True,
        },
        _use_schedule,
    ),
    "Schedule cron": Made(
        gmo.Schedule, {"cron": "0 6 * * mon", "time_zone": "Europe/Vienna", "overlap": False}, _use_schedule
    ),
    "Schedule repeat": Made(gmo.Schedule, {"repeat_after_complete": SECOND}, _use_schedule),
    "JobTemplate": Made(
        gmo.JobTemplate,
        {"name": "work", "data": DATA, "options": gmo.JobOptions()},
        lambda made: made.to_wire(),
        shows=True,
    ),
    "NewJob": Made(gmo.NewJob, {"name": "work", "data": DATA, "options": gmo.JobOptions()}, shows=True),
    "FlowNode": Made(
        gmo.FlowNode,
        {
            "name": "a",
            "queue": "etl",
            "job": "work",
            "data": DATA,
            "after": [],
            "options": gmo.JobOptions(),
            "rule": "all_done",
            "on_failure": "ignore",
            "queue_timeout": SECOND,
        },
        _use_node,
        shows=True,
    ),
    "FlowSpec": Made(
        gmo.FlowSpec,
        {
            "name": "nightly",
            "nodes": [NODE],
            "labels": {"a": "b"},
            "retention": SECOND,
            "deadline": SECOND,
            "fail_fast": True,
            "priority": 1,
            "queue_timeout": SECOND,
        },
        _use_flow,
        shows=True,
    ),
    "Dependency": Made(
        gmo.Dependency,
        {"name": "a", "on_failure": "skip"},
        lambda made: _use_nodes([NODE, gmo.FlowNode("b", queue="etl", job="work", after=[made])]),
    ),
    "from_dict": Made(gmo.FlowSpec.from_dict, {"wire": FLOW.to_dict()}, _use_flow, shows=True),
    "map_over": Made(
        flows.map_over,
        {"template": NODE, "items": [1, PAYLOAD], "collect": gmo.FlowNode("all", queue="etl", job="work")},
        _use_nodes,
        shows=True,
    ),
    "nested": Made(flows.nested, {"flow": FLOW, "name": "inner", "after": ()}, _use_nodes, shows=True),
    "chord": Made(
        flows.chord,
        {"header": [NODE], "body": gmo.FlowNode("b", queue="etl", job="work")},
        _use_nodes,
        shows=True,
    ),
    "EventFilter": Made(EventFilter, {"kinds": ["completed"], "jobs": ["1"], "flows": None}),
    "ConnectionSettings": Made(
        ConnectionSettings, {"url": URL, "prefix": "glide", "user": None, "password": None, "verify": True}
    ),
    "Queue": Made(gmo.Queue, {"name": "etl", **CLIENT, "compression": "gzip"}),
    "AsyncQueue": Made(gmo.AsyncQueue, {"name": "etl", **CLIENT, "compression": "none"}),
    "Client": Made(gmo.Client, CLIENT),
    "FlowProducer": Made(gmo.FlowProducer, CLIENT),
    "Schedules": Made(Schedules, {"queue": "etl", **CLIENT}),
    "Broadcast": Made(gmo.Broadcast, {"name": "etl", "max_messages": 5, **CLIENT}),
    "EventReader": Made(
        gmo.EventReader,
        {"queue": "etl", "position": "0-0", "where": EventFilter(), "idle_timeout": SECOND, **CLIENT},
    ),
    "TokenLimit": Made(TokenLimit, {"max_tokens": 5, "per": SECOND, "scope": "both"}),
    "Handlers.handler": Made(gmo.Handlers().handler, {"name": "work", "process": False}),
    "Handlers.batch_handler": Made(gmo.Handlers().batch_handler, {"name": "work", "size": 4, "wait": SECOND}),
    "Worker": Made(
        gmo.Worker,
        {
            **CLIENT,
            "queues": ["etl"],
            "concurrency": 1,
            "prefetch": 1,
            "rate_limit": gmo.RateLimit(1, SECOND),
            "token_limit": None,
            "handlers": None,
            "lease": SECOND,
            "max_stalled": 1,
            "shutdown_timeout": SECOND,
            "allow_import": ["os"],
            "middleware": [],
        },
    ),
    "Supervisor": Made(
        Supervisor,
        {**CLIENT, "queues": ["etl"], "interval": SECOND, "lease": SECOND, "max_stalled": 1},
    ),
    "BroadcastWorker": Made(
        gmo.BroadcastWorker,
        {
            "name": "etl",
            "handler": print,
            **CLIENT,
            "subscription": "s",
            "subjects": ["a.*"],
            "start_from": "$",
        },
    ),
    "EmbeddedServer": Made(
        gmo.EmbeddedServer, {"data_dir": None, "port": None, "unix_socket": None, "databases": 1}
    ),
}
ODD_ELEMENTS: Final = st.lists(odd.ANY, min_size=1, max_size=2) | st.dictionaries(
    odd.STRINGS, odd.ANY, min_size=1, max_size=2
)


@st.composite
def arguments(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Something to construct, with one to three odd arguments."""
    name = draw(st.sampled_from(sorted(MADE)))
    given = dict(MADE[name].good)
    for part in draw(st.lists(st.sampled_from(sorted(given)), min_size=1, max_size=3, unique=True)):
        given[part] = draw(odd.ANY | odd.ANY | ODD_ELEMENTS)
    return name, given


def make(case: tuple[str, dict[str, Any]]) -> None:
    """Construct it, show it, use it."""
    name, given = case
    about = MADE[name]
    made, error = outcome(lambda: about.make(**given))
    if error is not None:
        return
    if not about.shows:
        shown, _ = outcome(lambda: _shown(made))
        refuse(f"the repr of {name}", shown or "")
    outcome(lambda: about.use(made))


def _shown(value: Any) -> str:
    """Its repr; an argument that it shows may have none."""
    try:
        return repr(value)
    except (RecursionError, ValueError):
        return ""


@contextmanager
def opened() -> Iterator[Target]:
    """Needs nothing."""
    yield Target(arguments(), make)


ENTRY: Final = Entry("constructors", "arguments of all that users construct", 25, opened)
