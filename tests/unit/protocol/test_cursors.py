"""Where a SCAN may stand: what is continued later goes by no cursor, which ends with its process."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SCAN = re.compile(r"""['"][HSZ]?SCAN['"]""")

# Reads that begin again when another process answers, and one that ends in the call that begins it.
IN_FUNCTIONS = {"glidemq_orchestrate/read.lua", "glidemq/list_jobs.lua"}
# Read to the end by the operation that begins: the keys of a server, the nodes of a flow, dependencies.
BY_CLIENTS = {"reads.py", "stalled.py", "portable.py", "acl.py"}


def test_functions_scan_only_to_read() -> None:
    lua = ROOT / "lua"
    found = {
        str(path.relative_to(lua)) for path in lua.rglob("*.lua") if SCAN.search(path.read_text("utf-8"))
    }
    assert found == IN_FUNCTIONS
    reading = (lua / "glidemq_orchestrate/read.lua").read_text("utf-8")
    registered = re.findall(r"redis\.register_function.*", reading)
    assert registered
    assert all("flags = { 'no-writes' }" in line for line in registered)
    assert len(SCAN.findall(reading)) == reading.count("resume(args[3])")


def test_clients_scan_only_where_it_is_known() -> None:
    protocol = ROOT / "glidemq_orchestrate/_protocol"
    found = {path.name for path in protocol.rglob("*.py") if SCAN.search(path.read_text("utf-8"))}
    assert found == BY_CLIENTS
    elsewhere = [
        path.name
        for room in ("_ops", "cli")
        for path in (ROOT / "glidemq_orchestrate" / room).rglob("*.py")
        if SCAN.search(path.read_text("utf-8"))
    ]
    assert elsewhere == []
