"""The uncommon policies of a node, as one text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from glidemq_orchestrate.flows.checked import CheckedNode
from glidemq_orchestrate.flows.rules import OnFailure, Rule


@dataclass(frozen=True, slots=True)
class Policy:
    """Uncommon settings, stored apart from the table. See ``CheckedNode``."""

    rule: Rule = Rule.ALL_SUCCESS
    on_failure: OnFailure | None = None
    policies: Mapping[str, OnFailure] | None = None
    queue_timeout_ms: int | None = None
    delay_ms: int = 0

    @classmethod
    def read(cls, text: str) -> Policy:
        """Read the stored form."""
        wire: dict[str, Any] = json.loads(text)
        on_failure = wire.get("on_failure")
        return cls(
            Rule(wire.get("rule", Rule.ALL_SUCCESS)),
            OnFailure(on_failure) if on_failure else None,
            {name: OnFailure(policy) for name, policy in wire.get("policies", {}).items()},
            wire.get("queue_timeout"),
            wire.get("delay", 0),
        )


ORDINARY: Final = Policy()


def policy_text(node: CheckedNode) -> str:
    """The stored form of the policy of a node; '' for an ordinary one."""
    wire: dict[str, Any] = {
        "rule": node.rule,
        "on_failure": node.on_failure,
        "policies": dict(node.policies),
        "queue_timeout": node.queue_timeout_ms,
        "delay": node.delay_ms,
    }
    stored = {name: value for name, value in wire.items() if value}
    return json.dumps(stored) if stored else ""
