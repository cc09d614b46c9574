"""Common mistakes are answered with a sentence: the place and the remedy, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from glidemq_orchestrate import (
    ConnectionSettings,
    FlowNode,
    FlowSpec,
    Handlers,
    JobOptions,
    NewJob,
    Queue,
    check_flow,
)
from glidemq_orchestrate.errors import ConfigurationError, GlideMQError
from glidemq_orchestrate.foundation.suggestions import nearest
from glidemq_orchestrate.queues.listing import JobFilter
from glidemq_orchestrate.worker.services.apps import load_handlers


def submitted(node: Any) -> object:
    return check_flow(FlowSpec("nightly", [node], queue="etl"))


def written(**node: Any) -> object:
    return FlowSpec.from_dict({"name": "nightly", "nodes": [{"name": "load", "queue": "etl"} | node]})


def clean() -> None: ...


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "a function for the job": (
        lambda: submitted(FlowNode("load", job=clean)),  # type: ignore[arg-type]
        "node load: job name must be text, got the function clean. Fix: use its name, 'clean'",
    ),
    "a dict for a flow": (
        lambda: check_flow({"name": "nightly"}),  # type: ignore[arg-type]
        "a flow must be a FlowSpec, got dict. Fix: FlowSpec.from_dict({...})",
    ),
    "a dict for the options": (
        lambda: submitted(FlowNode("load", options={"attempts": 3})),  # type: ignore[arg-type]
        "Fix: the options as keywords (attempts=3), or JobOptions(attempts=3)",
    ),
    "a number for the backoff": (
        lambda: JobOptions(backoff=5),  # type: ignore[arg-type]
        "backoff must be Backoff or None, got int. Fix: backoff=Backoff(delay=5)",
    ),
    "a text for a duration": (
        lambda: FlowNode("load", timeout="5m"),  # type: ignore[arg-type]
        "timeout must be a timedelta or a number of seconds, got str '5m'. Fix: 300",
    ),
    "a keyword of another tool": (
        lambda: NewJob("load", retries=3),  # type: ignore[call-arg]
        "there is no option 'retries'; did you mean 'attempts'?",
    ),
    "a keyword with the name of what it gives": (
        lambda: NewJob("load", custom_id="load-1"),  # type: ignore[call-arg]
        "there is no option 'custom_id'; did you mean 'job_id'?",
    ),
    "an argument of another tool": (
        lambda: FlowNode("load", depends_on=["extract"]),  # type: ignore[call-arg]
        "there is no option 'depends_on'; did you mean 'after'?",
    ),
    "a dependency with a typing error": (
        lambda: check_flow(FlowSpec("n", [FlowNode("load"), FlowNode("b", after=["laod"])], queue="etl")),
        "b waits for laod; did you mean 'load'?",
    ),
    "a state that is none": (
        lambda: JobFilter("complete"),  # type: ignore[arg-type]
        "there is no state 'complete'; did you mean 'completed'?",
    ),
    "a field of another tool in a file": (
        lambda: written(depends_on=["extract"]),
        "node load: there is no field 'depends_on'; did you mean 'after'?",
    ),
    "an option beside the options in a file": (
        lambda: written(retries=3),
        "node load: there is no field 'retries'; did you mean 'options.attempts'?",
    ),
    "a duration in words in a file": (
        lambda: written(options={"timeout": "5 minutes"}),
        "node load: options.timeout: '5 minutes' is not a duration. Fix: use seconds, 5m or PT5M",
    ),
    "a number in words in a file": (
        lambda: written(options={"attempts": "three"}),
        "node load: options.attempts: 'three' is not a whole number",
    ),
    "a kind for a backoff in a file": (
        lambda: written(options={"backoff": "exponential"}),
        "node load: options.backoff: must be like {kind: exponential, delay: 10}, got 'exponential'",
    ),
    "a number for a backoff in a file": (
        lambda: written(options={"backoff": 5}),
        "node load: options.backoff: must be like {delay: 5}, got 5",
    ),
    "a name for a list of names in a file": (
        lambda: written(after="extract"),
        "node load: after: must be like [extract], got 'extract'",
    ),
    "a duration inside of an option in a file": (
        lambda: written(options={"backoff": {"delay": "soon"}}),
        "node load: options.backoff.delay: 'soon' is not a duration",
    ),
    "a missing name in a file": (
        lambda: FlowSpec.from_dict({"name": "nightly", "nodes": [{"queue": "etl"}]}),
        "node number 1: name: is missing",
    ),
    "an option beside the options in YAML": (
        lambda: written(timeout="5m"),
        "node load: there is no field 'timeout'; did you mean 'options.timeout'?",
    ),
    "a rule with a typing error": (
        lambda: submitted(FlowNode("load", rule="one_failled")),
        "rule 'one_failled' is unknown; did you mean 'one_failed'?",
    ),
    "a policy with a typing error": (
        lambda: submitted(FlowNode("load", on_failure="ignor")),
        "on_failure 'ignor' is unknown; did you mean 'ignore'?",
    ),
    "a rule with a typing error in a file": (
        lambda: written(rule="one_fail"),
        "node load: rule: 'one_fail' is unknown; did you mean 'one_failed'?",
    ),
    "a policy with a typing error in a file": (
        lambda: written(on_failure="ignor"),
        "node load: on_failure: 'ignor' is unknown; did you mean 'ignore'?",
    ),
    "a kind of backoff with a typing error in a file": (
        lambda: written(options={"backoff": {"kind": "exponentiel"}}),
        "node load: options.backoff.kind: 'exponentiel' is unknown; did you mean 'exponential'?",
    ),
    "a word for no rule in a file": (
        lambda: written(rule="sometimes"),
        "node load: rule: must be 'all_success', 'all_failed', 'all_done'",
    ),
    "a date in the data": (
        lambda: submitted(FlowNode("load", data={"day": date(2026, 1, 1)})),  # type: ignore[dict-item]
        "Object of type date is not JSON serializable. Fix: write it as text, in YAML in quotes",
    ),
    "an address in place of a URL": (
        lambda: ConnectionSettings("127.0.0.1:7801").kind,
        "; did you mean valkey://127.0.0.1:7801?",
    ),
    "a handler with two arguments": (
        lambda: Handlers().handler("load")(lambda ctx, day: day),  # type: ignore[type-var]
        "handler 'load' must take one argument, ctx: missing a required argument: 'day'",
    ),
    "a handler without an argument": (
        lambda: Handlers().handler(clean),  # type: ignore[type-var]
        "handler 'clean' must take one argument, ctx: too many positional arguments",
    ),
    "a word for no field in a file": (
        lambda: written(colour="red"),
        "node load: there is no field 'colour'. Fix: use name, queue, job, data, after,",
    ),
}


def test_a_mistake_is_answered_with_its_place_and_remedy(subtests: pytest.Subtests) -> None:
    for mistake, (make, answer) in MISTAKES.items():
        with subtests.test(mistake=mistake):
            with pytest.raises(GlideMQError) as raised:
                make()
            assert answer in str(raised.value)


def test_errors_in_a_file_name_the_line(tmp_path: Path) -> None:
    file = tmp_path / "nightly.yaml"
    file.write_text(
        "name: nightly\nnodes:\n  - name: load\n    queue: etl\n    options:\n      timeout: soon\n"
    )
    with pytest.raises(GlideMQError, match=r"nightly\.yaml: .*line 6, node load: options\.timeout: 'soon'"):
        FlowSpec.from_file(file)
    (tmp_path / "nightly.json").write_text('{"name": "n",\n "nodes": [\n  {"queue": "etl"}]}')
    with pytest.raises(GlideMQError, match="line 3, node number 1: name: is missing"):
        FlowSpec.from_file(tmp_path / "nightly.json")


def test_a_word_without_a_likeness_suggests_nothing() -> None:
    assert nearest("colour", ["name", "queue"]) is None
    assert nearest(7, ["name"]) is None
    with pytest.raises(ConfigurationError, match="Fix: use waiting"):
        JobFilter("xyz")  # type: ignore[arg-type]


def test_a_wrong_app_names_the_right_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mistaken_steps.py").write_text(
        "from glidemq_orchestrate import Handlers\nhandlers = Handlers()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"Fix: leave \.py out: --app mistaken_steps$"):
        load_handlers("mistaken_steps.py")
    with pytest.raises(ConfigurationError, match=r"did you mean 'mistaken_steps:handlers'\?"):
        load_handlers("mistaken_steps:handler")


def test_wrong_arguments_are_answered_with_the_method_that_was_called() -> None:
    with (
        Queue("etl", "redis://127.0.0.1:1") as queue,
        pytest.raises(TypeError, match=r"^Queue\.get_job\(\) got an unexpected keyword argument 'jobid'"),
    ):
        queue.get_job(jobid="1")  # type: ignore[call-arg]
