"""What a user should know to judge the report of a campaign."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from glidemq_orchestrate.testing.chaos.checker import Book, marks
from glidemq_orchestrate.testing.chaos.ledger import Entry


def notes(book: Book, calm: Entry, functions: Sequence[str], wanted: int) -> list[str]:
    """Runs that were given up, marks that do not count, functions never called, effects without a mark."""
    made = []
    if (played := len(book.played)) < wanted:
        made.append(f"stopped after {played} of {wanted} runs: the others were not tried to the end")
    made += [
        f"{count} marks of {name} were made outside of a handler, and do not count: pass ctx=ctx; in batch "
        "handlers, functions given by name do not count"
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
                    "worker was killed between the effect and the mark, or the step notes that it was done "
                    "before it does it"
                )
    return made
