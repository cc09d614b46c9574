"""Every method of the clients with odd arguments, on a live server: what is refused changes nothing."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from hypothesis import strategies as st

import glidemq_orchestrate as gmo
from glidemq_orchestrate.clients import Schedules
from glidemq_orchestrate.errors import CodecError, ConfigurationError, InvalidFlow, InvalidJob, StateError
from glidemq_orchestrate.events import EventFilter
from glidemq_orchestrate.jobs.usage import Usage
from tests.fuzz import odd
from tests.fuzz.entry import Entry, Target, outcome
from tests.fuzz.secret import ALL, listening, refuse
from tests.fuzz.violation import Violation
from tests.fuzz.world import DATA, World, world
from tests.server.lua.keyspace import changes

REFUSED: Final = (ConfigurationError, InvalidFlow, InvalidJob, CodecError, StateError)
MOMENT: Final = timedelta(milliseconds=1)
NODE: Final = gmo.FlowNode("c", queue="idle", job="work", data=DATA)
GOOD: Final[dict[str, Any]] = {
    "after": None,
    "before": None,
    "cascade": False,
    "count": 1,
    "compression": "none",
    "shards": None,
    "cursor": "0",
    "data": DATA,
    "day": None,
    "delay": MOMENT,
    "delayed": True,
    "duration": MOMENT,
    "end": None,
    "error": "",
    "exclude_data": True,
    "fields": {"a": "b"},
    "flow_id": "f1",
    "home": "etl",
    "flows": (),
    "force": True,
    "grace": MOMENT,
    "group": "ValueError",
    "idle_timeout": MOMENT,
    "indexed_only": False,
    "job_id": "done",
    "job_ids": ["done"],
    "jobs": [gmo.NewJob("work", DATA)],
    "key": "k",
    "label": ("dag", "x"),
    "letter_id": "x",
    "lenient": True,
    "limit": 5,
    "line": "text",
    "max_messages": 5,
    "message_id": "m",
    "max_examined": 100,
    "name": "work",
    "names": ["a"],
    "newest_first": False,
    "nodes": [NODE],
    "offset": 0,
    "on_existing": "attach",
    "options": gmo.JobOptions(),
    "position": "0-0",
    "priority": 3,
    "progress": {"percent": 1},
    "queue": "etl",
    "queues": ["etl"],
    "generation": None,
    "idempotency_key": "r",
    "owner": None,
    "reason": "why",
    "require_workers": False,
    "rest": MOMENT,
    "root_id": "done",
    "schedule": gmo.Schedule(every=timedelta(hours=1)),
    "since": datetime(2026, 1, 1, tzinfo=UTC),
    "spec": gmo.FlowSpec("open", [NODE]),
    "start": None,
    "state": "failed",
    "subject": "a.b",
    "subscription": "billing",
    "tag": "monthly",
    "tags": ["monthly"],
    "template": gmo.JobTemplate("work", DATA),
    "text": "note",
    "timeout": MOMENT,
    "tokens": 5,
    "where": EventFilter(),
    "usage": Usage("m", tokens={"in": 1}),
    "extend": True,
    "dependents": True,
    "node": "a",
    "others": ["later"],
    "pattern": "",
    "period": timedelta(hours=1),
    "result": DATA,
}
GOOD_OF: Final[dict[tuple[str, str, str], Any]] = {
    ("queue", "set_global_rate_limit", "limit"): gmo.RateLimit(1, timedelta(seconds=1)),
    ("queue", "set_dead_letter_queue", "name"): "dead",
    ("queue", "change_priority", "job_id"): "later",
    ("queue", "change_delay", "job_id"): "later",
    ("queue", "depends_on", "job_id"): "waiting",
    ("queue", "promote", "job_id"): "later",
    ("queue", "revoke", "job_id"): "waiting",
    ("queue", "retry", "job_id"): "failed",
    ("queue", "signal", "job_id"): "suspended",
    ("queue", "suspend_info", "job_id"): "suspended",
    ("schedulers", "get", "name"): "s1",
    ("schedulers", "pause", "name"): "s1",
    ("schedulers", "resume", "name"): "s1",
    ("schedulers", "remove", "name"): "s2",
    ("schedulers", "upsert", "name"): "s1",
    ("flows", "submit", "flow_id"): "f3",
    ("flows", "check_workers", "jobs"): {},
    ("done", "node", "name"): "a",
    ("open", "node", "name"): "a",
    **{(flow, "restart", "nodes"): ["a"] for flow in ("done", "open", "later_open")},
    **{
        (flow, method, name): good
        for flow in ("done", "open", "later_open")
        for method in ("rerun", "cancel_node", "complete_node", "skip_node")
        for name, good in (("nodes", ()), ("state", ""))
    },
}
UNUSED: Final = {"close", "handler", "watch_tracked"}  # the last one takes no argument, and has no end


class Clients:
    """All clients of a world, and their methods; an asynchronous method is awaited."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self.queue = stack.enter_context(gmo.Queue("etl", url))
        self.flows = stack.enter_context(gmo.FlowProducer(url))
        self.schedulers = stack.enter_context(Schedules("etl", url))
        self.news = stack.enter_context(gmo.Broadcast("news", url))
        self.events = stack.enter_context(gmo.EventReader("etl", url, position="0-0"))
        self.client = stack.enter_context(gmo.Client(url))
        self.done, self.open = self.flows.get("f1"), self.flows.get("f2")
        self.runner = stack.enter_context(asyncio.Runner())
        self.later = gmo.AsyncQueue("etl", url)
        self.later_flows = gmo.AsyncFlowProducer(url)
        self.later_open = self.runner.run(self.later_flows.get("f2"))
        stack.callback(lambda: self.runner.run(self._close()))

    async def _close(self) -> None:
        await self.later.close()
        await self.later_flows.close()

    def methods(self) -> Iterator[tuple[str, str, Callable[..., Any]]]:
        """Client, name and method of everything that users may call."""
        for client in (
            "queue",
            "flows",
            "schedulers",
            "news",
            "events",
            "client",
            "done",
            "open",
            "later",
            "later_open",
        ):
            about = getattr(self, client)
            for name, method in inspect.getmembers(about, callable):
                if not name.startswith("_") and name not in UNUSED:
                    yield client, name, method

    def call(self, method: Callable[..., Any], given: dict[str, Any]) -> Any:
        """The result; what it yields, and what it becomes."""
        result = method(**given)
        if inspect.isawaitable(result):
            result = self.runner.run(_awaited(result))
        if isinstance(result, AsyncIterator):
            return self.runner.run(_gathered(result))
        return list(result) if isinstance(result, Iterator) else result


