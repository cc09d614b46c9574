"""The assets and checks of a step: those that are selected, and those that are not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import dagster as dg


@dataclass(frozen=True, slots=True)
class Reportable:
    """What a step may report, by the names that Pipes has for assets.

    Attributes:
        assets: The selected assets.
        checks: The selected checks, as asset and name.
        left_out: The other assets of the step.
        checks_left_out: The other checks of the step.
        is_op: The step has no assets.
    """

    assets: tuple[str, ...] = ()
    checks: frozenset[tuple[str, str]] = frozenset()
    left_out: frozenset[str] = frozenset()
    checks_left_out: frozenset[tuple[str, str]] = frozenset()
    is_op: bool = True

    @classmethod
    def of(cls, step: dg.OpExecutionContext) -> Self:
        """What a step may report."""
        if not step.has_assets_def:
            return cls()
        whole = step.assets_def
        selected, checks = step.selected_asset_keys, step.selected_asset_check_keys
        others = set(whole.node_keys_by_output_name.values()) - selected
        other_checks = {spec.key for spec in whole.node_check_specs_by_output_name.values()} - checks
        return cls(
            tuple(key.to_escaped_user_string() for key in sorted(selected)),
            _names(checks),
            frozenset(key.to_escaped_user_string() for key in others),
            _names(other_checks),
            is_op=False,
        )

    @property
    def all_assets(self) -> list[str]:
        """Every asset of the step."""
        return sorted({*self.assets, *self.left_out})

    def has(self, asset: str, check: str) -> bool:
        """Whether a report is about what is selected: an asset, or a check of it if that has a name."""
        return (asset, check) in self.checks if check else asset in self.assets

    def is_left_out(self, asset: str, check: str) -> bool:
        """Whether it is about something else of the step."""
        return (asset, check) in self.checks_left_out if check else asset in self.left_out


def _names(checks: Iterable[dg.AssetCheckKey]) -> frozenset[tuple[str, str]]:
    return frozenset((key.asset_key.to_escaped_user_string(), key.name) for key in checks)
