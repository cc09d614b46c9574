"""Detects and renders templates in the arguments of an operator, also inside specifications.

Airflow renders text, lists and dicts. Here text without a template stays unchanged, byte for byte. Airflow
itself removes its last line break, turns ``007`` into a number in a DAG that renders natively, and treats
text that ends in ``.json`` as a file name. In a DAG that renders natively, names stay text and data gets
native types.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from airflow.sdk import BaseOperator
from airflow.sdk.definitions.context import render_template_to_string
from jinja2 import TemplateError

from airflow_provider_glidemq.exceptions import located_errors, template_failed
from glidemq_orchestrate import Dependency

if TYPE_CHECKING:
    from airflow.sdk import Context
    from jinja2 import Environment, Template

T = TypeVar("T")

MARKS: Final = ("{{", "{%", "{#")
_SETTINGS: Final = ("variable_start_string", "block_start_string", "comment_start_string")
_LINE_SETTINGS: Final = ("line_statement_prefix", "line_comment_prefix")

FREE: Final = frozenset({"data", "metadata"})
"""Fields that hold any value, with native types."""
NAMED: Final = frozenset(
    {
        "name",
        "queue",
        "job",
        "after",
        "labels",
        "rule",
        "on_failure",
        "key",
        "model",
        "provider",
        "traceparent",
    }
)
"""Fields that hold one or more strings, even if the DAG renders natively."""


def is_template(text: str, marks: Collection[str] = MARKS) -> bool:
    """Whether Jinja would change the text, or might; ``marks`` are those of the DAG."""
    return any(mark in text for mark in marks)


def marks_of(settings: Mapping[str, Any] | None) -> Collection[str]:
    """The opening marks of templates, from the ``jinja_environment_kwargs`` of a DAG."""
    if not settings:
        return MARKS
    found = [settings.get(name, mark) for name, mark in zip(_SETTINGS, MARKS, strict=True)]
    return [*found, *(settings[name] for name in _LINE_SETTINGS if settings.get(name))]


def is_unknown(value: object, marks: Collection[str] = MARKS) -> bool:
    """Whether the value is known only in a running task: a template, or the output of another task."""
    if isinstance(value, str):
        return is_template(value, marks)
    return callable(getattr(value, "resolve", None)) and hasattr(value, "iter_references")


class Rendered:
    """Renders values of any depth; an object in which nothing changes is returned itself.

    Args:
        native: Renders text as the DAG does.
        text: Renders text to text.
        other: Renders values that are neither text nor a collection nor a dataclass.
        marks: The opening marks of templates.
        seen: The ids of values that are not rendered, such as the results of other tasks.

    Raises:
        GlideMQException: A template fails; the message names the node and the field.
    """

    def __init__(
        self,
        *,
        native: Callable[[str], Any],
        text: Callable[[str], str],
        other: Callable[[Any], Any],
        marks: Collection[str] = MARKS,
        seen: Collection[int] = (),
    ) -> None:
        self._native, self._text, self._other = native, text, other
        self._marks, self._seen = marks, seen
        self._place: list[str] = []  # of the value being rendered, for errors

    def value(self, value: Any, field: str = "") -> Any:
        """Render a value; ``field`` is the name of the field that holds it."""
        if id(value) in self._seen or value is None or isinstance(value, bool | int | float | Enum):
            return value
        if isinstance(value, str):
            return self._of_text(value, field)
        return self._other(value) if is_unknown(value) else self._of_members(value, field)

    def text(self, value: str) -> str:
        """Render text to text."""
        if not is_template(value, self._marks):
            return value
        return self._render(self._text, value)

    def _render(self, render: Callable[[str], T], text: str) -> T:
        try:
            return render(text)
        except TemplateError as exc:
            raise template_failed(text, self._place, exc) from exc

    def _of_members(self, value: Any, field: str) -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            given = {part.name: getattr(value, part.name) for part in fields(value) if part.init}
            changed = self._changed(given, field)
            return replace(value, **changed) if changed else value
        if isinstance(value, Mapping):
            changed = self._changed(value, field)
            return {**value, **changed} if changed else value
        if isinstance(value, list | tuple):
            return self._of_list(value, field)
        return self._other(value)

    def _changed(self, value: Mapping[Any, Any], field: str) -> dict[Any, Any]:
        """The members that change when rendered."""
        inside = {name: self._at(str(name), part, _field(field, name)) for name, part in value.items()}
        return {name: part for name, part in inside.items() if part is not value[name]}

    def _at(self, step: str, value: Any, field: str) -> Any:
        self._place.append(step)
        rendered = self.value(value, field)
        self._place.pop()
        return rendered

    def _of_list(self, value: Any, field: str) -> Any:
        parts = [self._at(_step(number, part), part, field) for number, part in enumerate(value)]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        if isinstance(value, list):
            return parts
        return tuple(parts) if type(value) is tuple else type(value)(*parts)

    def _of_text(self, value: str, field: str) -> Any:
        if not is_template(value, self._marks):
            return value
        if isinstance(value, Dependency):
            return Dependency(self._render(self._text, value), value.on_failure)
        return self._render(self._text if field in NAMED else self._native, value)


def _step(number: int, part: object) -> str:
    """The place of a member of a list: a node by its name."""
    name = part.get("name") if isinstance(part, Mapping) else getattr(part, "name", None)
    return f"node {name}" if isinstance(name, str) else f"[{number}]"


def _field(outer: str, name: object) -> str:
    """The field of a member of a field: everything inside ``data`` belongs to ``data``."""
    return outer if outer in FREE or outer == "labels" or not isinstance(name, str) else name


class TemplateNames:
    """Stand-ins for names that are templates: equal text, equal stand-in."""

    def __init__(self) -> None:
        self._of: dict[object, str] = {}
        self._taken: set[str] = set()

    def of(self, value: object) -> str:
        """A stand-in that is a valid name everywhere, and recognisable to a reader."""
        key = value if isinstance(value, str) else id(value)
        if key not in self._of:
            shown = "".join(mark for mark in str(value)[:200] if mark.isprintable())
            shown = shown.translate(str.maketrans("{}:", "<> ")) or "template"
            name = shown if shown not in self._taken else f"{shown} {len(self._taken)}"
            self._taken.add(name)
            self._of[key] = name
        return self._of[key]

    def __contains__(self, name: str) -> bool:
        return name in self._taken


_READY: Final = (str, bytes, list, tuple)


class TemplatedOperator(BaseOperator):
    """Renders templates, also in specifications and options, and leaves all else unchanged."""

    structured_fields: ClassVar[tuple[str, ...]] = ()
    """The template fields whose members are fields of a flow or job, so that names in them stay text."""
    _file = ""

    @property
    def is_being_parsed(self) -> bool:
        """Whether the operator is created while a DAG file is parsed, not for a mapped task about to run."""
        return bool(self.has_dag()) and not getattr(self, "_BaseOperator__from_mapped", False)  # type: ignore[no-untyped-call]

    def _located_errors(self) -> AbstractContextManager[None]:
        """See ``located_errors``."""
        return located_errors(self.task_id, self._file)

    def render_template(
        self,
        content: Any,
        context: Context,
        jinja_env: Environment | None = None,
        seen_oids: set[int] | None = None,
    ) -> Any:
        """Render a value of any depth; text that looks like a file name stays text."""
        is_structured = any(content is getattr(self, name, None) for name in self.structured_fields)
        rendered = self._rendered(context, jinja_env or self.get_template_env(), seen_oids)
        return rendered.value(content, "" if is_structured else "data")

    def _rendered(self, context: Context, env: Environment, seen: set[int] | None = None) -> Rendered:
        texts = env
        if self.has_dag() and self.dag.render_template_as_native_obj:  # type: ignore[no-untyped-call]
            texts = self.dag.get_template_env(force_sandboxed=True)
        compiled: dict[tuple[int, str], Template] = {}

        def template(of: Environment, text: str) -> Template:
            key = (id(of), text)
            if key not in compiled:
                compiled[key] = of.from_string(text)
            return compiled[key]

        def other(value: Any) -> Any:
            return _ready(super(TemplatedOperator, self).render_template(value, context, env, seen))

        return Rendered(
            native=lambda text: _ready(self._render(template(env, text), context)),
            text=lambda text: render_template_to_string(template(texts, text), context),
            other=other,
            marks=self._marks(),
            seen=seen or (),
        )

    def _marks(self) -> Collection[str]:
        """The opening marks of templates in the DAG."""
        return marks_of(self.dag.jinja_environment_kwargs) if self.has_dag() else MARKS  # type: ignore[no-untyped-call]


def _ready(value: Any) -> Any:
    """The value; a lazy sequence of Airflow is read now.

    The results of mapped tasks are read in one call. Slices of other lazy sequences, such as
    ``output.map(f)``, do not match their items.
    """
    if not isinstance(value, Sequence) or isinstance(value, _READY):
        return value
    from airflow.sdk.execution_time.lazy_sequence import LazyXComSequence  # noqa: PLC0415  in a task only

    return list(value[:] if isinstance(value, LazyXComSequence) else value)
