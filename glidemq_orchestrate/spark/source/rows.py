"""Rows as jobs: which column is what, and the job of a row with an id that is always the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from pyspark.sql.types import StringType, StructType  # noqa: TID253  whoever imports this module has it

from glidemq_orchestrate.errors import ConfigurationError, DecodeError, InvalidFlow, InvalidJob
from glidemq_orchestrate.flows.spec import FlowSpec
from glidemq_orchestrate.foundation.names import JOB_NAME, REQUEST, described
from glidemq_orchestrate.jobs.adding import NewJob
from glidemq_orchestrate.jobs.bounds import MAX_DURATION, whole
from glidemq_orchestrate.jobs.option_values import Ordering
from glidemq_orchestrate.jobs.options import MAX_PRIORITY, JobOptions
from glidemq_orchestrate.spark.source.options import Options
from glidemq_orchestrate.spark.source.remembered import deduplication, job_id
from glidemq_orchestrate.spark.source.values import Form, form_of, is_exact, is_whole
from glidemq_orchestrate.wire.codec import Json, decode
from glidemq_orchestrate.wire.keys import check_queue_name

REMEMBER: Final = timedelta(days=7)
MAX_REMEMBER: Final = timedelta(days=365)
MAX_DELAY: Final = MAX_DURATION // timedelta(seconds=1)
WRITE: Final = (
    "queue", "name", "key", "write_id", "remember", "data", "options", "attempts", "priority", "delay",
    "ordering_key",
)  # fmt: skip


@dataclass(frozen=True)
class RowJobs:
    """How the rows of one schema become jobs of one queue. It is pickled to the tasks.

    Attributes:
        forms: The form of each column in JSON, by name and in order.
        key: The columns that identify a row; empty: all.
        data: The column that is the payload; '': an object of all columns is.
        columns: The columns of the options that have one: ``priority``, ``delay``, ``ordering_key``.
    """

    queue: str
    name: str
    schema: StructType
    key: tuple[str, ...]
    remember: timedelta
    data: str
    options: JobOptions
    columns: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, options: Options, schema: StructType) -> RowJobs:
        """From the options of a write.

        Raises:
            ConfigurationError: An option or a column is missing or not usable. Nothing was added.
        """
        _check_columns(schema)
        found = cls(
            queue=check_queue_name(options.required("queue")),
            name=_checked_name(options.required("name")),
            schema=schema,
            key=_key(options, schema),
            remember=options.duration("remember", REMEMBER, MAX_REMEMBER),
            data=options.text("data") or "",
            options=_job_options(options),
            columns=_option_columns(options, schema),
        )
        if found.data:
            _field(schema, found.data, "data")
        return found

    def jobs(self, write_id: str, rows: Sequence[Sequence[Any]]) -> Iterator[NewJob]:
        """The jobs of rows, which are lists of values as Arrow gives them.

        Raises:
            ConfigurationError, InvalidJob: A value cannot be used. None of these rows is added.
        """
        names = self.schema.names
        forms: list[Form] = [form_of(one.dataType, one.name) for one in self.schema.fields]
        is_text = bool(self.data) and isinstance(self.schema[self.data].dataType, StringType)
        for row in rows:
            values = {name: form(value) for name, form, value in zip(names, forms, row, strict=True)}
            digest = self._digest(write_id, values)
            data: Json = values if not self.data else values[self.data]
            if is_text and data is not None:
                data = self._parsed(str(data), digest)
            yield NewJob(self.name, data, options=self._options_of(values, digest))

    def _digest(self, write_id: str, values: Mapping[str, Json]) -> str:
        identity = [values[name] for name in self.key] if self.key else values
        if self.key and None in identity:
            missing = next(name for name in self.key if values[name] is None)
            raise ConfigurationError(
                f"a row for queue {self.queue} has null in its key, in column {missing}: "
                "leave such rows out, or give the option key other columns"
            )
        text = json.dumps(identity, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(f"{write_id}\n{text}".encode()).hexdigest()[:32]

    def _parsed(self, text: str, digest: str) -> Json:
        try:
            return decode(text, where=f"column {self.data}")
        except DecodeError as exc:
            raise InvalidJob(
                f"{exc}, in the row of job {job_id(digest, self.remember)} for queue {self.queue}; "
                "a text in the column of the option data is taken as JSON: see to_json"
            ) from None

    def _options_of(self, values: Mapping[str, Json], digest: str) -> JobOptions:
        own: dict[str, Any] = {
            "job_id": job_id(digest, self.remember),
            "deduplication": deduplication(digest, self.remember),
        }
        for option, column in self.columns.items():
            if values[column] is None:
                continue
            try:
                own |= self._option(option, values[column])
            except InvalidJob as exc:
                raise InvalidJob(
                    f"{exc}, in column {column} of the row of job {own['job_id']} for queue {self.queue}"
                ) from None
        return replace(self.options, **own)

    def _option(self, option: str, value: Any) -> dict[str, Any]:
        """The field of ``JobOptions`` that a value of a column sets."""
        if option == "ordering_key":
            return {"ordering": replace(self.options.ordering or Ordering(value), key=value)}
        if option == "delay":
            whole("delay in seconds", value, 0, MAX_DELAY)
            return {"delay": timedelta(seconds=value)}
        whole(option, value, 0, MAX_PRIORITY)
        return {option: value}


def write_id_of(options: Options, made: str) -> str:
    """The id of a write: that of the option, or the one that was made for it."""
    given = options.text("write_id")
    if given is None:
        return made
    try:
        return REQUEST.check(given)
    except ConfigurationError:
        raise options.refused("write_id", REQUEST.rule) from None


def _check_columns(schema: StructType) -> None:
    if not schema.fields:
        raise ConfigurationError(
            "the frame has no columns: its rows would all be one job; select what the handler needs"
        )
    for one in schema.fields:
        form_of(one.dataType, one.name)
    if len(set(schema.names)) < len(schema.names):
        raise ConfigurationError(
            "two columns have the same name: rename one, as a payload has each name once"
        )


def _key(options: Options, schema: StructType) -> tuple[str, ...]:
    names = options.names("key") or ()
    for name in names:
        kind = _field(schema, name, "key")
        if not is_exact(kind):
            raise ConfigurationError(
                f"column {name} of the option key is of type {kind.simpleString()}; a key must be a string, "
                "a whole number, a boolean, a date, a timestamp, a decimal or binary: cast it"
            )
    return names


def _option_columns(options: Options, schema: StructType) -> dict[str, str]:
    found: dict[str, str] = {}
    for option in ("priority", "delay", "ordering_key"):
        name = options.text(option)
        if name is None or (option != "ordering_key" and _is_number(name)):
            continue
        kind = _field(schema, name, option)
        is_right = isinstance(kind, StringType) if option == "ordering_key" else is_whole(kind)
        if not is_right:
            wanted = "a string" if option == "ordering_key" else "a whole number"
            raise ConfigurationError(
                f"column {name} of the option {option} must be {wanted}, not {kind.simpleString()}: cast it"
            )
        found[option] = name
    return found


def _field(schema: StructType, name: str, option: str) -> Any:
    if name not in schema.names:
        raise ConfigurationError(
            f"the option {option} names a column {described(name)}, and there is none: "
            f"there are {', '.join(schema.names)}"
        )
    return schema[name].dataType


def _checked_name(name: str) -> str:
    try:
        return JOB_NAME.check(name)
    except InvalidJob as exc:
        raise ConfigurationError(f"the option name: {exc}") from None


def _job_options(options: Options) -> JobOptions:
    """The options of all jobs, as in a flow file, with those that have an option of their own."""
    given: Any = {}
    if (text := options.text("options")) is not None:
        try:
            given = json.loads(text)
        except ValueError:
            given = None
        if not isinstance(given, dict):
            raise options.refused("options", 'a JSON object such as {"attempts": 3, "timeout": 60}')
    for option in ("attempts", "priority", "delay"):
        value = options.text(option)
        if value is not None and (option == "attempts" or _is_number(value)):
            given[option] = float(value) if option == "delay" else value
    node = {"name": "row", "queue": "row", "job": "row", "options": given}
    try:
        return FlowSpec.from_dict({"name": "write", "nodes": [node]}).nodes[0].options
    except InvalidFlow as exc:
        why = str(exc).removeprefix("not a valid flow: ").replace("nodes.0.", "")
        raise ConfigurationError(f"the options of {options.what}: {why}") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
