"""``glidemq chaos run``: finds the steps of a flow that are not safe to repeat."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from glidemq_orchestrate.cli.shell import (
    AllowImport,
    Apps,
    AsJson,
    console,
    errors,
    print_json,
    reports_errors,
    seconds,
)
from glidemq_orchestrate.cli.source import FLOW_HELP, Arguments, flow_of
from glidemq_orchestrate.foundation.functions import named_function, with_directory
from glidemq_orchestrate.testing.chaos.report import ChaosFinding, ChaosReport
from glidemq_orchestrate.testing.chaos.strikes import Act

chaos_app = typer.Typer(
    name="chaos", help="Find out which steps of a flow are not safe to repeat.", no_args_is_help=True
)

VERDICTS = {"safe": "green", "not safe": "bold red", "not repeated": "yellow"}
MAX_MARKS = 3
LOG_SECONDS = 30.0
INTERRUPTED: Final = 128 + signal.SIGINT


@chaos_app.callback()
def chaos() -> None:
    """Find out which steps of a flow are not safe to repeat."""


@chaos_app.command("run")
@reports_errors
def run(
    file: Annotated[str, typer.Argument(metavar="FLOW", help=FLOW_HELP)],
    app: Apps,
    arguments: Arguments = None,
    runs: Annotated[int, typer.Option(help="Number of runs of the flow.", min=1)] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the strikes: the same seed gives the same strikes.")] = 1,
    only_run: Annotated[
        list[int] | None,
        typer.Option("--run", help="Repeat only the run of this number. Repeatable."),
    ] = None,
    effect: Annotated[
        list[str] | None,
        typer.Option(help="Function whose calls must not be repeated, as module:function. Repeatable."),
    ] = None,
    strike: Annotated[
        list[Act] | None, typer.Option(help="Strike only in this way. Repeatable; default: all.")
    ] = None,
    check: Annotated[
        str | None,
        typer.Option(help="Function that checks the outcome of each run, and raises if it is wrong."),
    ] = None,
    at_once: Annotated[
        int,
        typer.Option(help="Maximum number of concurrent runs; use 1 if runs share files or tables.", min=1),
    ] = 4,
    workers: Annotated[int, typer.Option(help="Number of worker processes.", min=1)] = 3,
    concurrency: Annotated[
        int, typer.Option(help="Maximum number of concurrent jobs of a worker.", min=1)
    ] = 10,
    queue: Annotated[
        list[str] | None, typer.Option(help="Serve this queue too, for nodes that handlers add. Repeatable.")
    ] = None,
    allow_import: AllowImport = None,
    lease: Annotated[
        float,
        typer.Option(
            parser=seconds(1),
            metavar="DURATION",
            help="Let workers take jobs over after this long without a heartbeat.",
        ),
    ] = 2,
    timeout: Annotated[
        float, typer.Option(parser=seconds(1), metavar="DURATION", help="Maximum duration of a run.")
    ] = 300,
    keep: Annotated[
        Path | None, typer.Option(help="Keep the ledger, the logs and the data in this new folder.")
    ] = None,
    may_fail: Annotated[
        bool, typer.Option("--may-fail", help="Accept nodes that fail without strikes.")
    ] = False,
    may_differ: Annotated[
        list[str] | None,
        typer.Option(
            help="Accept results that differ between attempts in this part, such as $.path. Repeatable."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a flow many times while its workers and the server are killed. Exit code 1 if a step is not safe.

    The handlers run for real, against a separate server: use systems that are made for tests. The first run
    has no strikes. Then each node is struck before, during and after its handler, and after each effect: its
    worker is killed, or stopped for longer than its lease, the server is killed, or all connections are
    closed. The report lists effects of two attempts, results that differ between attempts, and nodes that end
    differently when they run again.

    Ctrl-C ends the command with a report of the runs that have ended, and exit code 130 if there are no
    findings. A second Ctrl-C ends it immediately.

    Mark an effect with `effect("charge", order_id)` from glidemq_orchestrate.testing.chaos right after it has
    happened, or name a function with --effect.
    """
    from glidemq_orchestrate.testing.chaos.campaign import run_chaos  # noqa: PLC0415  no other command needs it

    with_directory()
    with _stopping_at_signals() as stopped, errors.status("starting") as status:
        report = run_chaos(
            flow_of(file, arguments), app=app, runs=runs, seed=seed, only=only_run or (),
            effects=effect or (), acts=strike or tuple(Act),
            check=named_function(check, "check").function if check else None,
            at_once=at_once, workers=workers,
            concurrency=concurrency, queues=queue or (), allow_import=allow_import or (),
            lease=lease,
            timeout=timeout, keep=keep, may_fail=may_fail, may_differ=may_differ or (),
            progress=status.update if errors.is_terminal else _slowly(), stopped=stopped.is_set,
        )  # fmt: skip
    if as_json:
        print_json(asdict(report) | {"safe": report.is_safe})
    else:
        _show(report)
    if not report.is_safe:
        raise typer.Exit(1)
    if stopped.is_set():
        raise typer.Exit(INTERRUPTED)


