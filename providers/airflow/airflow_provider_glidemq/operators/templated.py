"""The templates of an operator, where Airflow renders them. See ``templates``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.sdk import BaseOperator
from airflow.sdk.definitions.context import render_template_to_string

from airflow_provider_glidemq.templates import MARKS, Rendered, marks_of
from glidemq_orchestrate.errors import GlideMQError

if TYPE_CHECKING:
    from airflow.sdk import Context
    from jinja2 import Environment, Template

_READY: Final = (str, bytes, list, tuple)


class TemplatedOperator(BaseOperator):
    """Renders what is a template, also in specifications and options, and leaves the rest as it is."""

    structured_fields: ClassVar[tuple[str, ...]] = ()
    """The template fields whose members are fields of ours, so that names among them are text."""
    _file = ""

    @property
    def is_being_parsed(self) -> bool:
        """Whether the operator is made as part of a DAG file; not for a mapped task that is about to run."""
        return bool(self.has_dag()) and not getattr(self, "_BaseOperator__from_mapped", False)  # type: ignore[no-untyped-call]

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Let an error say where it is from: an import error of a DAG shows little else."""
        try:
            yield
        except (GlideMQError, TypeError) as exc:
            where = f"task {self.task_id}: "
            if self._file and self._file not in str(exc):
                where += f"{self._file}: "
            exc.args = (f"{where}{exc}",)
            raise

    def render_template(
        self,
        content: Any,
        context: Context,
        jinja_env: Environment | None = None,
        seen_oids: set[int] | None = None,
    ) -> Any:
        """Render a value of any depth; text that ends like the name of a file is text."""
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
        """What begins a template in the DAG."""
        return marks_of(self.dag.jinja_environment_kwargs) if self.has_dag() else MARKS  # type: ignore[no-untyped-call]


def _ready(value: Any) -> Any:
    """The value, read from Airflow where it is a sequence that is read when it is used.

    What mapped tasks have returned is read in one call. A slice of another one, such as of ``output.map(f)``,
    is not what its items are.
    """
    if not isinstance(value, Sequence) or isinstance(value, _READY):
        return value
    from airflow.sdk.execution_time.lazy_sequence import LazyXComSequence  # noqa: PLC0415  in a task only

    return list(value[:] if isinstance(value, LazyXComSequence) else value)
