"""What the service answers when something is wrong: ``error`` says what, ``fix`` what helps, if known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from glidemq_orchestrate.console.shown import masked_line
from glidemq_orchestrate.console.snapshots import StillReading
from glidemq_orchestrate.errors import (
    ConfigurationError,
    FlowExpired,
    FlowNotFound,
    JobNotFound,
    NodeNotFound,
    ScheduleNotFound,
    TransportError,
)

_NOT_THERE: Final = (FlowNotFound, FlowExpired, NodeNotFound, JobNotFound, ScheduleNotFound)
MAX_SHOWN: Final = 80
_MUST: Final = {
    "less_than_equal": "be at most {le}",
    "greater_than_equal": "be at least {ge}",
    "int_parsing": "be a whole number",
    "int_type": "be a whole number",
    "string_type": "be a text",
    "string_too_long": "have at most {max_length} characters",
    "literal_error": "be {expected}",
    "datetime_parsing": "be a time such as 2026-01-31T12:00:00Z",
    "datetime_from_date_parsing": "be a time such as 2026-01-31T12:00:00Z",
}
"""What a value must be, by the name that pydantic has for the error."""
_ALONE: Final = {
    "json_invalid": "the body is not valid JSON",
    "missing": "{name} is missing",
    "model_attributes_type": "{name} must be a JSON object",
}


class Refusal(BaseModel):
    """Why a request was refused, and what helps."""

    error: str
    fix: str = ""


def refused(exc: Exception) -> Response:
    """What an error says, with the status that fits it."""
    text, _, fix = str(exc).partition(" Fix: ")
    status = 409
    if isinstance(exc, TransportError):
        status = 503
    elif isinstance(exc, _NOT_THERE):
        status = 404
    elif isinstance(exc, ConfigurationError):
        status = 400
    return JSONResponse({"error": masked_line(text), "fix": masked_line(fix)}, status_code=status)


async def on_error(_request: Request, exc: Exception) -> Response:
    """An error of the library."""
    return refused(exc)


class Reading(BaseModel):
    """How many nodes have been read; both 0 where nothing is counted."""

    done: int
    of: int


class Later(BaseModel):
    """What was asked for is still being read: ask again in a second."""

    reading: Reading


def later(done: int = 0, of: int = 0) -> Response:
    """What was asked for is still being read."""
    found = Later(reading=Reading(done=done, of=of))
    return JSONResponse(found.model_dump(), 202, headers={"retry-after": "1"})


async def on_reading(_request: Request, exc: Exception) -> Response:
    """It takes longer."""
    return later(exc.done, exc.of) if isinstance(exc, StillReading) else later()


async def on_not_signed_in(_request: Request, _exc: Exception) -> Response:
    """Nobody is signed in."""
    return JSONResponse({"error": "you are not signed in", "fix": "sign in, and open this page again"}, 401)


async def on_not_allowed(_request: Request, exc: Exception) -> Response:
    """Whoever is signed in may not do this."""
    return JSONResponse({"error": str(exc), "fix": "ask whoever gives permissions"}, 403)


async def on_bad_value(_request: Request, exc: Exception) -> Response:
    """A value of the request is not valid."""
    errors = exc.errors() if isinstance(exc, RequestValidationError) else ()
    text = "; ".join(map(bad_value, errors))
    return JSONResponse({"error": text, "fix": ""}, 422)


async def on_no_route(request: Request, exc: Exception) -> Response:
    """Nothing answers at this address."""
    status = exc.status_code if isinstance(exc, HTTPException) else 404
    text, fix = "there is nothing at this address", ""
    if request.method not in ("GET", "HEAD"):
        text, fix = (
            f"this address takes no {request.method}",
            "a read-only console has no route that changes anything",
        )
    return JSONResponse({"error": text, "fix": fix}, status)


def bad_value(error: Mapping[str, Any]) -> str:
    """One error of pydantic in a sentence: ``limit must be at most 500, got 9999``."""
    place = [str(one) for one in error.get("loc", ())]
    name = ".".join(place[1:]) or "the body"
    kind, more = str(error.get("type")), error.get("ctx") or {}
    if kind in _ALONE:
        return _ALONE[kind].format(name=name)
    must = _MUST[kind].format(**more) if kind in _MUST else _reworded(str(error.get("msg", "")))
    got = masked_line(f"{error.get('input')}")
    return f"{name} must {must}, got {got if len(got) <= MAX_SHOWN else f'{got[:MAX_SHOWN]}…'}"


def _reworded(text: str) -> str:
    return text.removeprefix("Input should ") or "be something else"
