"""The life cycle of a job: the table reads well, names calls that exist, and the page shows it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from glidemq_orchestrate._lua import GLIDEMQ, ORCHESTRATE, library
from glidemq_orchestrate.jobs.states import (
    ABSENT,
    EndedState,
    JobState,
    JobStateLike,
    leads_to,
    page,
    steps,
)

ROOT = Path(__file__).parents[3]
STORED = {str(state) for state in JobState if state not in (JobState.SKIPPED, JobState.UNKNOWN)}


def test_every_state_is_entered_and_left() -> None:
    assert {step.source for step in steps()} == STORED | {ABSENT}
    assert {step.target for step in steps()} == STORED | {ABSENT}


def test_every_call_is_a_function_of_a_library() -> None:
    sources = library(GLIDEMQ).source + library(ORCHESTRATE).source
    registered = set(re.findall(r"(?:glidemq|gmo)_\w+", sources))
    assert {call for step in steps() for call in step.calls} - registered == set()


def test_a_job_that_has_ended_begins_again_only_by_a_retry_or_a_flow() -> None:
    ended = {"completed", "failed"}
    back = {step.what for step in steps() if step.source in ended and step.target in STORED - ended}
    assert back == {"retried", "reset", "message settled"}


def test_one_call_may_do_several_steps() -> None:
    assert "active" in leads_to("gmo_finish_and_fetch", "delayed")
    assert leads_to("glidemq_signal", "suspended") == {"suspended", "waiting"}


def test_the_page_shows_the_table() -> None:
    found = (ROOT / "docs" / "reference" / "job-states.md").read_text(encoding="utf-8")
    assert found == page(), "make tables writes it again"


def test_the_texts_of_all_states_are_states() -> None:
    _, texts = get_args(JobStateLike)
    assert set(get_args(texts)) == {state.value for state in JobState}
    assert set(get_args(EndedState)) == {JobState.COMPLETED, JobState.FAILED}
