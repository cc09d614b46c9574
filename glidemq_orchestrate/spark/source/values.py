"""Values of columns as JSON: which form each type of Spark has, and which types have none.

Times are ISO 8601, those with a zone in UTC; decimals are texts with all their digits; binary data is Base64;
NaN and infinity are texts. Structs and maps are objects.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any, Final, TypeAlias

from pyspark.sql import types  # noqa: TID253  whoever imports this module has it

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.wire.codec import Json

Form: TypeAlias = Callable[[Any], Json]
_INTEGERS = (types.ByteType, types.ShortType, types.IntegerType, types.LongType)
_EXACT = (
    *_INTEGERS, types.StringType, types.BooleanType, types.DateType, types.TimestampType,
    types.TimestampNTZType, types.DecimalType, types.BinaryType,
)  # fmt: skip


def form_of(kind: types.DataType, column: str) -> Form:
    """How values of a type become JSON; Spark gives them as Arrow does.

    Raises:
        ConfigurationError: There is no JSON for them.
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
    """Whether values of a type are the same whenever they are computed again: those can be keys."""
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
