"""Each row of docs/how-to/troubleshooting.md: the command names a prepared fault, and the remedy ends it."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from typer.testing import CliRunner

from glidemq_orchestrate import Flow, FlowNode, FlowProducer, FlowSpec, JobState, Queue
from glidemq_orchestrate.attempts import workers
from glidemq_orchestrate.cli import app
from glidemq_orchestrate.errors import ServerBusy
from tests.builders import node
from tests.processes import spawned

if TYPE_CHECKING:
    from tests.conftest import Eventually, RunWorker

PAGE: Final = Path(__file__).parents[3] / "docs" / "how-to" / "troubleshooting.md"
STEPS: Final = """
import time
from pathlib import Path
from glidemq_orchestrate import Handlers

handlers = Handlers()

@handlers.handler
def work(ctx):
    Path(ctx.data).touch()
    time.sleep(60)
"""


@dataclass
class Incident:
    """A server with trouble, and what a person has to deal with it."""

    url: str
    flows: FlowProducer
    start: RunWorker
    eventually: Eventually
    folder: Path
    patch: pytest.MonkeyPatch

    def __call__(self, line: str) -> str:
        """What a command prints."""
        env = {"GLIDEMQ_URL": self.url, "COLUMNS": "200"}
        return CliRunner().invoke(app, line.split(), env=env).output

    def submit(self, *nodes: FlowNode) -> Flow:
        return self.flows.submit(FlowSpec("n", nodes), flow_id="ID", require_workers=False)

    def work(self, **options: Any) -> None:
        self.start(["etl"], {"work": lambda ctx: 1}, url=self.url, **options)


@pytest.fixture
def incident(  # noqa: PLR0917  fixtures
    url: str,
    flows: FlowProducer,
    run_worker: RunWorker,
    eventually: Eventually,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Incident:
    return Incident(url, flows, run_worker, eventually, tmp_path, monkeypatch)


def no_worker(glidemq: Incident) -> None:
    flow = glidemq.submit(node("a"))
    assert "no live worker serves queue etl" in glidemq("flow show ID")
    glidemq.work()
    assert flow.wait(timeout=20).state == "completed"


def paused(glidemq: Incident) -> None:
    glidemq.work()
    glidemq("queue pause etl")
    flow = glidemq.submit(node("a"))
    assert "queue etl is paused" in glidemq("flow show ID")
    glidemq("queue resume etl")
    assert flow.wait(timeout=20).state == "completed"


def limited(glidemq: Incident) -> None:
    release = threading.Event()
    glidemq.start(["etl"], {"work": lambda ctx: release.wait(30)}, url=glidemq.url)
    with Queue("etl", glidemq.url) as queue:
        queue.set_global_concurrency(1)
        flow = glidemq.submit(node("a"), node("b"))
        glidemq.eventually(lambda: "at most 1 run at once" in glidemq("flow show ID"), timeout=10)
        queue.set_global_concurrency(None)
    release.set()
    assert flow.wait(timeout=20).state == "completed"


def lost_worker(glidemq: Incident) -> None:
    glidemq.patch.setattr(workers, "LOST_MS", 1_500)
    (glidemq.folder / "steps.py").write_text(STEPS)
    flow = glidemq.submit(node("a", data=str(glidemq.folder / "began")))
    words = ["worker", "--app", "steps", "--queue", "etl", "--url", glidemq.url, "--lease", "3"]
    with spawned([sys.executable, "-m", "glidemq_orchestrate", *words], cwd=glidemq.folder):
        glidemq.eventually((glidemq.folder / "began").exists, timeout=60)
    glidemq.eventually(lambda: "silent for" in glidemq("queue show etl"), timeout=20)
    (line,) = (line for line in glidemq("queue show etl").splitlines() if "worker" in line)
    assert line.rstrip().endswith("s: 1 job")
    glidemq.eventually(lambda: "s: 1 job stalled for" in glidemq("queue show etl"), timeout=20)
    glidemq.patch.undo()
    glidemq.work(lease=3)
    assert flow.wait(timeout=30).state == "completed"


def blocked_worker(glidemq: Incident) -> None:
    glidemq.patch.setattr(workers, "LOST_MS", 1_500)

    async def blocking(ctx: Any) -> None:
        time.sleep(6)  # noqa: ASYNC251  the fault

    glidemq.start(["etl"], {"work": blocking}, url=glidemq.url)
    flow = glidemq.submit(node("a"))
    glidemq.eventually(lambda: "silent for" in glidemq("queue show etl"), timeout=20)
    (line,) = (line for line in glidemq("queue show etl").splitlines() if "worker" in line)
    assert line.rstrip().endswith("s: 1 job"), "not stalled"
    assert flow.wait(timeout=30).state == "completed"


def not_supervised(glidemq: Incident) -> None:
    glidemq.submit(node("a"))
    assert "glidemq supervise --queue etl" in glidemq("flow show ID")
    words = ["supervise", "--queue", "etl", "--url", glidemq.url]
    with spawned([sys.executable, "-m", "glidemq_orchestrate", *words]):
        glidemq.eventually(lambda: "glidemq supervise" not in glidemq("flow show ID"), timeout=60)


def another_prefix(glidemq: Incident) -> None:
    with FlowProducer(glidemq.url, prefix="other") as flows:
        flows.submit(FlowSpec("n", [node("a")]), flow_id="ID", require_workers=False)
    assert "no flow ID on this server" in glidemq("flow show ID")
    assert "No flows yet" in glidemq("flow list")
    assert "ID" in glidemq("flow list --prefix other")


def expired(glidemq: Incident) -> None:
    file = glidemq.folder / "n.yaml"
    file.write_text("name: n\nqueue: etl\nretention: 100ms\nnodes: [{name: a, job: work}]\n")
    glidemq.patch.chdir(glidemq.folder)
    glidemq.work()
    glidemq("flow submit n.yaml --id ID --no-wait")
    gone = "the jobs of flow ID were removed after its retention"
    glidemq.eventually(lambda: gone in glidemq("flow show ID"), timeout=20)
    assert "Fix: glidemq flow submit FILE --id ID --restart" in glidemq("flow show ID")
    assert "Fix: glidemq flow submit FILE --id ID --restart" in glidemq("flow submit n.yaml --id ID")
    assert "generation 1" in glidemq("flow submit n.yaml --id ID --restart --no-wait")


STANDS_STILL: Final[dict[str, Callable[[Incident], None]]] = {
    "a node waits, no live worker serves its queue": no_worker,
    "the queue is paused": paused,
    "a node waits for its order, rate or concurrency limit": limited,
    "a node stays active, and `glidemq queue show QUEUE` names a silent worker": lost_worker,
    "a node stays active, and `glidemq queue show QUEUE` names a silent worker whose job has not stalled": (
        blocked_worker
    ),
    "the flow is not supervised": not_supervised,
    "`no flow ID on this server`": another_prefix,
    "`the jobs of flow ID were removed after its retention`": expired,
}


def test_every_cause_of_a_flow_that_stands_still_has_a_test() -> None:
    part = PAGE.read_text("utf-8").split("## A flow stands still")[1].split("\n## ")[0]
    causes = [line.split("|")[1].strip() for line in part.splitlines() if line.startswith("| ")][1:]
    assert causes == list(STANDS_STILL)


@pytest.mark.parametrize("cause", STANDS_STILL)
def test_a_flow_stands_still(cause: str, incident: Incident) -> None:
    STANDS_STILL[cause](incident)


def test_every_command_of_the_page_is_run_by_a_test() -> None:
    """Here, or by the tests of Airflow; those of Spark run one that is run here, too."""
    more = Path("tests/providers/airflow/test_troubleshooting.py")
    tests = "".join(path.read_text("utf-8") for path in (Path(__file__), PAGE.parents[2] / more))
    found = re.findall(r"(?:`|\$ )((?:glidemq|airflow) [^`\n]+)", PAGE.read_text("utf-8"))
    assert len(found) > 15
    for command in found:
        line = command.replace("QUEUE", "etl").replace("NODE", "a").replace("FILE", "n.yaml")
        line = line.removeprefix("glidemq ")
        if "..." not in line:  # a worker
            assert line in tests, command


def test_a_node_failed(incident: Incident) -> None:
    def broken(ctx: Any) -> None:
        ctx.log("reading")
        raise ValueError("no rows")

    worker = incident.start(["etl"], {"work": broken}, url=incident.url)
    incident.submit(node("a")).wait(timeout=20)
    shown = incident("flow node ID a")
    assert "ValueError: no rows" in shown
    assert "reading" in shown
    assert "in broken" in shown, "the traceback"
    worker.stop()
    incident.work()
    assert "completed" in incident("flow retry ID")


def test_a_node_failed_because_of_its_data(incident: Incident) -> None:
    file = incident.folder / "n.yaml"
    incident.patch.chdir(incident.folder)
    incident.start(["etl"], {"work": lambda ctx: 1 / ctx.data}, url=incident.url)
    flow = "name: n\nqueue: etl\nnodes: [{name: a, job: work, data: %d}]\n"
    file.write_text(flow % 0)
    assert "ZeroDivisionError" in incident("flow submit n.yaml --id ID")
    assert "failed" in incident("flow retry ID")
    file.write_text(flow % 1)
    assert "completed" in incident("flow submit n.yaml --id ID --retry-failed")


def test_a_node_failed_as_no_worker_has_its_handler(incident: Incident) -> None:
    worker = incident.start(["etl"], {"old": lambda ctx: 1}, url=incident.url)
    incident.submit(node("a")).wait(timeout=20)
    assert "HandlerNotFound: no handler for job 'work'" in incident("flow node ID a")
    worker.stop()
    incident.work()
    assert "completed" in incident("flow retry ID")


def test_memory_is_full(incident: Incident, redis_client: Any) -> None:
    worker = incident.start(["etl"], {"work": lambda ctx: 1}, url=incident.url)
    with Queue("etl", incident.url) as queue:
        queue.add_and_wait("work", timeout=20)
        worker.stop()
        queue.add("work")
        redis_client.config_set("maxmemory", redis_client.info("memory")["used_memory"] // 2)
        try:
            with pytest.raises(ServerBusy, match=r"OOM .*Fix: raise maxmemory, or .*queue clean"):
                queue.add("work")
            (memory,) = (row for row in json.loads(incident("doctor --json")) if row["check"] == "memory")
            assert memory["verdict"] == "failed"
            assert "1" in incident("queue list")
            incident("queue clean etl --yes")
            assert queue.counts()[JobState.COMPLETED] == 0
        finally:
            redis_client.config_set("maxmemory", 0)


def test_memory_is_full_and_the_worker_is_gone(incident: Incident, redis_client: Any) -> None:
    """The next worker starts in spite of it, also on a queue that none has served, and is seen as alive."""
    flow = incident.submit(node("a"), node("b", "a", queue="spark"))
    redis_client.config_set("maxmemory", redis_client.info("memory")["used_memory"] // 2)
    try:
        incident.start(["etl", "spark"], {"work": lambda ctx: 1}, url=incident.url)
        assert flow.wait(timeout=20).state == "completed"
        assert len(json.loads(incident("queue show etl --json"))["workers"]) == 1
    finally:
        redis_client.config_set("maxmemory", 0)


def test_the_server_was_replaced(incident: Incident, redis_client: Any) -> None:
    incident.submit(node("a"))
    redis_client.function_flush()
    assert "not loaded" in incident("library status")
    incident("library load")
    assert "not loaded" not in incident("library status")
    incident.work()
    assert incident.flows.get("ID").wait(timeout=20).state == "completed"


def test_results_are_old(incident: Incident) -> None:
    incident.work()
    flow = incident.submit(node("a"))
    flow.wait(timeout=20)
    assert incident.submit(node("a")).generation == flow.generation
    assert len(json.loads(incident("flow history ID --json"))) == 1
    incident("flow restart ID")
    assert len(json.loads(incident("flow history ID --json"))) == 2


def test_two_versions_of_the_code_run(incident: Incident) -> None:
    for names in (["work"], ["work", "new"]):
        incident.start(["etl"], dict.fromkeys(names, lambda ctx: 1), url=incident.url)
    running = json.loads(incident("queue show etl --json"))["workers"]
    assert sorted(map(len, (one["handlers"] for one in running))) == [1, 2]
    assert all(one["started_at"] for one in running)
