"""The results of a flow that has completed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg


class CompletedInvocation(dg.PipesClientCompletedInvocation):
    """What the jobs of a step have reported.

    Args:
        session: The session of the step.
        metadata: For every result.
        is_whole: Every node has completed. Where one was skipped, no asset counts as materialized of which
            nothing was reported.
    """

    def __init__(self, session: dg.PipesSession, metadata: Mapping[str, Any], *, is_whole: bool) -> None:
        super().__init__(session, metadata=metadata)
        self._step, self._is_whole = session.context, is_whole

    def get_results(self, *, implicit_materializations: bool = True) -> Sequence[dg.PipesExecutionResult]:
        """The results, to be yielded or returned by the step.

        Args:
            implicit_materializations: Whether selected assets count as materialized of which nothing was
                reported, if every node has completed.
        """
        results = super().get_results(implicit_materializations=implicit_materializations and self._is_whole)
        if self._step.has_assets_def:
            self._let_skippable_be_missing(results)
        return results

    def _let_skippable_be_missing(self, results: Sequence[dg.PipesExecutionResult]) -> None:
        """Dagster demands every selected output of a Pipes session, also of assets that may be skipped.

        Take that demand back when nothing else is missing: there is no public way.
        """
        given = {result.asset_key for result in results if isinstance(result, dg.MaterializeResult)}
        skippable = {spec.key for spec in self._step.assets_def.specs if spec.skippable}
        checks = {(one.asset_key, one.check_name) for one in results if isinstance(one, dg.AssetCheckResult)}
        wanted = {(key.asset_key, key.name) for key in self._step.selected_asset_check_keys}
        step: Any = self._step.get_step_execution_context()
        if self._step.selected_asset_keys - given <= skippable and wanted <= checks:
            step._requires_typed_event_stream = False  # noqa: SLF001
