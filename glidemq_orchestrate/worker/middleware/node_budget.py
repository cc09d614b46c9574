"""Budgets that a Node flow producer set for its jobs: checked before a run, charged after it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, Literal

from glidemq_orchestrate.jobs.usage import usage_of
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, Op, ask, command, function
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import parsed_object

PAUSE_MS: Final = 86_400_000


def check_budget(budget_key: str) -> Call[str]:
    """``ok``, ``exceeded`` or ``no_budget``."""
    return function("glidemq_checkBudget", [budget_key], (), replies.text)


def budget_fields(budget_key: str, *names: str) -> Call[list[str | None]]:
    """Fields of a budget."""
    return command("HMGET", budget_key, *names, decode=list)


def record_usage(  # noqa: PLR0913, PLR0917  the arguments of one server call
    budget_key: str, tokens: str, costs: str, weighted: float, cost: float, max_tokens: str, max_costs: str
) -> Call[str]:
    """Add usage to a budget. Not repeatable."""
    args = (tokens, costs, weighted, cost, max_tokens, max_costs)
    return function("glidemq_recordUsageAndCheckBudget", [budget_key], args, replies.text)


def check(budget_key: str) -> Op[Literal["go", "fail", "pause"]]:
    """Whether a job of this budget may run; otherwise what its producer chose for it."""
    if (yield from ask(check_budget(budget_key))) != "exceeded":
        return "go"
    (wish,) = yield from ask(budget_fields(budget_key, "onExceeded"))
    return "pause" if wish == "pause" else "fail"


def charge(queue: QueueKeys, job_id: str, budget_key: str) -> Op[None]:
    """Charge the usage of a completed job. Not repeatable: a second charge counts again."""
    usage = yield from usage_of(queue, job_id)
    if usage is None:
        return
    wire = usage.to_wire()
    tokens, costs = wire.get("tokens", {}), wire.get("costs", {})
    fields = yield from ask(budget_fields(budget_key, "tokenWeights", "maxTokens", "maxCosts"))
    weights, max_tokens, max_costs = (text or "{}" for text in fields)
    weighted = _weighted(tokens, weights) or wire.get("totalTokens", 0)
    yield from ask(
        record_usage(
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
