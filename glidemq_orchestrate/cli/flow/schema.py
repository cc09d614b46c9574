"""``glidemq flow schema``."""

from __future__ import annotations

from glidemq_orchestrate.cli.shell import print_text, reports_errors


@reports_errors
def schema() -> None:
    """Print the JSON Schema of flow files, for editors and CI."""
    from glidemq_orchestrate.flows.forms.file import schema_text  # noqa: PLC0415  imports pydantic

    print_text(schema_text(), lines=True, end="")