async def _awaited(value: Any) -> Any:
    return await value


async def _gathered(values: AsyncIterator[Any]) -> list[Any]:
    return [value async for value in values]


def good_arguments(client: str, name: str, method: Callable[..., Any]) -> dict[str, Any]:
    """Arguments with which a method works; KeyError for a parameter that is new."""
    kind = client.removeprefix("later_").replace("later", "queue")
    parameters = inspect.signature(method).parameters
    return {
        part: GOOD_OF.get((kind, name, part), GOOD[part])
        for part, about in parameters.items()
        if about.kind is not inspect.Parameter.VAR_KEYWORD
    }


@st.composite
def arguments(draw: st.DrawFn, known: dict[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """A method, and arguments of which one to three are odd; all good once in a while."""
    name = draw(st.sampled_from(sorted(known)))
    given = dict(known[name])
    if given:
        for part in draw(st.lists(st.sampled_from(sorted(given)), min_size=1, max_size=3, unique=True)):
            given[part] = draw(odd.ANY_SHORT if part == "timeout" else odd.ANY)
    return name, given


@contextmanager
def opened() -> Iterator[Target]:
    """Needs a server."""
    with ExitStack() as stack:
        heard, here = stack.enter_context(listening()), stack.enter_context(world())
        clients = Clients(here.url, stack)
        methods = {f"{client}.{name}": (client, name, method) for client, name, method in clients.methods()}
        known = {name: good_arguments(*about) for name, about in methods.items()}

        def attempt(case: tuple[str, dict[str, Any]]) -> None:
            name, given = case
            clients.events.position = "0-0"
            try:
                result, error = outcome(lambda: clients.call(methods[name][2], given), secrets=ALL)
                heard.check()
                if error is None and result is None:
                    return
                _check_unchanged(here, name, error)
            finally:
                if here.dump() != here.base:
                    here.restore()
            for one in (clients.queue, clients.flows, clients.open):
                refuse("the repr of a client", repr(one))

        yield Target(arguments(known), attempt)


def _check_unchanged(here: World, name: str, error: Exception | None) -> None:
    if isinstance(error, REFUSED) and (found := changes(here.base, here.dump())):
        text = f"{name} was refused ({type(error).__name__}: {error}) and changed {found!r:.500}"
        raise Violation(text, f"{name} {type(error).__name__} changed {sorted(found)[:1]}")


ENTRY: Final = Entry("calls", "methods of the clients on a live server", 12, opened)
