"""URLs of a dashboard of the user."""

from __future__ import annotations

import pytest

from glidemq_orchestrate.dashboard import check_templates, link_to

WRONG_URLS: list[tuple[str, str]] = [
    ("https://x/{flowid}", "an unknown placeholder; it may contain {flow_id}, {queue} and {job_id}"),
    ("https://x/{queue!r}", "an unknown placeholder"),
    ("ftp://x/{queue}", "must begin with http:// or https://"),
    ("https://", "must begin with http:// or https://"),
]


def test_the_first_url_whose_places_are_known_is_the_link() -> None:
    templates = check_templates("https://mq/f/{flow_id} https://mq/q/{queue}")
    assert link_to(templates, {"flow_id": "a b", "queue": "etl"}) == "https://mq/f/a%20b"
    assert link_to(templates, {"queue": "etl"}) == "https://mq/q/etl"


def test_another_place_or_scheme_is_refused_with_what_may_be_there(subtests: pytest.Subtests) -> None:
    for text, expected in WRONG_URLS:
        with subtests.test(text=text), pytest.raises(ValueError, match=expected.replace("{", r"\{")):
            check_templates(text)
