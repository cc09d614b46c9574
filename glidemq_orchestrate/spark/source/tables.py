"""The tables and their columns: Spark and Arrow types, and the meaning of each column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

NAME: Final = "glidemq"
"""Of the data source."""

Type = Literal["string", "int", "bigint", "boolean", "timestamp", "map<string,string>", "array<string>"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column. Times are UTC with milliseconds; what is unknown, or not set, is null."""

    name: str
    type: Type
    meaning: str


def _columns(text: str) -> tuple[Column, ...]:
    found = []
    for line in text.strip().splitlines():
        name, kind, meaning = (part.strip() for part in line.split(None, 2))
        found.append(Column(name, kind, meaning))  # type: ignore[arg-type]  # as written below
    return tuple(found)


TABLES: Final[Mapping[str, tuple[Column, ...]]] = {
    "jobs": _columns("""
queue string the queue
job_id string the id, unique in its queue
name string the handler that runs it
state string as in the life cycle of jobs: waiting, active, delayed, completed, failed and so on
data string the payload as JSON
result string the result of the handler, as JSON
failed_reason string why the last attempt failed; stays after a later success
attempts_made int attempts that have failed so far
max_attempts int the max number of attempts
lost_attempts int attempts that were lost with their worker
progress string what the handler last reported, as JSON
priority int 1 runs first, 0 last
ordering_key string the key whose jobs run in order
delay_ms bigint the delay with which it was added, in milliseconds
created_at timestamp when it was added
started_at timestamp when the last attempt began
finished_at timestamp when it completed or finally failed
expires_at timestamp it is not started after this
worker string the worker of this package that runs it, or ran it last
flow_id string the flow of which it is a node
generation int the generation of the flow
node string the node of the flow
schedule string the schedule that added it
parent_queue string the queue of a job that waits for it
parent_id string the id of that job
revoked boolean whether it was revoked
broken boolean whether data or result is not JSON (then both are null), or the stored value is not a job
"""),
    "flows": _columns("""
flow_id string the id of the flow
generation int 0 for the first generation of the id
name string the name of its specification
home string the queue that holds the flow
state string staging, running, completed, failed, cancelled or unknown
reason string the first failure that is not ignored, or why it was cancelled
labels map<string,string> its labels
idempotency_key string the key of the submit or restart that began the generation
total int the number of its nodes
completed int nodes that have completed
failed int nodes that have failed, or could not run
skipped int nodes that were skipped
open int nodes that have not ended
created_at timestamp when this generation was submitted
finished_at timestamp when it ended
superseded_by int the generation that took its place; null for the current one
broken boolean whether parts of what is stored cannot be read
"""),
    "nodes": _columns("""
flow_id string the id of the flow
generation int the generation of the flow
flow_name string the name of its specification
flow_state string the state of the flow
home string the queue that holds the flow
node string the name of the node, unique in the flow
job string the handler that runs it
queue string the queue of its job
job_id string the id of its job
state string as in jobs, and skipped
attempts int attempts that were started since the node last started over
reruns int how often the node has started over
worker string the worker of this package that runs it, or ran it last
failed_reason string why its last attempt failed, also before a later success; or why it was skipped
after array<string> the nodes that it depends on
progress string what the handler last reported, as JSON
created_at timestamp when its job was created: with the flow, or when it was added to it
queued_at timestamp when it last joined the waiting jobs; null if it did not, or by priority or lifo
started_at timestamp when the last attempt began
finished_at timestamp when it ended
broken boolean whether its place in the flow or its state cannot be read
"""),
    "elements": _columns("""
flow_id string the id of the flow
generation int the generation of the flow
node string the name of the array
position bigint the position of the element in the array, from 0
result string the result of the handler, as JSON
"""),
    "events": _columns("""
queue string the queue
event_id string the position in the stream of the queue
at timestamp when the server stored it
kind string what happened: added, active, completed, failed, flow.completed and so on
job_id string the job; null for events of flows and of the whole queue
flow_id string the flow, of flow events
generation int its generation, of flow events
fields map<string,string> everything else, as stored
"""),
}


def ddl(table: str) -> str:
    """The schema of a table, with a comment for each column."""
    return ", ".join(f"{one.name} {one.type} COMMENT '{one.meaning}'" for one in TABLES[table])


def record_batch(table: str, rows: Sequence[Sequence[Any]]) -> Any:
    """Rows as a record batch; times are whole milliseconds since the epoch."""
    import pyarrow as pa  # noqa: PLC0415  of an extra

    types = {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "boolean": pa.bool_(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
        "array<string>": pa.list_(pa.field("element", pa.string())),
    }
    columns = TABLES[table]
    arrays = []
    for column, values in zip(columns, zip(*rows, strict=True), strict=True):
        cells: Sequence[Any] = values
        if column.type == "timestamp":
            cells = [None if ms is None else ms * 1000 for ms in values]
        arrays.append(pa.array(cells, types[column.type]))
    return pa.RecordBatch.from_arrays(
        arrays, schema=pa.schema([pa.field(column.name, types[column.type]) for column in columns])
    )
