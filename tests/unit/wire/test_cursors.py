"""Where a SCAN may stand: what is continued later goes by no cursor, which ends with its process."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SCAN = re.compile(r"""['"][HSZ]?SCAN['"]|(?<!def )\b(?:fields|members)_page\(""")

# Reads that begin again when another process answers, and one that ends in the call that begins it.
IN_FUNCTIONS = {
    "glidemq/list_jobs.lua",
    "glidemq_orchestrate/functions/gmo_node_inputs.lua",
    "glidemq_orchestrate/parts/read.lua",
}
READERS = ("gmo_flow_nodes", "gmo_flow_results", "gmo_node_inputs")
# Read to the end by the operation that begins: the keys of a server, the nodes of a flow, those that failed,
# dependencies, schedules, failed elements of an array.
BY_CLIENTS = {
    "call.py",
    "elements.py",
    "entries.py",
    "graph.py",
    "lost_jobs.py",
    "node_table.py",
    "pages.py",
    "reading.py",
    "tables.py",
    "upkeep.py",
}
# The list of rights, and the table of commands that go to one server.
NO_CALLS = {"findings.py", "slots.py"}


def test_functions_scan_only_to_read() -> None:
    lua = ROOT / "lua"
    found = {
        str(path.relative_to(lua)) for path in lua.rglob("*.lua") if SCAN.search(path.read_text("utf-8"))
    }
    assert found == IN_FUNCTIONS
    readers = [(lua / f"glidemq_orchestrate/functions/{name}.lua").read_text("utf-8") for name in READERS]
    assert all("flags = { 'no-writes' }" in text for text in readers)
    reading = "".join([(lua / "glidemq_orchestrate/parts/read.lua").read_text("utf-8"), *readers])
    assert len(SCAN.findall(reading)) == reading.count("resume(args[3])")
    users = {path.stem for path in lua.rglob("*.lua") if "L.read.each_node" in path.read_text("utf-8")}
    assert users <= {"read", *READERS}


def test_clients_scan_only_where_it_is_known() -> None:
    core = ROOT / "glidemq_orchestrate"
    found = {path.name for path in core.rglob("*.py") if SCAN.search(path.read_text("utf-8"))}
    assert found == BY_CLIENTS | NO_CALLS
