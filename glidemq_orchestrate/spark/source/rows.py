"""Rows as jobs: the roles of columns, values as JSON, and the job of a row, always with the same id.

Times are ISO 8601, those with a zone in UTC; decimals are texts with all their digits; binary data is Base64;
NaN and infinity are texts. Structs and maps are objects.

A repeat of a write adds no row twice: the deduplication hash of glide-mq has a field for each row, with the
id of its job and the time. glide-mq never deletes these fields; the job id contains how long the field is
kept.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, TypeAlias

from pyspark.sql import types  # noqa: TID253
from pyspark.sql.types import StringType, StructType  # noqa: TID253

from glidemq_orchestrate.errors import ConfigurationError, DecodeError, InvalidFlow, InvalidJob
from glidemq_orchestrate.flows.spec import FlowSpec
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.foundation.values import JOB_NAME, MAX_DURATION, REQUEST, whole
from glidemq_orchestrate.jobs.adding import NewJob
from glidemq_orchestrate.jobs.option_values import Deduplication, Ordering
from glidemq_orchestrate.jobs.options import MAX_PRIORITY, JobOptions
from glidemq_orchestrate.spark.source.options import Options
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Op, ask, command, fields_of
from glidemq_orchestrate.wire.codec import Json, decode
from glidemq_orchestrate.wire.keys import QueueKeys, check_queue_name

REMEMBER: Final = timedelta(days=7)
MAX_REMEMBER: Final = timedelta(days=365)
MAX_DELAY: Final = MAX_DURATION // timedelta(seconds=1)
WRITE: Final = (
    "queue", "name", "key", "write_id", "remember", "data", "options", "attempts", "priority", "delay",
    "ordering_key",
)  # fmt: skip


@dataclass(frozen=True)
class RowJobs:
    """Converts the rows of one schema to jobs of one queue. It is pickled to the tasks.

    Attributes:
        forms: The form of each column in JSON, by name and in order.
        key: The columns that identify a row; empty: all columns.
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
        """Read the options of a write.

        Raises:
            ConfigurationError: An option or a column is missing or invalid. Nothing was added.
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
        """The jobs of rows, which are lists of Arrow values.

        Raises:
            ConfigurationError, InvalidJob: A value is invalid. None of these rows is added.
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
    """The id of a write: from the option, or else the generated one."""
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
            required = "a string" if option == "ordering_key" else "a whole number"
            raise ConfigurationError(
                f"column {name} of the option {option} must be {required}, not {kind.simpleString()}: cast it"
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
    """The options of all jobs, as in a flow file, with those that have a separate option."""
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
        why = str(exc).removeprefix("not a valid flow: ").replace("node row: ", "")
        raise ConfigurationError(f"the options of {options.what}: {why}") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


PAGE: Final = 500
MAX_PAGES: Final = 400
GRACE_MS: Final = 3_600_000
_FIELD: Final = "spark:"
_ENTRY: Final = re.compile(r"row-[0-9a-f]{32}-([0-9]{1,9}):([0-9]{1,16})", re.ASCII)


def job_id(digest: str, remember: timedelta) -> str:
    """The id of the job of a row; ``remember``: how long the row is remembered."""
    return f"row-{digest}-{round(remember.total_seconds())}"


def deduplication(digest: str, remember: timedelta) -> Deduplication:
    """The deduplication that keeps a row from being added again."""
    return Deduplication(f"{_FIELD}{digest}", "throttle", remember)


def forget_old(queue: QueueKeys, now_ms: int) -> Op[int]:
    """Remove expired rows from the deduplication hash; returns their number.

    Samples some rows at random, and continues while a quarter of the sample has expired. So at most about a
    quarter of the stored rows are expired, whatever their number, and a call is cheap.
    """
    key, forgotten = queue.key("dedup"), 0
    for _ in range(MAX_PAGES):
        fields = yield from ask(command("HRANDFIELD", key, PAGE, decode=replies.texts))
        own = [field for field in fields if field.startswith(_FIELD)]
        if not own:
            break
        values = yield from ask(fields_of(key, *own))
        old = [field for field, value in zip(own, values, strict=True) if value and is_over(value, now_ms)]
        if old:
            yield from ask(command("HDEL", key, *old, decode=replies.anything))
        forgotten += len(old)
        if len(old) * 4 < len(own):
            break
    return forgotten


def is_over(value: str, now_ms: int) -> bool:
    """Whether an entry belongs to an expired row."""
    found = _ENTRY.fullmatch(value)
    return found is not None and int(found[2]) + int(found[1]) * 1000 + GRACE_MS < now_ms


Form: TypeAlias = Callable[[Any], Json]
_INTEGERS = (types.ByteType, types.ShortType, types.IntegerType, types.LongType)
_EXACT = (
    *_INTEGERS, types.StringType, types.BooleanType, types.DateType, types.TimestampType,
    types.TimestampNTZType, types.DecimalType, types.BinaryType,
)  # fmt: skip


def form_of(kind: types.DataType, column: str) -> Form:
    """The JSON form of values of a type; Spark passes them as Arrow does.

    Raises:
        ConfigurationError: The type has no JSON form.
    """
    if isinstance(kind, types.StructType):
        fields = {field.name: form_of(field.dataType, f"{column}.{field.name}") for field in kind.fields}
        return _or_null(lambda value: {name: form(value[name]) for name, form in fields.items()})
    if isinstance(kind, types.ArrayType):
        one = form_of(kind.elementType, column)
        return _or_null(lambda value: [one(part) for part in value])
    if isinstance(kind, types.MapType):
        name, part = form_of(kind.keyType, column), form_of(kind.valueType, column)
        return _or_null(lambda value: {_name(name(key)): part(it) for key, it in value})
    for classes, form in _FORMS:
        if isinstance(kind, classes):
            return form
    raise ConfigurationError(
        f"column {column} is of type {kind.simpleString()}, which has no form in JSON: cast it to string"
    )


def is_exact(kind: types.DataType) -> bool:
    """Whether values of a type are the same when they are computed again: only these can be keys."""
    return isinstance(kind, _EXACT)


def is_whole(kind: types.DataType) -> bool:
    """Whether values of a type are whole numbers."""
    return isinstance(kind, _INTEGERS)


def _or_null(form: Form) -> Form:
    return lambda value: None if value is None else form(value)


def _same(value: Any) -> Json:
    same: Json = value
    return same


def _float(value: float) -> Json:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _instant(value: datetime) -> Json:
    return value.astimezone(UTC).isoformat()


def _iso(value: date) -> Json:
    return value.isoformat()


def _name(key: Json) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    return key if isinstance(key, str) else str(key)


_FORMS: Final[tuple[tuple[tuple[type[types.DataType], ...], Form], ...]] = (
    ((*_INTEGERS, types.StringType, types.BooleanType, types.NullType), _same),
    ((types.FloatType, types.DoubleType), _or_null(_float)),
    ((types.DecimalType,), _or_null(lambda value: format(value, "f"))),
    ((types.BinaryType,), _or_null(lambda value: base64.b64encode(value).decode())),
    ((types.TimestampType,), _or_null(_instant)),
    ((types.DateType, types.TimestampNTZType), _or_null(_iso)),
)
