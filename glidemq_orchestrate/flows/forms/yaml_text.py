"""Reads the YAML of a flow file: limits depth and aliases, and refuses duplicate keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn, cast

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.events import AliasEvent, Event
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.resolver import Resolver

MAX_DEPTH: Final = 100
MAX_VALUES: Final = 2_000_000  # each takes about 400 bytes while being read
FREE_ALIASES: Final = 100_000
MAX_EXPANSION: Final = 10
MAX_DIGITS: Final = 1000
MAX_COMPOSED: Final = 16 * 2**20
MAX_WHY: Final = 200
_MERGE: Final = "tag:yaml.org,2002:merge"
_NUMBERS: Final = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class NotYaml(ValueError):
    """The text is not YAML or not accepted: the line (from 1; 0 if unknown) and the reason."""

    def __init__(self, line: int, why: str) -> None:
        self.line, self.why = line, " ".join(why[:MAX_WHY].split())
        super().__init__(f"line {line}: {why}")


def load(text: str) -> Any:
    """The value of the only document.

    Raises:
        NotYaml: It is not YAML, contains more than plain values, or its aliases expand too far.
    """
    try:
        return _Loader(text).get_single_data()
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        raise NotYaml(mark.line + 1 if mark else 0, exc.problem or exc.context or "not YAML") from exc
    except yaml.reader.ReaderError as exc:
        line = text.count("\n", 0, exc.position) + 1
        raise NotYaml(line, f"character U+{_code(exc.character):04X} is not allowed") from exc
    except yaml.YAMLError as exc:
        raise NotYaml(0, str(exc)) from exc


def composed(text: str) -> Node | None:
    """The tree of a text, YAML or JSON, with the line of each part; None if it is too long or neither."""
    if len(text) > MAX_COMPOSED:
        return None
    try:
        return _Loader(text).get_single_node()
    except (yaml.YAMLError, NotYaml):  # JSON that is no YAML, because of tabs
        return None


def line_of(root: Node | None, place: Sequence[str | int]) -> int:
    """The line of a place; of what should hold it if it is missing; 0 if unknown."""
    node, line = root, 0
    for part in place:
        if isinstance(node, MappingNode):
            found = next(((key, value) for key, value in node.value if key.value == str(part)), None)
            if found is None:
                break
            line, node = found[0].start_mark.line + 1, found[1]
        elif isinstance(node, SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
    return line


class _Loader(Composer, SafeConstructor, Resolver):
    """Composes and constructs the output of a parser, of the C parser if available."""

    def __init__(self, text: str) -> None:
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)
        self._parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
        self._depth = self._nodes = self._expanded = 0
        self._weights: dict[str, int] = {}

    def check_event(self, *choices: type[Event]) -> bool:
        return bool(self._parser.check_event(*choices))

    def get_event(self) -> Event:
        return cast("Event", self._parser.get_event())

    def peek_event(self) -> Event:
        return cast("Event", self._parser.peek_event())

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        """Count the values of the document with all aliases expanded, since merges and JSON copy them."""
        event: Any = self.peek_event()
        self._nodes += 1
        if isinstance(event, AliasEvent):
            return self._compose_alias(event, parent, index)
        if self._nodes > MAX_VALUES:
            _refuse(event, f"more than {MAX_VALUES:,} values. Fix: write it as JSON")
        if self._depth == MAX_DEPTH:
            _refuse(event, f"nested more than {MAX_DEPTH} deep")
        before = self._nodes + self._expanded - 1
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if event.anchor is not None:
            self._weights[event.anchor] = self._nodes + self._expanded - before
        return node

    def _compose_alias(self, event: Any, parent: Node | None, index: int) -> Node | None:
        if event.anchor in self.anchors and event.anchor not in self._weights:
            _refuse(event, f"*{event.anchor} is inside &{event.anchor}: a value cannot contain itself")
        self._expanded += self._weights.get(event.anchor, 1) - 1
        if self._expanded > max(FREE_ALIASES, MAX_EXPANSION * self._nodes):
            _refuse(event, f"the aliases up to here expand to {self._expanded:,} values, which is too many")
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: str | None) -> MappingNode:  # type: ignore[override]
        """Refuse a duplicate key: all values but the last would be dropped silently."""
        node = super().compose_mapping_node(cast("Any", anchor))
        seen: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, ScalarNode) or key.tag == _MERGE:
                continue
            name = key.tag, key.value
            if name in seen:
                _refuse(key, f"duplicate key {key.value[:80]!r}; the first is in line {seen[name]}")
            seen[name] = key.start_mark.line + 1
        return node

    def construct_object(self, node: Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002  the base class's signature
        """Report the line of a scalar that does not match its tag."""
        if isinstance(node, ScalarNode) and node.tag in _NUMBERS and len(node.value) > MAX_DIGITS:
            _refuse(node, f"a number of {len(node.value):,} characters; quote it if it is a string")
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, IndexError, AttributeError, TypeError, OverflowError) as exc:
            _refuse(node, f"not a valid {node.tag.rpartition(':')[2]}", exc)


def _refuse(at: Node | Event, why: str, cause: Exception | None = None) -> NoReturn:
    mark: Any = at.start_mark
    raise NotYaml(mark.line + 1, why) from cause


def _code(character: Any) -> int:
    return character if isinstance(character, int) else ord(character[:1] or "\0")
