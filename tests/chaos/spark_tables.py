"""What steps of Spark have published: read with Spark, in a process of its own, as a user would."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from glidemq_orchestrate import JobState
from glidemq_orchestrate.flows import NodeStatus
from glidemq_orchestrate.spark import NotPublished, read_published
from glidemq_orchestrate.spark.sessions.warm import warm_session
from glidemq_orchestrate.spark.setup.spark_settings import MASTER_VARIABLE
from tests.chaos.book import RoundBook
from tests.chaos.plan import FlowPlan
from tests.chaos.spark_steps import ROWS
from tests.processes import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS: Final = 300.0
ROOT: Final = Path(__file__).parents[2]


class Tables:
    """Notes the completed steps that have published, and finds what of it cannot be read, or should not.

    Args:
        book: The ledger.
    """

    def __init__(self, book: RoundBook) -> None:
        self._book = book
        self._published: list[dict[str, Any]] = []

    def note(self, planned: FlowPlan, nodes: Iterable[NodeStatus], results: Mapping[str, Any]) -> None:
        """Note the steps of a flow that have published something."""
        for node in nodes:
            result = results.get(node.name) or {}
            if node.state is JobState.COMPLETED and "own" in result:
                self._published.append({"place": f"{planned.flow_id}~{node.name}", **result})

    def lost(self) -> Iterator[str]:
        """What is wrong with the tables, in sentences."""
        if not self._published:
            return
        ended = [name for name, entry in self._book.ends.items() if not entry["error"]]
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
            json.dump({"published": self._published, "ended": ended}, file)
            file.flush()
            command = [sys.executable, "-m", "tests.chaos.spark_tables", file.name]
            done = run(command, timeout=SECONDS, cwd=ROOT, env=os.environ | {MASTER_VARIABLE: "local[1]"})
        if done.returncode:
            yield f"the tables cannot be read: {done.stderr[-1_000:]}"
        yield from done.stdout.splitlines()


def wrong(spark: SparkSession, published: Iterable[Mapping[str, Any]], ended: Iterable[str]) -> Iterator[str]:
    """What is wrong, in sentences.

    Args:
        spark: A session.
        published: The results of the completed steps, with the names of their partitions.
        ended: The runs that have ended well: those of others must not be seen.
    """
    good, runs = set(ended), dict[str, str]()
    for one in published:
        location = one["own"]["published"]["location"]
        runs[one["place"]] = one["run"]
        for what, source in (("its result", one["own"]), ("its location", location)):
            if (found := _runs(spark, source)) != {one["place"]: {one["run"]: ROWS}}:
                yield f"{one['place']} was published by {one['run']}, and {what} shows {found}"
        shared = one["shared"]
    for place, rows in _runs(spark, shared["published"]["location"]).items():
        wanted = runs.pop(place, None)
        if wanted is not None and rows != {wanted: ROWS}:
            yield f"{place} was published by {wanted}, and the shared table shows {rows}"
        elif list(rows.values()) != [ROWS] or not good.issuperset(rows):
            yield f"the shared table shows {rows} of {place}, which was not accepted"
    yield from (f"{place} is published, and is not in the shared table" for place in runs)


def _runs(spark: SparkSession, source: Any) -> dict[str, dict[str, int]]:
    """How many rows of which run there are, by place."""
    found: dict[str, dict[str, int]] = defaultdict(dict)
    with suppress(NotPublished):
        for place, run_of, count in read_published(spark, source).groupBy("place", "run").count().collect():
            found[place][run_of] = count
    return dict(found)


def main(file: str) -> None:
    """Print what is wrong, by what the file tells."""
    about = json.loads(Path(file).read_text(encoding="utf-8"))
    try:
        for text in wrong(warm_session.get(), about["published"], about["ended"]):
            sys.stdout.write(f"{text}\n")
    finally:
        warm_session.stop()


if __name__ == "__main__":
    main(sys.argv[1])
