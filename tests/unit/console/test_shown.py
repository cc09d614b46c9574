"""Payloads as people see them."""

from __future__ import annotations

import time

import pytest

from glidemq_orchestrate.console.shown import MASK, masked_line, shown


@pytest.mark.parametrize(
    "key", ["password", "DB_PASSWORD", "api-key", "apiKey", "access_token", "client_secret", "Authorization"]
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
    "text", ["x" * 1_000_000, "://" * 300_000, "://a:" + "b" * 1_000_000, ":" * 1_000_000]
)
def test_masking_takes_as_long_as_the_text_is(text: str) -> None:
    began = time.process_time()
    masked_line(text)
    assert time.process_time() - began < 2
