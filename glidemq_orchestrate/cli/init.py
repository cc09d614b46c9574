"""``glidemq init``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from glidemq_orchestrate.cli.shell import AsJson, print_json, print_text, reports_errors
from glidemq_orchestrate.errors import ConfigurationError

PROJECT: Final = Path(__file__).parents[1] / "project"
_SUFFIX: Final = ".txt"  # so that the files are not modules of this package
_NEXT: Final = """\
Next, in {folder}:

  glidemq server                                       # in a separate terminal
  export GLIDEMQ_URL=valkey://127.0.0.1:6379           # in the others
  glidemq worker --app steps --queue etl               # restart it after changing steps.py
  glidemq flow submit nightly.yaml --id nightly-1
  glidemq flow show nightly-1

dag.py runs the flow from Airflow, definitions.py from Dagster; test_steps.py is a test for pytest."""


@reports_errors
def init(
    folder: Annotated[Path, typer.Argument(help="Directory for the files; created if missing.")] = Path(),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that exist.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a small working project: steps, a flow, an Airflow DAG, Dagster definitions, a test.

    If one of the files exists, nothing is written unless --overwrite is given.
    """
    files = {
        file.name.removesuffix(_SUFFIX): file.read_text(encoding="utf-8")
        for file in sorted(PROJECT.glob(f"*{_SUFFIX}"))
    }
    try:
        existing = [name for name in files if (folder / name).exists()]
        if existing and not overwrite:
            raise ConfigurationError(
                f"{folder} already has {', '.join(existing)}. Fix: name another folder, or use --overwrite"
            )
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as exc:
        raise ConfigurationError(f"cannot write to {folder}: {exc.strerror or exc}") from exc
    if as_json:
        print_json({"folder": str(folder), "files": list(files)})
        return
    print_text(f"Wrote {', '.join(files)}.\n\n{_NEXT.format(folder=folder.resolve())}", lines=True)
