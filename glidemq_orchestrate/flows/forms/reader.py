"""The text of a flow file: reads it into plain values, and describes its faults.

JSON is read by a JSON parser, anything else as YAML, both with limits. A fault names the node, the line and
the text, and how to fix it.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NoReturn

from glidemq_orchestrate.errors import ConfigurationError, InvalidFlow
from glidemq_orchestrate.foundation.durations import from_text
from glidemq_orchestrate.foundation.importing import importing
from glidemq_orchestrate.foundation.suggestions import did_you_mean, nearest
from glidemq_orchestrate.foundation.texts import described, plain

if TYPE_CHECKING:
    from pydantic import ValidationError

MAX_JSON_BYTES: Final = 256 * 2**20
BLOCK: Final = 2**20
MAX_YAML_BYTES: Final = 16 * 2**20
_TOKEN: Final = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|([{}])|(-?Infinity|NaN)')


def object_in(path: str | Path, text: str) -> dict[str, Any]:
    """The object in the text of a file.

    Raises:
        InvalidFlow: It is neither JSON nor YAML, not an object, or has a duplicate key; the message names the
            file and line.
    """
    value = _parse(path, text)
    if not isinstance(value, dict):
        found = "nothing" if value is None else "a list" if isinstance(value, list) else "a single value"
        raise InvalidFlow(f"{path} contains {found}, not a flow. Fix: write an object with name and nodes")
    return value


def read_text(path: str | Path) -> str:
    """The text of a file.

    Raises:
        ConfigurationError: The file cannot be read.
        InvalidFlow: It is too large, or not UTF-8.
    """
    try:
        with Path(path).open("rb") as file:
            raw = b"".join(_bounded(file))
    except OSError as exc:
        raise ConfigurationError(f"cannot read flow file {path}: {exc.strerror or exc}") from exc
    except ValueError as exc:  # a NUL in the path
        raise ConfigurationError(f"cannot read flow file {str(path)!r}: {exc}") from exc
    if len(raw) > MAX_JSON_BYTES:
        raise InvalidFlow(
            f"{path} is larger than {MAX_JSON_BYTES >> 20} MiB. "
            "Fix: store the data in files, and give their paths here"
        )
    try:
        return raw.removeprefix(codecs.BOM_UTF8).decode()  # utf-8-sig would import a codec here
    except UnicodeDecodeError as exc:
        line = raw.count(b"\n", 0, exc.start) + 1
        raise InvalidFlow(f"{path}, line {line}: not UTF-8 text; save it as UTF-8") from exc


def _bounded(file: BinaryIO) -> Iterator[bytes]:
    """The file in blocks, up to the first one beyond the limit."""
    left = MAX_JSON_BYTES
    while left >= 0 and (block := file.read(BLOCK)):
        left -= len(block)
        yield block


def _parse(path: str | Path, text: str) -> Any:
    is_json = Path(path).suffix == ".json"
    if is_json or text.lstrip()[:1] in ("{", "["):
        try:
            return _parse_json(path, text)
        except json.JSONDecodeError as exc:
            if is_json:
                _refuse(path, exc.lineno, f"not valid JSON: {exc.msg}", exc)
    return _parse_yaml(path, text)


def _parse_json(path: str | Path, text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except json.JSONDecodeError:
        raise
    except RecursionError as exc:
        _refuse(path, 0, "nested too deeply", exc)
    except _Twice as exc:
        _refuse(path, *_place_of_duplicate(text), exc)
    except _NoNumber as exc:
        line = next(_line(text, m.start()) for m in _TOKEN.finditer(text) if m[4])
        _refuse(path, line, f"{exc} is not JSON; use null or a string", exc)
    except ValueError as exc:  # a number of thousands of digits
        _refuse(path, 0, "a number has too many digits; quote it if it is a string", exc)


def _parse_yaml(path: str | Path, text: str) -> Any:
    with importing():
        from glidemq_orchestrate.flows.forms import yaml_text  # noqa: PLC0415  JSON needs no yaml

    if len(text) > MAX_YAML_BYTES:
        raise InvalidFlow(f"{path} is YAML of more than {MAX_YAML_BYTES >> 20} MiB. Fix: write it as JSON")
    try:
        return yaml_text.load(text)
    except yaml_text.NotYaml as exc:
        _refuse(path, exc.line, f"neither valid JSON nor accepted YAML: {exc.why}", exc)


class _Twice(ValueError):
    """An object has a duplicate key."""


class _NoNumber(ValueError):
    """NaN or infinity."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Twice
    return found


