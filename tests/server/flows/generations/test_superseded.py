"""The generation before: what it is refused, and what is left of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import (
    Context,
    FlowProducer,
    FlowSpec,
)
from glidemq_orchestrate.errors import (
    ConfigurationError,
    FlowExpired,
    FlowNotFound,
    Superseded,
)
from glidemq_orchestrate.flows import index, nodes
from glidemq_orchestrate.foundation.clock import SystemClock
from glidemq_orchestrate.wire.keys import QueueKeys
from tests.builders import diamond, node
from tests.server.policy_work import LONG, Work

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Clients, Dump, Hand


pytestmark = pytest.mark.usefixtures("path")


ETL = QueueKeys("glide", "etl")


def test_it_is_refused_everything(broken: FlowProducer, dump: Dump, eventually: Eventually) -> None:
    old = broken.get("f")
    new = broken.submit(diamond(), flow_id="f", on_existing="restart")
    new.wait(timeout=LONG)
    before = dump()
    for call in (
        lambda: old.wait(timeout=LONG), old.result, old.results, old.nodes, old.retry_failed, old.restart,
        lambda: old.node("a"), lambda: old.results(["a"]), lambda: old.node("no such node"),
        lambda: old.cancel("an old on_kill"), lambda: old.extend([node("z")]), lambda: list(old.watch()),
        lambda: new.cancel("why", generation=0),
    ):  # fmt: skip
        with pytest.raises(Superseded, match="generation 0 of flow f was superseded"):
            call()
    assert old.status().superseded_by == 1
    assert broken.get("f").generation == 1
    with pytest.raises(FlowNotFound, match="flow f has no generation 7: the current one is 1"):
        new.cancel("why", generation=7)
    with pytest.raises(FlowNotFound, match="flow f has no generation a value of type int"):
        new.cancel("why", generation=10**5000)  # too long to be shown as a number
    assert new.cancel("too late", generation=1) == "completed"
    record = "glide:{etl}:gmo:flow:" + new._ref.flow_id
    assert dump()[record] == before[record]


@pytest.mark.usefixtures("frequent_chores")
def test_its_nodes_are_refused_by_name_too(
    clients: Clients, work: Work, redis_client: Any, eventually: Eventually
) -> None:
    old = clients.flows().submit(FlowSpec("n", [node("a")]), flow_id="f")
    old.wait(timeout=LONG)
    assert old.results(["a"]) == {"a": "a!"}
    clients.flows().get("f").restart()

    def check() -> None:
        for reading in (old.node, "a"), (old.results, ["a"]):
            with pytest.raises(Superseded, match="generation 0 of flow f was superseded by generation 1"):
                reading[0](reading[1])

    check()
    eventually(lambda: not redis_client.keys("glide:{etl}:job:f~*"))
    check()  # its jobs were removed


def test_one_that_begins_between_two_reads_of_results(flows: FlowProducer, work: Work, hand: Hand) -> None:
    old = flows.submit(FlowSpec("n", [node("a")]), flow_id="f")
    old.wait(timeout=LONG)
    requests = hand.steps(nodes.node_results(old._ref, ["a"]))
    next(requests)
    next(requests)
    flows.get("f").restart()
    with pytest.raises(Superseded):
        list(requests)


def test_a_handler_that_comes_back_changes_nothing(
    flows: FlowProducer, run_worker: RunWorker, eventually: Eventually
) -> None:
    held, seen = threading.Event(), list[int]()

    def work(ctx: Context) -> int:
        seen.append(ctx.generation)
        if ctx.generation == 0:
            held.wait(20)
        return ctx.generation

    run_worker(["etl"], {"work": work}, concurrency=4)
    flow = flows.submit(FlowSpec("n", [node("a", job="work")]), flow_id="f")
    eventually(lambda: seen == [0])
    flow.restart()
    assert flow.wait(timeout=LONG).results == {"a": 1}
    held.set()
    flow.restart()
    assert flow.wait(timeout=LONG).results == {"a": 2}
    assert [one.state for one in flow.history()] == ["cancelled", "completed", "completed"]


def test_a_watcher_is_told(flows: FlowProducer, work: Work, eventually: Eventually) -> None:
    work.held["a"] = threading.Event()
    flow = flows.submit(FlowSpec("n", [node("a")]), flow_id="f")
    eventually(lambda: work.ran == ["a"])
    told: list[BaseException] = []

    def watch() -> None:
        try:
            list(flow.watch(timeout=LONG))
        except Superseded as exc:
            told.append(exc)

    watcher = threading.Thread(target=watch)
    watcher.start()
    new = flows.submit(FlowSpec("n", [node("a", data=1)]), flow_id="f", on_existing="restart")
    watcher.join(20)
    assert str(told[0]) == "generation 0 of flow f was superseded by generation 1"
    work.held.pop("a").set()
    *_, last = new.watch(timeout=LONG)
    assert (last.state, last.flow) == ("completed", "f")  # type: ignore[union-attr]


@pytest.mark.usefixtures("frequent_chores")
def test_its_jobs_go_and_its_summary_stays(
    broken: FlowProducer, redis_client: Any, eventually: Eventually
) -> None:
    for request in ("one", "two"):
        flow = broken.submit(diamond(), flow_id="f", on_existing="restart", idempotency_key=request)
        flow.wait(timeout=LONG)
    eventually(lambda: len(redis_client.keys("glide:{etl}:job:*")) == 5)
    eventually(lambda: not redis_client.keys("glide:{etl}:gmo:flow:f:*"))
    eventually(lambda: not redis_client.keys("glide:{etl}:gmo:flow:f{1.*}:*"))
    eventually(lambda: not redis_client.keys("glide:{etl}:gmo:portable:*:f{1.*}"))
    fields = ("generation", "state", "completed", "superseded_by", "idempotency_key")
    assert [tuple(getattr(one, name) for name in fields) for one in flow.history()] == [
        (0, "failed", 3, 1, ""),
        (1, "completed", 5, 2, "one"),
        (2, "completed", 5, None, "two"),
    ]
    assert [(one.id, one.generation) for one in broken.list()] == [("f", 2)]


@pytest.mark.long
def test_a_hundred_are_kept(flows: FlowProducer, work: Work) -> None:
    flow = flows.submit(FlowSpec("n", [node("a")]), flow_id="f")
    for _ in range(105):
        flow.wait(timeout=LONG)
        flow.restart()
    flow.wait(timeout=LONG)
    assert flow.generation == 105
    numbers = [one.generation for one in flow.history()]
    assert numbers[-100:] == list(range(6, 106))
    assert len(numbers) < 110


@pytest.mark.usefixtures("frequent_chores")
def test_after_its_retention_a_flow_begins_again_and_leaves_nothing(  # noqa: PLR0917
    flows: FlowProducer, work: Work, hand: Hand, redis_client: Any, eventually: Eventually, path: str
) -> None:
    def is_expired() -> bool:
        return bool(redis_client.hexists(ETL.flow(flow._ref.flow_id), "expired_at"))

    spec = FlowSpec("n", [node("a"), node("b", "a")], retention=timedelta(milliseconds=300))
    flow = flows.submit(spec, flow_id="f")
    for number in range(3):
        flow.wait(timeout=LONG)
        eventually(is_expired)
        eventually(lambda: redis_client.ttl("glide:gmo:home:{f}") > 0)
        for call in (flow.restart, partial(flow.node, "a"), partial(flow.results, ["a"])):
            with pytest.raises(FlowExpired):
                call()
        assert len(flow.history()) == number + 1
        flow = flows.submit(spec, flow_id="f", on_existing="restart", idempotency_key=str(number))
        assert redis_client.ttl("glide:gmo:home:{f}") == -1
        assert redis_client.ttl(ETL.generations("f")) == -1
    flow.wait(timeout=LONG)
    eventually(is_expired)
    eventually(lambda: redis_client.ttl(ETL.generations("f")) > 0)
    eventually(lambda: len(redis_client.keys("*gmo:flow:*")) == 4)
    eventually(lambda: redis_client.zcard("glide:{etl}:gmo:portable:expiring") == 0)  # this goes last
    keys = [*redis_client.keys("*gmo:flow:*"), ETL.generations("f")]
    assert all(redis_client.ttl(key) > 0 for key in keys)
    redis_client.unlink(*keys)  # as they will be in 30 days

    class Later(SystemClock):
        def now_ms(self) -> int:
            return super().now_ms() + 31 * 24 * 3_600_000

    while hand.run(index.sweep([ETL], Later())):
        pass
    if path == "portable":  # there the claim ends by itself
        assert redis_client.unlink("glide:gmo:home:{f}") == 1
    assert redis_client.keys("*gmo:home:*") == []
    assert redis_client.zcard("glide:{etl}:gmo:portable:expiring") == 0
    assert redis_client.zcard("glide:{etl}:gmo:expiring") == 0


def test_every_change_may_be_fenced(broken: FlowProducer, work: Work, dump: Dump) -> None:
    flow = broken.get("f")
    assert flow.restart(generation=0, idempotency_key="r") == "running"
    flow.wait(timeout=LONG)
    again = broken.get("f")
    assert again.restart(generation=0, idempotency_key="r") == "completed"  # a repeat of what has been done
    work.worker.stop()
    before = dump()
    refused: list[Callable[[], Any]] = [
        lambda: again.restart(generation=0),
        lambda: again.retry_failed(generation=0),
        lambda: again.rerun("a", generation=0),
        lambda: again.complete_node("a", 1, generation=0),
        lambda: again.skip_node("a", generation=0),
        lambda: again.cancel_node("a", generation=0),
    ]
    for call in refused:
        with pytest.raises(Superseded, match="generation 0 of flow f was superseded: 1 is the current"):
            call()
    with pytest.raises(FlowNotFound, match="has no generation 2"):
        again.rerun("a", generation=2)
    assert dump() == before
    assert again.rerun("e", generation=1) == ["e"]


def test_no_user_can_name_a_generation(broken: FlowProducer) -> None:
    flow = broken.submit(diamond(), flow_id="f", on_existing="restart")
    with pytest.raises(ConfigurationError, match="is not valid"):
        broken.get(flow._ref.flow_id)
