"""open_pipes: whose jobs it takes, and how large a message may be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from glidemq_orchestrate import Context
from glidemq_orchestrate.errors import ConfigurationError, PayloadTooLarge
from glidemq_orchestrate.pipes import MAX_MESSAGE_BYTES, is_pipes_job, open_pipes, shortened
from glidemq_orchestrate.worker.handlers.context import Reporter

DATA: dict[str, Any] = {
    "asset_keys": ["a"],
    "code_version_by_asset_key": {"a": None},
    "provenance_by_asset_key": {"a": None},
    "partition_key": None,
    "partition_key_range": None,
    "partition_time_window": None,
    "run_id": "r",
    "job_name": None,
    "retry_number": 0,
    "extras": {"limit": 3},
}
BOOTSTRAP = {"dagster_pipes": {"DAGSTER_PIPES_CONTEXT": {"data": DATA}, "DAGSTER_PIPES_MESSAGES": {}}}


class Kept(Reporter):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def write_message(self, text: str) -> None:
        self.texts.append(text)


def context(data: Any, reporter: Reporter | None = None) -> Context:
    return Context("etl", "j", "work", 1, data, {}, None, None, reporter or Reporter())


def test_several_jobs_of_a_process_have_contexts_of_their_own() -> None:
    first, second = Kept(), Kept()
    with open_pipes(context(BOOTSTRAP, first)) as one, open_pipes(context(BOOTSTRAP, second)) as other:
        assert one.get_extra("limit") == 3
        one.report_asset_materialization(metadata={"rows": 1})
        other.log.info("hello")
    methods = [[json.loads(text)["method"] for text in kept.texts] for kept in (first, second)]
    assert methods == [["opened", "report_asset_materialization", "closed"], ["opened", "log", "closed"]]


def test_a_job_of_another_producer_is_refused(subtests: pytest.Subtests) -> None:
    foreign: list[Any] = [None, 7, [], {}, {"dagster_pipes": {}}, {"dagster_pipes": "x"}]
    for data in foreign:
        with subtests.test(data=data):
            assert not is_pipes_job(context(data))
            with pytest.raises(ConfigurationError, match="was not submitted by PipesGlideMQClient"):
                open_pipes(context(data))


def test_long_log_lines_and_stack_traces_are_shortened(subtests: pytest.Subtests) -> None:
    for letter in ("x", "é", "😀"):
        with subtests.test(letter=letter):
            text = letter * 1_000_000
            for message in (
                {"method": "log", "params": {"message": text, "level": "INFO"}},
                {"method": "log_external_stream", "params": {"stream": "stdout", "text": text, "extras": {}}},
                {
                    "method": "closed",
                    "params": {"exception": {"message": text, "stack": [text], "name": "E"}},
                },
            ):
                short = shortened(message)
                assert len(short) <= MAX_MESSAGE_BYTES
                assert json.loads(short)["method"] == message["method"]
                assert " ... (shortened)" in short


def test_a_report_that_is_too_large_is_an_error_of_the_handler() -> None:
    with (
        open_pipes(context(BOOTSTRAP, Kept())) as pipes,
        pytest.raises(PayloadTooLarge, match="report_custom"),
    ):
        pipes.report_custom_message("x" * MAX_MESSAGE_BYTES)
