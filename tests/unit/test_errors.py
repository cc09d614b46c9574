"""The tree of exceptions."""

from __future__ import annotations

import inspect
import pickle
import re
from datetime import timedelta
from pathlib import Path

import pytest

import glidemq_orchestrate
from glidemq_orchestrate import Unrecoverable, errors
from glidemq_orchestrate.errors import (
    CycleError,
    DuplicateNode,
    EncodeError,
    FailedNode,
    FlowCancelled,
    FlowFailed,
    GlideMQError,
    HandlerNotFound,
    JobFailed,
    QueueNotServed,
    UnknownDependency,
)
from glidemq_orchestrate.worker.handlers.signals import BatchError, HandlerSignal, RetryLater, Skip, Suspend

CLASSES: dict[str, type[GlideMQError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, GlideMQError) and kind.__module__ == errors.__name__
}


def documented_tree() -> dict[str, str]:
    """Parent by class as the docstring shows it."""
    parents, above = {}, ["Exception"]
    for indent, name in re.findall(r"^( {4,})(\w+)$", errors.__doc__ or "", re.MULTILINE):
        depth = (len(indent) - 4) // 2
        parents[name] = above[depth]
        above[depth + 1 :] = [name]
    return parents


def test_the_docstring_shows_the_tree_as_it_is() -> None:
    assert documented_tree() == {name: kind.__mro__[1].__name__ for name, kind in CLASSES.items()}


def raised_in(folder: Path) -> set[str]:
    code = "\n".join(
        path.read_text(encoding="utf-8") for path in folder.rglob("*.py") if path.name != "errors.py"
    )
    return {name for name in CLASSES if re.search(rf"\b{name}\b", code)}


def test_every_class_is_used_by_the_code() -> None:
    bases = {name for name, kind in CLASSES.items() if kind.__subclasses__()}
    package = Path(inspect.getfile(glidemq_orchestrate)).parent
    assert set(CLASSES) - raised_in(package) - bases == set()


EXAMPLES = [
    CycleError(["a", "b"]),
    DuplicateNode(["a"]),
    UnknownDependency({"a": ["b"]}),
    EncodeError("no JSON", where="data"),
    JobFailed("1", "why"),
    FlowFailed("f", [FailedNode("a", "f~a", "boom", 3)]),
    FlowCancelled("f", "why"),
    RetryLater(timedelta(seconds=3), "later", counts=False),
    Suspend("wait", timedelta(seconds=1)),
    Skip(),
    BatchError([1, ValueError("two")]),
]


def test_errors_and_signals_cross_processes_as_they_are(subtests: pytest.Subtests) -> None:
    for error in EXAMPLES:
        with subtests.test(error=error):
            found = pickle.loads(pickle.dumps(error))
            assert (type(found), str(found), found.args) == (type(error), str(error), error.args)
            assert repr(vars(found)) == repr(vars(error))


def test_no_error_is_left_out_of_that() -> None:
    for kind in CLASSES.values():
        error = kind.__new__(kind, "a text")
        found = pickle.loads(pickle.dumps(error))
        assert (type(found), str(found)) == (kind, "a text")


def test_every_error_can_be_caught_as_one() -> None:
    assert all(issubclass(kind, GlideMQError) for kind in CLASSES.values())


def test_what_may_succeed_later_is_marked_retryable() -> None:
    assert {name for name, kind in CLASSES.items() if kind.retryable} == {
        "TransportError",
        "ConnectionFailed",
        "OutcomeUnknown",
        "NotConfirmed",
        "ServerBusy",
        "FlowIncomplete",
        "GenerationTaken",
        "LibraryMissing",
        "WorkersMissing",
        "QueueNotServed",
        "HandlerNotFound",
        "WaitTimeout",
        "ScheduleBusy",
    }


def test_wrong_values_are_value_errors_too() -> None:
    found = {name for name, kind in CLASSES.items() if issubclass(kind, ValueError)}
    assert {"ConfigurationError", "InvalidFlow", "InvalidJob", "CodecError"} <= found
    assert "StateError" not in found


def test_a_handler_signal_is_not_an_error_of_the_package() -> None:
    assert issubclass(Unrecoverable, HandlerSignal)
    assert not issubclass(HandlerSignal, GlideMQError)


def test_a_failed_flow_names_its_causes_and_not_the_consequences() -> None:
    nodes = [FailedNode("a", "1", "ValueError: x", 1), FailedNode("b", "2", "upstream failed: a", 0)]
    assert str(FlowFailed("f", nodes)) == "flow f failed: a: ValueError: x"
    assert str(FlowFailed("f", nodes[1:])) == "flow f failed: b: upstream failed: a"
    many = [FailedNode(f"n{n}", "1", "x", 1) for n in range(5)]
    assert str(FlowFailed("f", many)) == "flow f failed: n0: x; n1: x; n2: x (and 2 more)"


def test_a_cancelled_flow_shows_the_reason() -> None:
    assert str(FlowCancelled("f", "too late")) == "flow f was cancelled: too late"
    assert str(FlowCancelled("f", "")) == "flow f was cancelled: no reason given"


def test_missing_workers_show_what_to_start() -> None:
    assert "--queue a --queue b" in str(QueueNotServed(["a", "b"]))
    assert "queue a." in str(QueueNotServed(["a"]))
    text = str(HandlerNotFound({"a": ["x", "y"]}, {"a": []}))
    assert "queue a: no handler for jobs x, y (known: none)" in text
