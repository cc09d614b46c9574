"""Reads the ledger of a campaign: the actions of each attempt, and the resulting problems."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from glidemq_orchestrate.testing.chaos import promises
from glidemq_orchestrate.testing.chaos.book import Book, job_of
from glidemq_orchestrate.testing.chaos.ledger import LedgerEntry
from glidemq_orchestrate.testing.chaos.report import ChaosFinding, FindingKind, StepReport
from glidemq_orchestrate.testing.chaos.strikes import Calm


@dataclass(slots=True)
class HandlerRun:
    """One run of a handler."""

    begin: LedgerEntry
    end: LedgerEntry | None = None
    effects: list[LedgerEntry] = field(default_factory=list)

    @property
    def returned(self) -> Mapping[str, str] | None:
        """Digests of the parts of its result; None if it did not return."""
        return None if self.end is None or self.end["error"] else self.end["leaves"]


class CampaignBook(Book):
    """The ledger of a campaign, also by flow and node.

    Attributes:
        handled: The runs of handlers by flow and node.
        played: The flows that have ended, by number.
        ended_workers: The exit code of each worker that ended by itself, and the runs under way in it.
    """

    def __init__(self, entries: Sequence[LedgerEntry]) -> None:
        self.handled: dict[str, dict[str, list[HandlerRun]]] = defaultdict(lambda: defaultdict(list))
        self.strikes: list[LedgerEntry] = []
        self.calls: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self.unknown: Counter[str] = Counter()
        self.played: list[LedgerEntry] = []
        self.ended_workers: list[tuple[int, list[HandlerRun]]] = []
        self._by_run: dict[str, HandlerRun] = {}
        self._newest: dict[tuple[int, str], HandlerRun] = {}
        super().__init__(sorted(entries, key=lambda entry: int(entry["at"])))

    def add(self, entry: LedgerEntry) -> None:
        """Add an entry that was written after all others."""
        super().add(entry)
        kind = entry["kind"]
        if kind == "begin" and entry["flow"]:
            run = HandlerRun(entry)
            self.handled[entry["flow"]][entry["node"]].append(run)
            self._by_run[entry["run"]] = self._newest[entry["pid"], entry["job"]] = run
        elif kind == "end" and entry["run"] in self._by_run:
            self._by_run[entry["run"]].end = entry
        elif kind == "effect" and (entry["owner"], entry["job"]) in self._newest:
            self._newest[entry["owner"], entry["job"]].effects.append(entry)
        elif kind == "call":
            self.calls[entry["flow"], entry["node"]][entry["name"]] += 1
        elif kind == "unknown":
            self.unknown[entry["name"]] += 1
        elif kind == "strike":
            self.strikes.append(entry)
        elif kind == "played":
            self.played.append(entry)
        elif kind == "ended worker":
            open_runs = (run for (pid, _), run in self._newest.items() if pid == entry["worker"])
            self.ended_workers.append((entry["code"], [run for run in open_runs if run.end is None]))

    def suspects(self) -> list[tuple[int, HandlerRun | None]]:
        """The exit code of each worker that ended by itself, and the run that may have ended it.

        Of several runs, the suspect is of the step whose runs were most often under way when a worker ended.
        """
        amid = Counter(_step(run) for _, runs in self.ended_workers for run in runs)
        all_runs = Counter(_step(run) for run in self._by_run.values())

        def share(run: HandlerRun) -> float:
            return amid[_step(run)] / all_runs[_step(run)]

        return [(code, max(runs, key=share, default=None)) for code, runs in self.ended_workers]


def _step(run: HandlerRun) -> str:
    return str(run.begin["name"])


def calm_of(book: CampaignBook, flow_id: str) -> dict[str, Calm]:
    """The behaviour of each node in the run without strikes, by its last attempt."""
    return {
        node: Calm(
            ((runs[-1].end or runs[-1].begin)["at"] - runs[-1].begin["at"]) / 1e9,
            len(runs[-1].effects),
            book.calls[flow_id, node].total(),
        )
        for node, runs in book.handled[flow_id].items()
    }


def findings(book: CampaignBook, calm: LedgerEntry, may_differ: Sequence[str] = ()) -> list[ChaosFinding]:
    """The problems: the first of each kind, step and detail, with the number of runs that had it.

    ``may_differ``: paths in results that may differ between attempts.
    """
    counted: Counter[tuple[FindingKind, str, str]] = Counter()
    first: dict[tuple[FindingKind, str, str], ChaosFinding] = {}
    suspects = book.suspects()
    for played in book.played:
        seen = set()
        for finding in _of_run(book, played, calm, suspects, may_differ):
            is_effect = finding.kind in (FindingKind.EFFECT_REPEATED, FindingKind.STALE_EFFECT)
            same = finding.detail.partition(" ")[0] if is_effect else finding.detail
            key = (finding.kind, finding.step, same)
            first.setdefault(key, finding)
            seen.add(key)
        counted.update(seen)
    for code, run in suspects:
        if run is None:
            key = (FindingKind.WORKER_ENDED, "", f"with exit code {code} while it ran no handler")
            first.setdefault(key, ChaosFinding(*key[:2], "", key[2], 0))
            counted[key] += 1
    return [
        ChaosFinding(one.kind, one.step, one.node, one.detail, one.run, counted[key])
        for key, one in first.items()
    ]


def steps(book: CampaignBook, found: Sequence[ChaosFinding]) -> list[StepReport]:
    """The strikes and problems of each step."""
    numbers = {played["flow"] for played in book.played}
    nodes: dict[str, set[str]] = defaultdict(set)
    runs, repeats, effects = Counter[str](), Counter[str](), Counter[str]()
    step_of: dict[str, str] = {}
    for flow in sorted(book.handled, key=lambda flow: flow in numbers):
        for node, of_node in book.handled[flow].items():
            step = step_of[node] = _step(of_node[0])
            nodes[step].add(node)
            if flow in numbers:
                runs[step] += len(of_node)
                repeats[step] += len(of_node) - 1
                effects[step] += sum(len(run.effects) for run in of_node)
    strikes: dict[str, Counter[str]] = defaultdict(Counter)
    for strike in book.strikes:
        strikes[step_of[strike["node"]]][strike["moment"]] += 1
    return [
        StepReport(
            step, len(nodes[step]), runs[step], repeats[step], dict(strikes[step]), effects[step],
            sorted({finding.kind for finding in found if finding.step == step}),
        )
        for step in nodes
    ]  # fmt: skip


def _of_run(
    book: CampaignBook,
    played: LedgerEntry,
    calm: LedgerEntry,
    suspects: Sequence[tuple[int, HandlerRun | None]],
    may_differ: Sequence[str],
) -> Iterator[ChaosFinding]:
    flow, number = played["flow"], played["number"]
    for node, runs in book.handled[flow].items():
        step = _step(runs[0])
        undisturbed = book.handled.get(calm["flow"], {}).get(node, [])
        seen = (
            *_effects(runs), *_keys(runs, undisturbed), *_results(runs, may_differ),
            *_promises(book, runs),
        )  # fmt: skip
        for kind, detail in seen:
            yield ChaosFinding(kind, step, node, detail, number)
    for code, run in suspects:
        if run is not None and run.begin["flow"] == flow:
            detail = f"with exit code {code}"
            yield ChaosFinding(FindingKind.WORKER_ENDED, _step(run), run.begin["node"], detail, number)
    yield from _missing(book, played, calm)
    yield from _ends(book, played, calm)
    if played["check"]:
        yield ChaosFinding(FindingKind.CHECK_FAILED, "", "", played["check"], number)


def _effects(runs: Sequence[HandlerRun]) -> Iterator[tuple[FindingKind, str]]:
    """Effects of two attempts, and effects that the older of two attempts repeated last."""
    marks: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    for attempt, run in enumerate(runs):
        for effect in run.effects:
            marks[effect["name"], effect["key"]][attempt] = effect["began"]
    for (name, key), times in marks.items():
        if len(times) > 1:
            yield FindingKind.EFFECT_REPEATED, _mark(name, key)
        if any(older > newer for older, newer in pairwise(times[attempt] for attempt in sorted(times))):
            yield FindingKind.STALE_EFFECT, _mark(name, key)


def _keys(runs: Sequence[HandlerRun], undisturbed: Sequence[HandlerRun]) -> Iterator[tuple[FindingKind, str]]:
    """Effects of several attempts with more keys than without strikes."""
    known = marks(undisturbed)
    for name, keys in marks(runs).items():
        attempts = sum(any(effect["name"] == name for effect in run.effects) for run in runs)
        if name in known and len(keys) > len(known[name]) and attempts > 1:
            yield FindingKind.KEY_CHANGES, name


def marks(runs: Sequence[HandlerRun]) -> Mapping[str, set[str]]:
    """The keys of the effects of these attempts, by name."""
    found: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        for effect in run.effects:
            found[effect["name"]].add(effect["key"])
    return found


def _results(runs: Sequence[HandlerRun], may_differ: Sequence[str]) -> Iterator[tuple[FindingKind, str]]:
    """Results that differ between two attempts: the path of the first difference."""
    returned = [_compared(run.returned, may_differ) for run in runs if run.returned is not None]
    for other in returned[1:]:
        if other != returned[0]:
            differing = sorted(
                path for path in {**returned[0], **other} if returned[0].get(path) != other.get(path)
            )
            yield FindingKind.RESULT_DIFFERS, f"at {differing[0]}"
            return


def _compared(returned: Mapping[str, str], may_differ: Sequence[str]) -> Mapping[str, str]:
    """A result without the parts that may differ, and everything below them."""
    inside = tuple(f"{path}{sign}" for path in may_differ for sign in ".[")
    return {
        path: leaf
        for path, leaf in returned.items()
        if path not in may_differ and not path.startswith(inside)
    }


def _promises(book: CampaignBook, runs: Sequence[HandlerRun]) -> Iterator[tuple[FindingKind, str]]:
    for job in {job_of(run.begin) for run in runs}:
        accepted = book.accepted[job]
        if any(promises.attempted_once(book, [job])):
            yield FindingKind.PROMISE_BROKEN, "one attempt of the node ran twice"
        if any(promises.accepted_once(accepted)):
            yield FindingKind.PROMISE_BROKEN, "two ends of the node were accepted"
        if any(any(promises.accepted_from_last(book, end["run"])) for end in accepted):
            yield FindingKind.PROMISE_BROKEN, "an end was accepted from an attempt that another had replaced"


def _missing(book: CampaignBook, played: LedgerEntry, calm: LedgerEntry) -> Iterator[ChaosFinding]:
    """Functions that a node calls without strikes, but in no attempt of this run, although it completed."""
    for name, (state, _) in played["nodes"].items():
        wanted = book.calls.get((calm["flow"], name), Counter())
        if state == "completed" == calm["nodes"].get(name, ("",))[0]:
            for function in wanted.keys() - book.calls.get((played["flow"], name), Counter()).keys():
                step = _step(book.handled[played["flow"]][name][0])
                yield ChaosFinding(FindingKind.EFFECT_MISSING, step, name, function, played["number"])


def _ends(book: CampaignBook, played: LedgerEntry, calm: LedgerEntry) -> Iterator[ChaosFinding]:
    """Nodes that ended differently than without strikes, although their dependencies ended alike."""
    if not played["ended"]:
        strikes = sum(strike["flow"] == played["flow"] for strike in book.strikes)
        detail = f"{played['state']} after {played['seconds']:.0f} s and {strikes} strikes"
        yield ChaosFinding(FindingKind.NOT_ENDED, "", "", detail, played["number"])
        return
    ends = dict.fromkeys(calm["nodes"], ("missing", ())) | dict(played["nodes"])
    differing = {
        name: (state, after)
        for name, (state, after) in ends.items()
        if state != calm["nodes"].get(name, (state,))[0]
    }
    for name, (state, after) in differing.items():
        if not differing.keys() & set(after):
            runs = book.handled[played["flow"]].get(name, [])
            known = runs or book.handled[calm["flow"]].get(name, [])
            step = _step(known[0]) if known else ""
            error = runs[-1].end["error"] if runs and runs[-1].end else ""
            detail = f"{state}{f' with {error}' if error else ''}, {calm['nodes'][name][0]} without strikes"
            yield ChaosFinding(FindingKind.ENDS_DIFFERENTLY, step, name, detail, played["number"])


def _mark(name: str, key: str) -> str:
    return f"{name} {key}".rstrip()


def notes(book: CampaignBook, calm: LedgerEntry, functions: Sequence[str], planned: int) -> list[str]:
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
    for node, runs in book.handled[calm["flow"]].items():
        for name in marks(runs).keys() - book.calls.get((calm["flow"], node), Counter()).keys():
            completed = [
                run["flow"] for run in book.played if run["nodes"].get(node, ("",))[0] == "completed"
            ]
            without = sum(name not in marks(book.handled[flow][node]) for flow in completed)
            if without:
                made.append(
                    f"{node} completed without a mark of {name} in {without} of {len(completed)} runs: its "
                    "worker was killed between the effect and the mark, or the step records the effect "
                    "before it happens"
                )
    return made
