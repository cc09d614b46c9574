"""Payloads as people see them."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from glidemq_orchestrate.console.shown import MASK, masked_line, shown


@pytest.mark.parametrize(
    "key",
    [
        "password",
        "DB_PASSWORD",
        "pwd",
        "api-key",
        "apiKey",
        "access_token",
        "client_secret",
        "Authorization",
        "aws_secret_access_key",
        "SECRET_KEY",
        "SecretString",
        "set-cookie",
    ],
)
def test_values_of_keys_that_look_like_secrets_are_masked(key: str) -> None:
    found = shown({"a": [{key: "hunter2"}]})
    assert ("hunter2" in found["text"], MASK in found["text"], found["masked"]) == (False, True, 1)


@pytest.mark.parametrize("key", ["passenger", "tokens_used", "secretary", "authors", "keys"])
def test_other_keys_are_not(key: str) -> None:
    assert shown({key: "hunter2"})["masked"] == 0


def test_passwords_in_urls_are_masked() -> None:
    line = "connect postgresql://me:hunter2@db:5432/x?a=b and valkey://:hunter2@h, http://host:80/a@b"
    assert (
        masked_line(line)
        == "connect postgresql://me:***@db:5432/x?a=b and valkey://:***@h, http://host:80/a@b"
    )


@pytest.mark.parametrize(
    "value",
    [
        [["Authorization", "Bearer hunter2"]],
        [{"name": "DB_PASSWORD", "value": "hunter2"}],
        {"Key": "token", "Value": "hunter2"},
        '{"password": "hunter2"}',
        json.dumps(json.dumps({"a": [{"api_key": "hunter2"}]})),
        "https://host/x?a=1&token=hunter2&b=2",
        "host=db password=hunter2 user=me",
        "mysql://me:p@ss-hunter2@db/x",
        "curl -H 'Authorization: Basic hunter2' host",
        "ValueError: bad settings {'db_password': 'hunter2', 'a': 1}",
        'got {\\"password\\": \\"hunter2\\"}',
        "sent Bearer abc.hunter2",
    ],
)
def test_secrets_in_odd_places_are_masked(value: Any) -> None:
    found = shown({"a": value})
    assert ("hunter2" in found["text"], found["masked"]) == (False, 1), found["text"]


@pytest.mark.parametrize(
    "text",
    [
        "Basic authentication is needed",
        "Unexpected token: }",
        "bearer of the news",
        "tokens_used=5",
        '["a", "b"]',
        "{not json",
    ],
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert (shown(text)["masked"], masked_line(text)) == (0, text)


@pytest.mark.parametrize(
    "text",
    [
        "x" * 1_000_000,
        "://" * 300_000,
        "://a:" + "b" * 1_000_000,
        ":" * 1_000_000,
        'password="' * 100_000,
        "bearer " * 150_000,
        "[" * 1_000_000,
        "token" + " " * 1_000_000,
    ],
)
def test_masking_takes_as_long_as_the_text_is(text: str) -> None:
    began = time.process_time()
    masked_line(text)
    assert time.process_time() - began < 2
