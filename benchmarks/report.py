"""The results as tables."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.compare import CONCURRENCIES
from benchmarks.rivals import OURS, Contender
from benchmarks.stage import Stage
from glidemq_orchestrate.cli.shell import summary_table

Figures = dict[str, dict[str, float]]


def machine(stage: Stage, node: str | None) -> str:
    """A description of the machine, with the version of Node.js."""
    version = (
        subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout if node else ""
    )
    return f"Node.js {version.strip() or 'none'}; {machine_now(stage.client)}"


def machine_now(client: Any) -> str:
    """A description of the machine and the server, and how busy the machine is now."""
    info = client.info("server")
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    return (
        f"{os.cpu_count()} cores, {platform.machine()}; Python {platform.python_version()}; "
        f"Valkey {info.get('valkey_version', info['redis_version'])}, {allocator(client)}, "
        f"append-only file each second; load before the start {load}"
    )


def allocator(client: Any) -> str:
    """The allocator of a server on this machine: it decides a fifth of what a job costs."""
    maps = Path(f"/proc/{client.info('server')['process_id']}/maps")
    if maps.exists() and "libjemalloc" in maps.read_text():
        return "jemalloc"
    return str(client.info("memory")["mem_allocator"])


def show(
    out: Console, where: str, contenders: list[Contender], figures: Figures, grown: list[dict[str, Any]]
) -> None:
    """Print everything."""
    out.print(f"\n{where}")
    for contender in contenders:
        out.print(f"  {' '.join(contender.pins) or contender.name}: {contender.settings}", markup=False)
    names = [contender.name for contender in contenders]
    out.print("\n", jobs_table(figures, names))
    out.print("\n", ratios_table(figures, names))
    flowing = [contender.name for contender in contenders if contender.flows and contender is not OURS]
    out.print("\n", _flows_table(figures, flowing))
    busy = [{"of": one.name} | row for one in contenders for row in shares(figures, one)]
    out.print("\n", summary_table("Where the time of a drained job goes", busy))
    out.print("\n", summary_table("Flows of growing size", grown))


def shares(
    figures: Figures, contender: Contender, concurrencies: Sequence[int] = CONCURRENCIES
) -> list[dict[str, Any]]:
    """CPU time per job of each side, and how busy each was: the one near 100 % is the bottleneck."""
    rows = []
    for concurrency in concurrencies:
        part = {
            side: figures.get(f"{side} at {concurrency}, µs/job", {}).get(contender.name, 0.0)
            for side in ("wall", "server", "worker", "handler")
        }
        if wall := part["wall"]:
            rows.append(
                {
                    "concurrency": concurrency,
                    "wall_us": wall,
                    "server_us": part["server"],
                    "library_us": part["worker"] - part["handler"],
                    "handler_us": part["handler"],
                    "server_busy_%": 100 * part["server"] / wall,
                    "worker_busy_%": 100 * part["worker"] / wall,
                }
            )
    return rows


def _is_job(figure: str) -> bool:
    return figure.endswith("jobs/s") or "finished" in figure


def _is_flow(figure: str) -> bool:
    return figure.startswith(("submit", "complete"))


def jobs_table(figures: Figures, names: Iterable[str]) -> Table:
    """The figures of jobs, with a row for each contender."""
    wanted = [figure for figure in figures if _is_job(figure)]
    table = _table("Jobs (medians)", (figure.replace(", ", "\n") for figure in wanted))
    for name in names:
        table.add_row(name, *(_number(figures[figure].get(name)) for figure in wanted))
    return table


def ratios_table(figures: Figures, names: Iterable[str]) -> Table:
    """How many times better ours is at jobs than each of the others, and than the best of them."""
    wanted = [figure for figure in figures if _is_job(figure)]
    table = _table("Ours to each of the others", (figure.partition(", ")[0] for figure in wanted))
    rivals = [name for name in names if name != OURS.name]
    for label, others in [*((name, [name]) for name in rivals), ("the best of them", rivals)]:
        table.add_row(label, *(_ratio(figure, figures[figure], others) for figure in wanted))
    return table


def _flows_table(figures: Figures, rivals: list[str]) -> Table:
    table = _table("Flows, worker at 50 (medians)", [OURS.name, *rivals, "ours to the best"])
    for figure, found in figures.items():
        if _is_flow(figure):
            cells = [_number(found.get(name)) for name in (OURS.name, *rivals)]
            table.add_row(figure, *cells, _ratio(figure, found, rivals))
    return table


def _table(title: str, columns: Iterable[str]) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 3, 0, 0))
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _ratio(figure: str, found: dict[str, float], rivals: Iterable[str]) -> str:
    """How many times better ours is than the best rival."""
    others = [found[name] for name in rivals if name in found]
    if not others or OURS.name not in found:
        return "-"
    ours = found[OURS.name]
    return f"{ours / max(others):.1f}x" if figure.endswith("/s") else f"{min(others) / ours:.1f}x"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"
