"""All entries."""

from __future__ import annotations

from typing import Final

from tests.fuzz import addresses, calls, commands, constructors, flow_files, replies, stored
from tests.fuzz.entry import Entry

ENTRIES: Final[dict[str, Entry]] = {
    module.ENTRY.name: module.ENTRY
    for module in (flow_files, constructors, addresses, calls, replies, commands, stored)
}
