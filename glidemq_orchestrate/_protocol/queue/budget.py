"""Calls about the budget of a Node flow producer."""

from __future__ import annotations

from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, command, function


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
