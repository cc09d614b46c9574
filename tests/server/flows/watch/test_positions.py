"""A reader continues after any position, in any process."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from glidemq_orchestrate import FlowProducer
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.flows import NodeChange
from tests.builders import flow, node
from tests.server.flows.watch.changes import DIAMOND, LONG, Change, check, last_states, layers

if TYPE_CHECKING:
    from tests.conftest import RunWorker
    from tests.server.conftest import Record


def test_a_reader_that_continues_after_any_change_gets_the_rest_once(
    flows: FlowProducer, run_worker: RunWorker, recorder: type[Record]
) -> None:
    spec = layers(4, 8, ("etl", "bi"))
    found = flows.submit(spec)
    run_worker(["etl", "bi"], {"work": recorder()}, concurrency=3)
    dice, changes = random.Random(7), list[Change]()
    position: str | None = None
    while not changes or isinstance(changes[-1], NodeChange):
        watching = flows.get(found.id).watch(after=position, timeout=LONG)
        for _, change in zip(range(dice.randrange(1, 9)), watching, strict=False):
            changes.append(change)
            position = change.position
    check(spec, changes)
    assert set(last_states(changes).values()) == {"completed"}


def test_another_process_continues_from_the_stored_position(
    url: str, flows: FlowProducer, run_worker: RunWorker
) -> None:
    held = threading.Event()
    run_worker(["etl"], {"work": lambda ctx: ctx.node in ("a", "b") or held.wait(30)}, concurrency=1)
    found = flows.submit(flow(node("a"), node("b", "a"), node("c", "b")))
    changes: list[Change] = []
    for change in found.watch(timeout=LONG):
        changes.append(change)
        if last_states(changes).get("b") == "completed":
            break
    held.set()
    code = (
        "import sys; from glidemq_orchestrate import FlowProducer\n"
        "flow = FlowProducer(sys.argv[1]).get(sys.argv[2])\n"
        "for c in flow.watch(after=sys.argv[3]): print(getattr(c, 'node', 'flow'), c.state)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, url, found.id, changes[-1].position],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[-2:] == ["c completed", "flow completed"]
    assert not [line for line in lines if line.startswith(("a ", "b "))]


def test_a_retry_is_reported_to_readers_that_continue(
    flows: FlowProducer, run_worker: RunWorker, recorder: type[Record]
) -> None:
    record = recorder("b")
    run_worker(["etl"], {"work": record})
    found = flows.submit(DIAMOND)
    first = list(found.watch(timeout=LONG))
    record.broken.clear()
    found.retry_failed()
    rest = list(found.watch(after=first[-1].position, timeout=LONG))
    assert last_states(rest) == {"b": "completed", "d": "completed"}
    assert rest[-1].state == "completed"


def test_a_position_is_short_and_belongs_to_its_flow(
    flows: FlowProducer, run_worker: RunWorker, recorder: type[Record]
) -> None:
    run_worker(["etl"], {"work": recorder()}, concurrency=16)
    found = flows.submit(layers(40, 10))
    positions = [change.position for change in found.watch(timeout=LONG)]
    assert max(map(len, positions)) < 1_000
    assert len(set(positions)) == len(positions)
    other = flows.submit(DIAMOND)
    with pytest.raises(ConfigurationError, match=f"belongs to flow {found.id}"):
        other.watch(after=positions[0])
    for broken in ("", "0-0", "1.eJw.", positions[0][:-4] + "!", "1..1a"):
        with pytest.raises(ConfigurationError, match="not a position of a watched flow"):
            other.watch(after=broken)
