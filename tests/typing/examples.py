"""The Python examples of the pages, as files for a type checker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = [
    ROOT / "README.md",
    ROOT / "docker" / "README.md",
    *sorted((ROOT / "providers").glob("*/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
_BLOCK: Final = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)

# What a reader of the page has at that point: imports of earlier examples, and objects that the text names.
_CLIENTS: Final = """from glidemq_orchestrate import Flow, FlowProducer, FlowSpec, Owner
flow: Flow
flows: FlowProducer
spec: FlowSpec
"""
_SERVED: Final = """from glidemq_orchestrate import EmbeddedServer, Worker
server: EmbeddedServer
worker: Worker
"""
_QUEUE: Final = """from glidemq_orchestrate import Flow, Queue
flow: Flow
queue: Queue
job_id = january_id = february_id = report_id = ""
"""
_SPARK: Final = """from typing import Any
from glidemq_orchestrate import Context
from pyspark.sql import SparkSession
spark: SparkSession
"""
GIVEN: Final = {
    "docs/how-to/monitoring.md": _QUEUE,
    "providers/airflow/README.md": """from typing import Any
from airflow.sdk import Asset, task
from airflow_provider_glidemq.sensors.glidemq import GlideMQJobSensor
from airflow_provider_glidemq.sensors.glidemq import GlideMQQueueSensor
from airflow_provider_glidemq.operators.glidemq import GlideMQSparkOperator
orders: Asset
def send_page(text: str) -> None: ...
def send_invoices(events: Any) -> None: ...
""",
    "providers/dagster/README.md": """import dagster as dg
from dagster_glidemq import GlideMQResource, PipesGlideMQClient, glidemq_flow_assets
from glidemq_orchestrate import ArrayNode, FlowNode, FlowSpec
spec: FlowSpec
""",
    "docs/how-to/arrays.md": """from glidemq_orchestrate import Client, Context, Flow, Worker
client: Client
worker: Worker
flow: Flow
async def links_of(page: str) -> list[str]: return []
""",
    "docs/how-to/chaos.md": "def count_rows(run: str) -> int: return 5\n",
    "docs/how-to/connections.md": "secret: str\n",
    "docs/how-to/growing-flows.md": f"""from glidemq_orchestrate import Context, FlowNode
{_SERVED}def find_items() -> list[int]: return []
async def find_many() -> list[int]: return []
""",
    "docs/how-to/handlers.md": _SERVED,
    "docs/how-to/owners-and-watching.md": _CLIENTS,
    "docs/how-to/published-data.md": _SPARK,
    "docs/how-to/queues.md": _SERVED + _QUEUE,
    "docs/how-to/running-again.md": f"{_CLIENTS}fixed: FlowSpec\n",
    "docs/how-to/shards.md": "from glidemq_orchestrate import EmbeddedServer\nserver: EmbeddedServer\n",
    "docs/how-to/spark-data-source.md": _SPARK,
    "docs/how-to/spark-steps.md": _SPARK,
}


def examples() -> Iterator[tuple[str, int, str]]:
    """The page, the line in it and the text of each example."""
    for page in PAGES:
        text = page.read_text("utf-8")
        for found in _BLOCK.finditer(text):
            yield str(page.relative_to(ROOT)), text.count("\n", 0, found.start(1)) + 1, found[1]


def write_examples(folder: Path) -> list[Path]:
    """Write each example into a file whose name and line numbers are those of its page."""
    files = []
    for page, line, code in examples():
        given = GIVEN.get(page, "")
        file = folder / f"{re.sub(r'[^a-z0-9]', '_', page.lower())}_{line}.py"
        file.write_text(given + "\n" * (line - 1 - given.count("\n")) + code, "utf-8")
        files.append(file)
    return files
