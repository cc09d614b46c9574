"""Links to a user's dashboard for a flow, a queue or a job."""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter
from typing import Final
from urllib.parse import quote, urlsplit

PLACES: Final = ("flow_id", "queue", "job_id")
_SPACES: Final = frozenset(" \t\r\n")
_KNOWN: Final = "it may contain {flow_id}, {queue} and {job_id}"


def check_templates(text: str) -> str:
    """Return the text if its URLs have no placeholders except ``{flow_id}``, ``{queue}`` and ``{job_id}``.

    Raises:
        ValueError: A URL is not valid, or has another placeholder.
    """
    if not text.isprintable() and not _SPACES.issuperset(one for one in text if not one.isprintable()):
        raise ValueError("the URLs of a dashboard must not contain control characters")
    for template in text.split():
        _placeholders(template)
        if urlsplit(template).scheme not in ("http", "https") or not urlsplit(template).netloc:
            raise ValueError(f"each URL of a dashboard must begin with http:// or https://; {_KNOWN}")
    return text


def link_to(templates: str, known: Mapping[str, str]) -> str:
    """The first URL with a value for every placeholder, with the values filled in; empty without one."""
    for template in templates.split():
        if all(known.get(place) for place in _placeholders(template)):
            return template.format_map(
                {place: quote(value, safe="") for place, value in known.items() if value}
            )
    return ""


def _placeholders(template: str) -> list[str]:
    found = list(Formatter().parse(template))
    if any(
        name is not None and (name not in PLACES or form or conversion) for _, name, form, conversion in found
    ):
        raise ValueError(f"the URL of a dashboard has an unknown placeholder; {_KNOWN}")
    return [name for _, name, _, _ in found if name is not None]
