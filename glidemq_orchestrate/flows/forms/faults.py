"""Says what is wrong in a flow file: the node by its name, the line, the text, and what to write instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from glidemq_orchestrate.flows.forms.yaml_text import composed, line_of
from glidemq_orchestrate.foundation.names import described
from glidemq_orchestrate.foundation.suggestions import nearest

SHOWN: Final = 10
PLACE_SHOWN: Final = 120
FAULT_SHOWN: Final = 300
TEXT_SHOWN: Final = 40
_UNKNOWN: Final = ("extra_forbidden", "unexpected_keyword_argument")
_DURATIONS: Final = ("time_delta_type", "time_delta_parsing")
_NUMBERS: Final = {
    "int_parsing": "whole number",
    "int_type": "whole number",
    "int_from_float": "whole number",
    "float_parsing": "number",
    "float_type": "number",
}
Place = Sequence[str | int]


def summary(
    exc: ValidationError, wire: Mapping[str, Any], fields: Mapping[str, Sequence[str]], text: str = ""
) -> str:
    """At most ten faults in a sentence each, and how many more there are.

    Args:
        exc: What the model of a flow file has found.
        wire: The flow that it was given.
        fields: The names of the fields of a ``flow``, of the elements of ``nodes``, of ``options`` ...
        text: The file, for the lines.
    """
    faults = exc.errors()
    root = composed(text) if text else None
    shown = [_fault(fault, wire, fields, root) for fault in faults[:SHOWN]]
    more = len(faults) - len(shown)
    return "; ".join([*shown, f"and {more:,} more errors"] if more else shown)


def _fault(fault: Any, wire: Mapping[str, Any], fields: Mapping[str, Sequence[str]], root: Any) -> str:
    kind = fault["type"]
    place = _in_the_file(fault["loc"], wire, is_missing=kind == "missing")
    line = line_of(root, place)
    where = _where(place[:-1] if kind in _UNKNOWN else place, wire)
    where = ", ".join(part for part in (f"line {line}" if line else "", where) if part)
    return f"{where[:PLACE_SHOWN]}: {_why(fault, place, fields)[:FAULT_SHOWN]}"


def _where(place: Place, wire: Mapping[str, Any]) -> str:
    """``node clean: options.timeout`` for ``("nodes", 0, "options", "timeout")``."""
    if len(place) < 2 or place[0] != "nodes":
        return ".".join(map(str, place))
    try:
        name = wire["nodes"][place[1]]["name"]
    except (LookupError, TypeError):
        name = None
    node = f"node {name}" if isinstance(name, str) and name else f"node number {int(place[1]) + 1}"
    rest = ".".join(map(str, place[2:]))
    return f"{node}: {rest}" if rest else node


def _in_the_file(place: Place, wire: Any, *, is_missing: bool) -> Place:
    """A place without the parts that only the model has, such as the classes of a choice."""
    found: list[str | int] = []
    for part in place:
        try:
            wire = wire[part]
        except (LookupError, TypeError):
            continue
        found.append(part)
    return [*found, *place[-1:]] if is_missing else found


def _why(fault: Any, place: Place, fields: Mapping[str, Sequence[str]]) -> str:
    kind, value = fault["type"], fault.get("input")
    if kind in _UNKNOWN:
        return _unknown(place, fields)
    if kind == "missing":
        return "is missing"
    if kind in _DURATIONS:
        return f"{_shown(value)} is not a duration. Fix: use seconds, 5m or PT5M"
    if kind in _NUMBERS:
        return f"{_shown(value)} is not a {_NUMBERS[kind]}"
    message = str(fault["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    return f"{message}, got {_shown(value)}" if isinstance(value, str | int | float) else message


def _unknown(place: Place, fields: Mapping[Any, Sequence[str]]) -> str:
    inside = next((part for part in reversed(place[:-1]) if part in fields), "flow")
    word = place[-1]
    near = nearest(word, fields[inside])
    if near is None and inside == "nodes" and (meant := nearest(word, fields["options"])):
        near = f"options.{meant}"
    found = f"there is no field {described(word)}"
    return f"{found}; did you mean {near!r}?" if near else f"{found}. Fix: use {', '.join(fields[inside])}"


def _shown(value: object) -> str:
    return described(value if not isinstance(value, str) else value[:TEXT_SHOWN])
