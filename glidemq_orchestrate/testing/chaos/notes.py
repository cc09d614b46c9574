"""The limits of the report of a campaign."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from glidemq_orchestrate.testing.chaos.checker import Book, marks
from glidemq_orchestrate.testing.chaos.ledger import LedgerEntry


def notes(book: Book, calm: LedgerEntry, functions: Sequence[str], planned: int) -> list[str]:
    """Notes about abandoned runs, marks that do not count, functions never called, and unmarked effects."""
    made = []
    if (played := len(book.played)) < planned:
        made.append(f"stopped after {played} of {planned} runs: the others were not completed")
    made += [
        f"{count} marks of {name} were made outside a handler, and do not count. Fix: pass ctx=ctx; "
        "functions in effects do not count in batch handlers"
        for name, count in book.unknown.items()
    ]
    called = {name for of_node in book.calls.values() for name in of_node}
    made += [
        f"{function} was never called"
        for function in functions
        if function.partition(":")[2] not in called | book.unknown.keys()
    ]
    for node, runs in book.runs[calm["flow"]].items():
        for name in marks(runs).keys() - book.calls.get((calm["flow"], node), Counter()).keys():
            completed = [
                run["flow"] for run in book.played if run["nodes"].get(node, ("",))[0] == "completed"
            ]
            without = sum(name not in marks(book.runs[flow][node]) for flow in completed)
            if without:
                made.append(
                    f"{node} completed without a mark of {name} in {without} of {len(completed)} runs: its "
                    "worker was killed between the effect and the mark, or the step records the effect "
                    "before it happens"
                )
    return made
