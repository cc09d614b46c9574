"""What is read of a ledger whose writers are killed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from glidemq_orchestrate.testing.chaos.ledger import Ledger, LedgerReader

if TYPE_CHECKING:
    from pathlib import Path


def test_a_part_of_a_line_is_no_entry_and_spoils_none(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    one, other, reader = Ledger(path, "one"), Ledger(path, "other"), LedgerReader(path)
    one.write("begin", job="a")
    whole = path.read_bytes()
    os.truncate(path, 24)  # what the kernel leaves of a process that is killed in its call
    assert list(reader.new()) == []
    other.write("begin", job="b")
    other.write("end", job="b")
    assert [(entry["role"], entry["kind"], entry["job"]) for entry in reader.new()] == [
        ("other", "begin", "b"), ("other", "end", "b"),
    ]  # fmt: skip
    with path.open("ab") as file:
        file.write(whole[:-1])
    assert list(reader.new()) == []
    with path.open("ab") as file:
        file.write(whole[-1:])
    assert [entry["job"] for entry in reader.new()] == ["a"]
    for ledger in (one, other):
        ledger.close()
