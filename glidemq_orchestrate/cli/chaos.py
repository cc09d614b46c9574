"""``glidemq chaos run``: which steps of a flow are not safe to repeat?"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from glidemq_orchestrate.cli.shell import (
    AllowImport,
    AsJson,
    console,
    errors,
    reports_errors,
    say_json,
    seconds,
)
from glidemq_orchestrate.cli.source import FLOW_HELP, Arguments, flow_of
from glidemq_orchestrate.foundation.named import find, with_directory
from glidemq_orchestrate.testing.chaos.report import ChaosReport, Finding
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
    app: Annotated[
        list[str],
        typer.Option(help="Module with handlers: package.module or package.module:name. Repeatable."),
    ],
    arguments: Arguments = None,
    runs: Annotated[int, typer.Option(help="How often the flow runs.", min=1)] = 100,
    seed: Annotated[int, typer.Option(help="Decides what is struck; the same seed strikes the same.")] = 1,
    only_run: Annotated[
        list[int] | None,
        typer.Option("--run", help="Only the run of this number, to see it again. Repeatable."),
    ] = None,
    effect: Annotated[
        list[str] | None,
        typer.Option(help="Function whose calls must not be repeated: module:function. Repeatable."),
    ] = None,
    strike: Annotated[
        list[Act] | None, typer.Option(help="Only strike in this way. Repeatable; all by default.")
    ] = None,
    check: Annotated[
        str | None,
        typer.Option(help="Function called with the outcome of each run; it raises when something is wrong."),
    ] = None,
    at_once: Annotated[
        int, typer.Option(help="Runs under way at the same time; 1 if runs share files or tables.", min=1)
    ] = 4,
    workers: Annotated[int, typer.Option(help="Worker processes.", min=1)] = 3,
    concurrency: Annotated[int, typer.Option(help="Jobs that a worker runs at the same time.", min=1)] = 10,
    queue: Annotated[
        list[str] | None, typer.Option(help="A queue of nodes that handlers add. Repeatable.")
    ] = None,
    allow_import: AllowImport = None,
    lease: Annotated[
        float,
        typer.Option(
            parser=seconds(1), metavar="SECONDS", help="Time without a heartbeat until others take over jobs."
        ),
    ] = 2,
    timeout: Annotated[
        float, typer.Option(parser=seconds(1), metavar="SECONDS", help="Longest time for one run.")
    ] = 300,
    keep: Annotated[
        Path | None, typer.Option(help="New folder to keep the ledger, the logs and the data in.")
    ] = None,
    may_fail: Annotated[bool, typer.Option("--may-fail", help="Nodes may fail without strikes.")] = False,
    may_differ: Annotated[
        list[str] | None,
        typer.Option(help="Part of results that each attempt may have of its own: $.path. Repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a flow many times while its workers and the server are killed; exit code 1 if a step is not safe.

    The handlers run for real, on a server of their own: point them at systems made for tests. A run without
    strikes comes first; then each node is struck before, during and after its handler, and after each effect:
    its worker is killed, or stopped for longer than its lease, the server is killed, or all connections are
    cut. Reported are effects that two attempts had, results that differ between attempts, and nodes that end
    in another way when they run again.

    Ctrl-C ends it with a report of the runs that have ended, and exit code 130 if that has no finding; a
    second Ctrl-C ends it at once.

    Mark an effect with `effect("charge", order_id)` from glidemq_orchestrate.testing.chaos where it has just
    happened, or name a function with --effect.
    """
    from glidemq_orchestrate.testing.chaos.campaign import run_chaos  # noqa: PLC0415  no other command needs it

    with_directory()
    with _stopping_at_signals() as stopped, errors.status("starting") as status:
        report = run_chaos(
            flow_of(file, arguments), app=app, runs=runs, seed=seed, only=only_run or (),
            effects=effect or (), acts=strike or tuple(Act),
            check=find(check, "check").function if check else None, at_once=at_once, workers=workers,
            concurrency=concurrency, queues=queue or (), allow_import=allow_import or (),
            lease=timedelta(seconds=lease),
            timeout=timedelta(seconds=timeout), keep=keep, may_fail=may_fail, may_differ=may_differ or (),
            progress=status.update if errors.is_terminal else _slowly(), stopped=stopped.is_set,
        )  # fmt: skip
    if as_json:
        say_json(asdict(report) | {"safe": report.is_safe})
    else:
        _show(report)
    if not report.is_safe:
        raise typer.Exit(1)
    if stopped.is_set():
        raise typer.Exit(INTERRUPTED)


@contextmanager
def _stopping_at_signals() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM set the event; the second one ends at once, and nothing is left behind either."""
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        if stopped.is_set():
            signal.default_int_handler(number, frame)
        stopped.set()
        errors.print("Stopping: the report is of the runs that have ended.")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _slowly() -> Callable[[str], object]:
    """Prints progress to standard error each half minute: a log is no terminal."""
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
            again = f"To see it again{node}: the same command with {options}"
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


def _grouped(report: ChaosReport) -> dict[tuple[str, str], list[Finding]]:
    """The findings by step and kind, in the order of the steps."""
    order = [step.step for step in report.steps]
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in sorted(report.findings, key=lambda one: order.index(one.step) if one.step else -1):
        groups.setdefault((finding.step, finding.kind), []).append(finding)
    return groups
