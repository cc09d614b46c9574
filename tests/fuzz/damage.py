"""Nearly good values: a tree of lists and dicts with something wrong somewhere in it."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.fuzz.shown import shown


@st.composite
def damaged(draw: st.DrawFn, value: Any, odd: st.SearchStrategy[Any], most: int = 3) -> Any:
    """The value with one to ``most`` of its parts replaced, removed, added, repeated or moved."""
    for _ in range(draw(st.integers(1, most))):
        value = _once(draw, value, odd)
    return value


def _once(draw: st.DrawFn, value: Any, odd: st.SearchStrategy[Any]) -> Any:
    if not isinstance(value, dict | list | tuple) or not value or draw(st.integers(0, 9)) == 0:
        return draw(_replaced(value, odd))
    parts = value if isinstance(value, dict) else dict(enumerate(value))
    key = draw(st.sampled_from(list(parts)))
    if draw(st.integers(0, 9)) < 6:
        parts = {**parts, key: _once(draw, parts[key], odd)}
    else:
        parts = draw(_rearranged(parts, key, odd))
    return dict(parts) if isinstance(value, dict) else type(value)(parts.values())


def _replaced(value: Any, odd: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Something else instead of a value."""
    similar: list[Any] = [[value], {"a": value}, shown(value)[:100], [value, value]]
    if isinstance(value, str):
        similar += [value + value, value[: len(value) // 2], value + "\ud83d", value.upper(), [*value][:9]]
    if isinstance(value, int) and abs(value) < 2**64:
        similar += [-value, value + 1, float(value), str(value), value * 10**20]
    return odd | st.sampled_from(similar)


@st.composite
def _rearranged(
    draw: st.DrawFn, parts: dict[Any, Any], key: Any, odd: st.SearchStrategy[Any]
) -> dict[Any, Any]:
    """The parts of a value with one of them removed, renamed, added, repeated or shuffled."""
    how = draw(st.sampled_from(["remove", "rename", "add", "repeat", "turn", "empty", "cut"]))
    rest = {name: part for name, part in parts.items() if name != key}
    changed: dict[Any, Any] = {}
    match how:
        case "remove":
            changed = rest
        case "rename":
            changed = rest | {draw(st.sampled_from([f"{key}x", str(key).upper(), ""])): parts[key]}
        case "add":
            changed = parts | {draw(st.sampled_from(["more", "name", "id", "data", "0"])): draw(odd)}
        case "repeat":
            changed = parts | {
                f"{key} again {number}": parts[key] for number in range(draw(st.integers(1, 9)))
            }
        case "turn":
            changed = dict(zip(parts, reversed(parts.values()), strict=True))
        case "cut":
            changed = dict(list(parts.items())[: len(parts) // 2])
    return changed