@contextmanager
def _stopping_at_signals() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM set the event; a second signal ends the command immediately, without leftovers."""
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        if stopped.is_set():
            signal.default_int_handler(number, frame)
        stopped.set()
        errors.print("Stopping: the report will cover the runs that have ended.")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _slowly() -> Callable[[str], object]:
    """Prints progress to standard error every half minute: for logs."""
    due = [0.0]

    def show(text: str) -> None:
        if time.monotonic() >= due[0]:
            due[0] = time.monotonic() + LOG_SECONDS
            errors.print(Text(text))

    return show


def _show(report: ChaosReport) -> None:
    acted = ", ".join(f"{count} {act}" for act, count in report.strikes.items()) or "none"
    about = f"{report.runs} runs, seed {report.seed}, {report.seconds:.0f} s"
    console.print(Text(f"{report.flow}: {about}; strikes: {acted}"))
    console.print(_steps(report))
    for (step, kind), of_kind in _grouped(report).items():
        first = of_kind[0]
        runs = Counter({finding.detail: finding.count for finding in of_kind}).most_common(MAX_MARKS)
        details = ", ".join(f"{detail} ({count} of {report.runs} runs)" for detail, count in runs)
        more = f" and {len(of_kind) - MAX_MARKS} more" if len(of_kind) > MAX_MARKS else ""
        console.print(Text.assemble("\n", (step or report.flow, "bold"), f": {kind}: {details}{more}"))
        console.print(Padding(Text(f"{first.advice[0].upper()}{first.advice[1:]}."), (0, 2)))
        if first.run:
            node = f" at node {first.node}" if first.node else ""
            options = f"--seed {report.seed} --runs {report.planned} --run {first.run}"
            again = f"To repeat it{node}, run the same command with {options}"
            console.print(Padding(Text(again), (0, 2)))

    for note in report.notes:
        console.print(Text.assemble("\n", ("note", "yellow"), f": {note}"))


def _steps(report: ChaosReport) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("step", "nodes", "attempts", "repeats", "effects", "struck", ""):
        is_text = column in ("step", "struck", "")
        table.add_column(column, justify="left" if is_text else "right", overflow="fold")
    for step in report.steps:
        struck = ", ".join(f"{count} {moment}" for moment, count in step.strikes.items())
        counts = (step.nodes, step.runs, step.repeats, step.effects)
        verdict = Text(step.verdict, VERDICTS[step.verdict])
        table.add_row(Text(step.step), *map(str, counts), Text(struck), verdict)
    return table


def _grouped(report: ChaosReport) -> dict[tuple[str, str], list[ChaosFinding]]:
    """The findings by step and kind, in the order of the steps."""
    order = [step.step for step in report.steps]
    groups: dict[tuple[str, str], list[ChaosFinding]] = {}
    for finding in sorted(report.findings, key=lambda one: order.index(one.step) if one.step else -1):
        groups.setdefault((finding.step, finding.kind), []).append(finding)
    return groups