def _constant(word: str) -> NoReturn:
    raise _NoNumber(word)


def _place_of_duplicate(text: str) -> tuple[int, str]:
    """Line and message of the first duplicate key in a text that is otherwise valid."""
    objects: list[dict[str, int]] = []
    for token in _TOKEN.finditer(text):
        if token[3] == "{":
            objects.append({})
        elif token[3]:
            del objects[-1:]
        elif token[2] and objects:
            key = json.loads(token[1])
            first = objects[-1].get(key)
            if first is not None:
                why = f"duplicate key {key[:80]!r}; the first is in line {_line(text, first)}"
                return _line(text, token.start()), why
            objects[-1][key] = token.start()
    return 0, "an object has a duplicate key"


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _refuse(path: str | Path, line: int, why: str, cause: Exception) -> NoReturn:
    place = f"{path}, line {line}" if line else f"{path}"
    raise InvalidFlow(f"{place}: {why}") from cause


def place_of(path: str | Path, names: Sequence[str]) -> str:
    """The file, and the line of the first of these nodes (of its last definition), for an error."""
    with importing():
        from glidemq_orchestrate.flows.forms import yaml_text  # noqa: PLC0415  valid flows need no yaml

    text = read_text(path)
    nodes = object_in(path, text).get("nodes", [])
    numbers = [at for at, one in enumerate(nodes) if isinstance(one, dict) and one.get("name") in names[:1]]
    line = yaml_text.line_of(yaml_text.composed(text), ["nodes", numbers[-1]]) if numbers else 0
    return f"{path}, line {line}" if line else str(path)


FAULTS_SHOWN: Final = 10
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
_CONTAINERS: Final = ("dataclass_type", "list_type")
_CHOICES: Final = ("enum", "literal_error")
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
    with importing():
        from glidemq_orchestrate.flows.forms import yaml_text  # noqa: PLC0415  valid files need no yaml

    faults = exc.errors()
    root = yaml_text.composed(text) if text else None
    shown = []
    for fault in faults[:FAULTS_SHOWN]:
        place = _in_the_file(fault["loc"], wire, is_missing=fault["type"] == "missing")
        shown.append(_fault(fault, place, yaml_text.line_of(root, place), wire, fields))
    more = len(faults) - len(shown)
    return "; ".join([*shown, f"and {more:,} more errors"] if more else shown)


def _fault(
    fault: Any, place: Place, line: int, wire: Mapping[str, Any], fields: Mapping[str, Sequence[str]]
) -> str:
    where = _where(place[:-1] if fault["type"] in _UNKNOWN else place, wire)
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
    if place and kind in _CONTAINERS and (example := _example(place[-1], value)):
        return f"must be like {example}, got {_shown(value)}"
    if kind in _NUMBERS:
        return f"{_shown(value)} is not a {_NUMBERS[kind]}"
    return _not_allowed(fault, value)


def _not_allowed(fault: Any, value: object) -> str:
    """The nearest of the words that are allowed there, if one is near; else what the model has found."""
    if fault["type"] in _CHOICES:
        words = re.findall(r"'([^']*)'", fault["ctx"]["expected"])
        if near := did_you_mean(value, words):
            return f"{_shown(value)} is unknown{near}"
    message = plain(str(fault["msg"]))
    message = message[:1].lower() + message[1:]
    return f"{message}, got {_shown(value)}" if isinstance(value, str | int | float) else message


def _example(field: str | int, value: object) -> str:
    """How to write this value of a field that holds more than a value; empty where that is not known."""
    if not isinstance(value, str | int | float):
        return ""
    if field == "backoff":
        is_delay = not isinstance(value, str) or from_text(value) is not None
        return f"{{delay: {value}}}" if is_delay else "{kind: exponential, delay: 10}"
    return f"[{value}]" if field == "after" else ""


def _unknown(place: Place, fields: Mapping[Any, Sequence[str]]) -> str:
    inside = next((part for part in reversed(place[:-1]) if part in fields), "flow")
    word = place[-1]
    near = nearest(word, fields[inside])
    if inside == "nodes" and (word in fields["options"] or near is None):
        meant = nearest(word, fields["options"])
        near = f"options.{meant}" if meant else None
    found = f"there is no field {described(word)}"
    return f"{found}; did you mean {near!r}?" if near else f"{found}. Fix: use {', '.join(fields[inside])}"


def _shown(value: object) -> str:
    return described(value if not isinstance(value, str) else value[:TEXT_SHOWN])
