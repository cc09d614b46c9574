"""What becomes of a node by the ends of its dependencies, written down apart from the code that decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

ENDS = ("completed", "failed", "skipped")


def counts_as(end: str, policy: str | None) -> str:
    """What the end of a dependency is to a node with this policy for it."""
    if policy == "ignore" and end == "failed":
        return "completed"
    if policy == "skip" and end == "failed":
        return "skipped"
    return "completed" if policy == "all_done" else end


def verdicts(rule: str, ends: Iterable[str]) -> set[str]:
    """What may be decided when all dependencies have ended: one thing, or two where the order decides."""
    found = Counter(ends)
    done, failed, skipped = (found[end] for end in ENDS)
    if rule == "all_success" and failed and skipped:
        return {"failed", "skipped"}
    return {_VERDICT[rule](done, failed, skipped)}


_VERDICT: dict[str, Callable[[int, int, int], str]] = {
    "all_success": lambda _, f, k: "failed" if f else "skipped" if k else "run",
    "all_failed": lambda c, _, k: "skipped" if c + k else "run",
    "all_skipped": lambda c, f, _: "skipped" if c + f else "run",
    "all_done": lambda *_: "run",
    "all_done_min_one_success": lambda c, _, k: "skipped" if k else "run" if c else "failed",
    "one_success": lambda c, f, _: "run" if c else "failed" if f else "skipped",
    "one_failed": lambda _, f, __: "run" if f else "skipped",
    "one_done": lambda c, f, _: "run" if c + f else "skipped",
    "none_failed": lambda _, f, __: "failed" if f else "run",
    "none_failed_min_one_success": lambda c, f, _: "failed" if f else "run" if c else "skipped",
    "none_skipped": lambda _, __, k: "skipped" if k else "run",
    "always": lambda *_: "run",
}
