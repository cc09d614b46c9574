"""Dependencies between single jobs: added, removed, and respected by a cancel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowProducer, JobState, NewJob, Ordering, Queue
from glidemq_orchestrate.errors import HasDependents, InvalidJob, JobNotFound, JobStateConflict
from glidemq_orchestrate.jobs.option_values import JobRef
from glidemq_orchestrate.queues import dependencies
from glidemq_orchestrate.wire.call import ask
from tests.builders import NEAR, flow
from tests.builders import node as flow_node
from tests.node import PlainNode

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker
    from tests.server.conftest import Clients, Dump

P = "glide:{etl}:"


def state(queue: Queue, job_id: str) -> str:
    return queue.get_job(job_id).state


class TestDependsOn:
    def test_a_job_waits_until_the_last_dependency_completes(self, queue: Queue, node: PlainNode) -> None:
        a, b, c = (queue.add("work") for _ in range(3))
        assert queue.depends_on(c, [a, b]).changed == (a, b)
        assert state(queue, c) == JobState.WAITING_CHILDREN
        assert [ref.id for ref in queue.parents(a)] == [c]
        assert node.run_all() == [a, b, c]
        assert state(queue, c) == JobState.COMPLETED

    def test_our_workers_run_them_in_order(
        self, queue: Queue, run_worker: RunWorker, eventually: Eventually
    ) -> None:
        ran: list[str] = []
        queue.pause()
        a, b, c = (queue.add("work") for _ in range(3))
        queue.depends_on(a, [b])
        queue.depends_on(b, [c])
        queue.resume()
        run_worker(["etl"], {"work": lambda ctx: ran.append(ctx.job_id)}, concurrency=1)
        eventually(lambda: len(ran) == 3)
        assert ran == [c, b, a]

    def test_what_has_ended_or_does_not_exist_is_reported_and_not_waited_for(
        self, queue: Queue, node: PlainNode
    ) -> None:
        done = queue.add("work")
        node.run_all()
        a, b = queue.add("work"), queue.add("work")
        found = queue.depends_on(b, [done, "missing", a])
        assert (found.changed, found.ended, found.unknown) == ((a,), (done,), ("missing",))
        assert queue.depends_on(a, [done, "missing"]).changed == ()
        assert state(queue, a) == JobState.WAITING

    def test_a_repeat_changes_nothing(self, queue: Queue, dump: Dump) -> None:
        a, b = queue.add("work"), queue.add("work")
        queue.depends_on(b, [a])
        before = dump(events=False)
        assert queue.depends_on(b, [a]).changed == (a,)
        assert dump(events=False) == before

    def test_a_delayed_job_is_delayed_again_until_it_is_due(
        self, queue: Queue, node: PlainNode, redis_client: Any
    ) -> None:
        a, b = queue.add("work"), queue.add("work", delay=3600)
        due = redis_client.zscore(f"{P}scheduled", b)
        queue.depends_on(b, [a])
        assert redis_client.zscore(f"{P}scheduled", b) is None
        assert node.run_all() == [a]
        assert state(queue, b) == JobState.DELAYED
        assert redis_client.zscore(f"{P}scheduled", b) == due

    def test_a_job_keeps_its_priority(self, queue: Queue, node: PlainNode, redis_client: Any) -> None:
        a, b = queue.add("work"), queue.add("work", priority=3)
        score = redis_client.zscore(f"{P}scheduled", b)
        queue.depends_on(b, [a])
        queue.depends_off(b)
        assert (state(queue, b), redis_client.zscore(f"{P}scheduled", b)) == (JobState.PRIORITIZED, score)
        queue.depends_on(b, [a])
        node.run_all()
        assert state(queue, b) == JobState.PRIORITIZED

    @pytest.mark.parametrize("options", [{"lifo": True}, {"priority": 2}, {}])
    def test_a_ready_job_returns_to_its_list(self, queue: Queue, node: PlainNode, options: Any) -> None:
        a, b = queue.add("work", delay=3600), queue.add("work", **options)
        node.promote(0)
        place = queue.get_jobs(JobState.WAITING)
        assert [job.id for job in place] == [b]
        queue.depends_on(b, [a])
        assert queue.get_jobs(JobState.WAITING) == []
        queue.depends_off(b, [a])
        assert [job.id for job in queue.get_jobs(JobState.WAITING)] == [b]
        taken = node.take()
        assert taken is not None
        assert taken.id == b

    def test_a_failed_dependency_holds_the_job_back_until_it_completes(
        self, queue: Queue, node: PlainNode
    ) -> None:
        a, b = queue.add("work"), queue.add("work")
        queue.depends_on(b, [a])
        node.run_all(a)
        assert (state(queue, a), state(queue, b)) == (JobState.FAILED, JobState.WAITING_CHILDREN)
        queue.retry(a)
        assert node.run_all() == [a, b]

    def test_a_removed_dependency_holds_nothing_back(self, queue: Queue) -> None:
        a, b = queue.add("work"), queue.add("work")
        queue.depends_on(b, [a])
        queue.remove(a)
        assert state(queue, b) == JobState.WAITING

    def test_a_circle_is_refused(self, queue: Queue, dump: Dump) -> None:
        a, b, c = (queue.add("work") for _ in range(3))
        queue.depends_on(b, [a])
        queue.depends_on(c, [b])
        before = dump()
        for job_id, others in ((a, [c]), (a, [b])):
            with pytest.raises(JobStateConflict, match="waits for it"):
                queue.depends_on(job_id, others)
        with pytest.raises(JobStateConflict, match=f"job {a} cannot wait for itself"):
            queue.depends_on(a, [a])
        assert dump() == before

    def test_other_jobs_are_refused(
        self, queue: Queue, flows: FlowProducer, node: PlainNode, dump: Dump
    ) -> None:
        active, other, ordered = (
            queue.add("work"),
            queue.add("work"),
            queue.add("work", ordering=Ordering("k")),
        )
        node.begin(active)
        flows.submit(flow(flow_node("a")), flow_id="f")
        before = dump()
        for job_id, why in ((active, "is active"), (ordered, "ordering key"), ("f~a", "node of a flow")):
            with pytest.raises(JobStateConflict, match=why):
                queue.depends_on(job_id, [other])
            with pytest.raises(JobStateConflict):
                queue.depends_off(job_id)
        with pytest.raises(JobNotFound):
            queue.depends_on("missing", [other])
        with pytest.raises(InvalidJob, match="list of ids"):
            queue.depends_on(other, "12")
        with pytest.raises(InvalidJob, match="at most 100"):
            queue.depends_on(other, map(str, range(101)))
        with pytest.raises(InvalidJob, match="are texts, got a NoneType"):
            queue.cancel([None])  # type: ignore[list-item]
        assert dump() == before


class TestDependsOff:
    def test_a_job_continues_when_nothing_is_left(self, queue: Queue) -> None:
        a, b, c = (queue.add("work") for _ in range(3))
        queue.depends_on(c, [a, b])
        found = queue.depends_off(c, [a, "missing"])
        assert (found.changed, found.unknown) == ((a,), ("missing",))
        assert state(queue, c) == JobState.WAITING_CHILDREN
        queue.depends_off(c, [b])
        assert state(queue, c) == JobState.WAITING
        assert queue.parents(a) == queue.parents(b) == []
        with pytest.raises(JobStateConflict, match="is waiting: it waits for no other job"):
            queue.depends_off(c, [b])

    def test_all_at_once(self, queue: Queue, node: PlainNode) -> None:
        a, b, c = (queue.add("work") for _ in range(3))
        queue.depends_on(c, [a, b])
        queue.depends_off(c)
        assert state(queue, c) == JobState.WAITING
        assert sorted(node.run_all()) == [a, b, c]

    def test_thousands_are_removed_in_slices(self, queue: Queue, redis_client: Any) -> None:
        a, b = queue.add("work"), queue.add("work")
        queue.depends_on(b, [a])
        redis_client.sadd(f"{P}deps:{b}", *(f"{P}gone-{n}" for n in range(1_000)))
        with pytest.raises(JobStateConflict, match="more than 1,000"):
            queue.depends_on(queue.add("work"), [b])
        queue.depends_off(b)
        assert (state(queue, b), redis_client.scard(f"{P}deps:{b}")) == (JobState.WAITING, 0)

    def test_one_that_has_completed_does_not_count_twice(self, queue: Queue, node: PlainNode) -> None:
        a, b, c = queue.add("work"), queue.add("work", delay=3600), queue.add("work")
        queue.depends_on(c, [a, b])
        assert node.run_all() == [a]
        queue.depends_off(c, [a])
        assert state(queue, c) == JobState.WAITING_CHILDREN
        queue.promote(b)
        assert node.run_all() == [b, c]

    def test_a_parent_that_a_node_client_created_can_be_freed(self, queue: Queue, node: PlainNode) -> None:
        node.flow("report", ["part"])
        by_name = {job.name: job.id for job in queue.scan_jobs().jobs}
        queue.depends_off(by_name["report"], [by_name["part"]])
        assert state(queue, by_name["report"]) == JobState.WAITING
        assert queue.parents(by_name["part"]) == []


class TestCancel:
    def test_jobs_are_cancelled_and_each_outcome_is_reported(
        self, queue: Queue, node: PlainNode, eventually: Eventually
    ) -> None:
        done = queue.add("work")
        node.run_all()
        active, waiting = queue.add("work"), queue.add("work")
        node.begin(active)
        found = queue.cancel([done, active, waiting, "missing", waiting])
        assert (found.cancelled, found.stopping) == ((waiting,), (active,))
        assert (found.ended, found.unknown) == ((done,), ("missing",))
        assert queue.get_job(waiting).failed_reason == "revoked"
        assert queue.get_job(active).revoked
        assert queue.cancel([waiting]).ended == (waiting,)
        assert queue.cancel([]).cancelled == ()

    def test_a_job_with_a_dependent_is_kept(self, queue: Queue, dump: Dump) -> None:
        a, b, c = (queue.add("work") for _ in range(3))
        queue.depends_on(b, [a])
        queue.depends_on(c, [b])
        before = dump()
        with pytest.raises(HasDependents, match=f"job {b} waits for job {a}") as caught:
            queue.cancel([a])
        assert (caught.value.job_id, caught.value.dependent) == (a, b)
        with pytest.raises(HasDependents):
            queue.cancel([a, b])
        assert dump() == before
        assert queue.cancel([a, b, c]).cancelled == (c, b, a)

    def test_a_cascade_reaches_all_that_wait(self, queue: Queue) -> None:
        a, b, c, other = (queue.add("work") for _ in range(4))
        queue.depends_on(b, [a])
        queue.depends_on(c, [b])
        assert queue.cancel([a], cascade=True).cancelled == (c, b, a)
        assert queue.get_job(other).state is JobState.WAITING

    def test_a_dependent_that_has_ended_holds_nothing_back(self, queue: Queue, node: PlainNode) -> None:
        a, b = queue.add("work"), queue.add("work")
        queue.depends_on(b, [a])
        queue.revoke(b)
        assert queue.cancel([a]).cancelled == (a,)

    def test_many_are_cancelled_in_slices(self, queue: Queue, node: PlainNode, redis_client: Any) -> None:
        active = [queue.add("work") for _ in range(30)]
        for job_id in active:
            node.begin(job_id)
        ids = [job_id or "" for job_id in queue.add_many([NewJob("work") for _ in range(60)])]
        word, *first = redis_client.fcall("gmo_cancel_jobs", 1, "glide:{etl}:id", 1_700_000_000_000, 0, *ids)
        assert (word, first[::2]) == ("more", ids[:-26:-1])
        found = queue.cancel([*active, *ids])
        assert sorted(found.stopping, key=int) == active
        assert sorted((*found.cancelled, *found.ended), key=int) == ids
        assert redis_client.xlen("glide:{etl}:stream") == len(active)

    def test_a_large_cascade_is_cancelled_from_its_end(self, queue: Queue) -> None:
        root, *rest = [queue.add("work") for _ in range(60)]
        for earlier, later in zip([root, *rest], rest, strict=False):
            queue.depends_on(later, [earlier])
        assert queue.cancel([root], cascade=True).cancelled == (*reversed(rest), root)

    def test_an_entry_far_from_its_expected_position_is_removed_too(
        self, queue: Queue, redis_client: Any
    ) -> None:
        late = queue.add("work")
        queue.revoke(late)
        redis_client.hset(f"glide:{{etl}}:job:{late}", "timestamp", "1600000000000")
        ids = [job_id or "" for job_id in queue.add_many([NewJob("work") for _ in range(3000)])]
        queue.retry(late)
        assert len(queue.cancel([ids[0], late, ids[-1]]).cancelled) == 3
        assert redis_client.xlen("glide:{etl}:stream") == len(ids) - 2

    def test_nodes_and_their_dependencies_are_cancelled_with_their_flow(
        self, queue: Queue, flows: FlowProducer, dump: Dump
    ) -> None:
        flows.submit(flow(flow_node("a")), flow_id="f")
        plain = queue.add("work")
        before = dump()
        with pytest.raises(JobStateConflict, match="cancel the flow"):
            queue.cancel([plain, "f~a"], cascade=True)
        assert dump() == before

    def test_a_dependent_in_another_queue_is_named(self, clients: Clients, queue: Queue) -> None:
        parent = clients.queue(NEAR).add("report", delay=3600)
        child = queue.add("work", parent=JobRef(NEAR, parent))
        with pytest.raises(HasDependents, match=f"of queue {NEAR}"):
            queue.cancel([child], cascade=True)

    def test_a_dependency_that_is_added_meanwhile_ends_it_and_is_reported(
        self, clients: Clients, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ids, late = [queue.add("work") for _ in range(30)], queue.add("work")
        other, asked = clients.queue("etl"), [0]

        def ask_late(call: Any) -> Any:
            asked[0] += 1
            if asked[0] == 2:
                other.depends_on(late, ids[:1])
            return ask(call)

        monkeypatch.setattr(dependencies, "ask", ask_late)
        with pytest.raises(HasDependents, match="25 jobs were cancelled before") as caught:
            queue.cancel(ids)
        assert (caught.value.job_id, caught.value.dependent) == (ids[0], late)
        assert state(queue, ids[0]) == JobState.WAITING

    def test_too_many_are_refused(self, queue: Queue) -> None:
        a = queue.add("work")
        for _ in range(200):
            queue.depends_on(queue.add("work"), [a])
        with pytest.raises(InvalidJob, match=r"more than 200 .* Fix: first cancel jobs"):
            queue.cancel([a], cascade=True)
        assert state(queue, a) == JobState.WAITING
        with pytest.raises(InvalidJob, match="at most 100"):
            queue.cancel(map(str, range(101)))
