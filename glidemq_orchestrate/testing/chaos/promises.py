"""The promises that every ledger is checked against; each function yields a sentence per violation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from glidemq_orchestrate.testing.chaos.book import Book, JobKey
from glidemq_orchestrate.testing.chaos.ledger import LedgerEntry


def attempted_once(book: Book, jobs: Iterable[JobKey] | None = None) -> Iterator[str]:
    """An attempt runs once, and no other has its number; of all jobs, or of some."""
    for job in book.runs if jobs is None else jobs:
        runs = book.runs.get(job, ())
        yield from (f"the attempt {run} ran twice" for run in runs if run in book.repeated)
        epochs = [epoch for run in runs if (epoch := book.begins[run].get("epoch"))]
        if len(set(epochs)) < len(epochs):
            yield f"job {job[1]} has two activations of the same number"


def accepted_once(accepted: Sequence[LedgerEntry], allowed: int = 1) -> Iterator[str]:
    """The end of a job is accepted once in each of its rounds; a sentence for each time beyond."""
    yield from (f"accepted {times} times" for times in range(allowed + 1, len(accepted) + 1))


def accepted_from_last(book: Book, run: str | None) -> Iterator[str]:
    """An end is not accepted from an attempt that another has replaced."""
    for other in book.successors(run):
        yield f"the result of {run} was accepted, and {other} had taken the job over"


def given_accepted(
    book: Book,
    begin: LedgerEntry,
    given: Mapping[str, str],
    accepted: Mapping[str, Collection[str | None]],
    awaited: Collection[str],
) -> Iterator[str]:
    """A node begins after its dependencies, with their accepted results.

    Args:
        book: The ledger.
        begin: Of an attempt at the node.
        given: The runs whose results it got, by dependency.
        accepted: The runs whose results may be given, by dependency.
        awaited: The dependencies whose results must be given.
    """
    for name, run in given.items():
        if run not in accepted.get(name, ()):
            yield f"got the result {run} of {name}, which is not the accepted one"
        elif run in book.ends and book.ends[run]["at"] > begin["at"]:
            yield f"began before {name} had ended"
    for name in sorted(set(awaited).difference(given)):
        yield f"got results of {sorted(given)}, and {name} has completed"
