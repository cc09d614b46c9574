"""Budgets that a Node flow producer set for its jobs: checked before a run, charged after it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, Literal

from glidemq_orchestrate._ops.queue.usage import usage_of
from glidemq_orchestrate._protocol.queue import budget
from glidemq_orchestrate.wire.call import Op, ask
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import parsed_object

PAUSE_MS: Final = 86_400_000


def check(budget_key: str) -> Op[Literal["go", "fail", "pause"]]:
    """Whether a job of this budget may run; otherwise what its producer chose for it."""
    if (yield from ask(budget.check_budget(budget_key))) != "exceeded":
        return "go"
    (wish,) = yield from ask(budget.budget_fields(budget_key, "onExceeded"))
    return "pause" if wish == "pause" else "fail"


def charge(queue: QueueKeys, job_id: str, budget_key: str) -> Op[None]:
    """Charge the usage of a completed job. Not repeatable: a second charge counts again."""
    usage = yield from usage_of(queue, job_id)
    if usage is None:
        return
    wire = usage.to_wire()
    tokens, costs = wire.get("tokens", {}), wire.get("costs", {})
    fields = yield from ask(budget.budget_fields(budget_key, "tokenWeights", "maxTokens", "maxCosts"))
    weights, max_tokens, max_costs = (text or "{}" for text in fields)
    weighted = _weighted(tokens, weights) or wire.get("totalTokens", 0)
    yield from ask(
        budget.record_usage(
            budget_key,
            json.dumps(tokens),
            json.dumps(costs),
            weighted,
            wire.get("totalCost", 0),
            max_tokens,
            max_costs,
        )
    )


def _weighted(tokens: Mapping[str, float], weights: str) -> float:
    """The sum of tokens times weight; a weight that is missing, negative or not a number is 1."""
    known = parsed_object(weights)

    def weight(category: str) -> float:
        value = known.get(category)
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
            return float(value)
        return 1.0

    return sum(count * weight(category) for category, count in tokens.items())
