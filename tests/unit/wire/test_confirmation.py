"""Operations go on to their end where a step was not confirmed, and report it then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate.errors import (
    ConfigurationError,
    FlowConflict,
    InvalidJob,
    JobNotFound,
    NotConfirmed,
    ServerBusy,
)
from glidemq_orchestrate.wire.call import Batch, Call, Op, Unconfirmed, ask, ask_all, command
from glidemq_orchestrate.wire.confirmation import Confirmation, check_confirmation, standing, unconfirmed
from glidemq_orchestrate.wire.replies import error_from

if TYPE_CHECKING:
    from tests.unit.conftest import Scripted


def step(number: int) -> Call[int]:
    return command("SET", f"k{number}", "v", decode=int)


def steps() -> Op[list[int]]:
    first = yield from ask(step(1))
    both = yield from ask_all([step(2), step(3)])
    last = yield from ask(step(4))
    return [first, *both, last]


def missed(reply: Any, why: str = "missed") -> Unconfirmed:
    return Unconfirmed(why, reply)


def requests(op: Op[Any], replies: list[Any]) -> tuple[list[bool], Any]:
    """Whether each call of an operation waits, and what the operation returns or raises."""
    waits: list[bool] = []
    try:
        request = next(op)
        while True:
            calls = request.calls if isinstance(request, Batch) else (request,)
            waits += [call.confirms for call in calls]
            reply = replies.pop(0)
            request = op.throw(reply) if isinstance(reply, Exception) else op.send(reply)
    except StopIteration as stop:
        return waits, stop.value
    except Exception as exc:  # noqa: BLE001  it is the result
        return waits, exc


def test_what_is_confirmed_is_passed_on() -> None:
    assert requests(standing(steps()), [1, [2, 3], 4]) == ([True] * 4, [1, 2, 3, 4])


OPERATIONS: list[tuple[list[Any], list[bool]]] = [
    ([missed(1), [2, 3], 4], [True, False, False, False]),
    ([1, [2, missed(3)], 4], [True, True, True, False]),
    ([1, [missed(2), missed(3, "other")], 4], [True, True, True, False]),
    ([1, [2, 3], missed(4)], [True] * 4),
]


def test_an_operation_ends_before_it_reports_that_a_step_was_not_confirmed(subtests: pytest.Subtests) -> None:
    for replies, waits in OPERATIONS:
        with subtests.test(replies=replies):
            found, error = requests(standing(steps()), replies)
            assert (found, type(error), str(error), vars(error)) == (
                waits,
                NotConfirmed,
                "missed",
                {"code": None},
            )


def test_a_refusal_goes_before_a_missing_confirmation() -> None:
    refusal = ServerBusy("OOM")
    assert requests(standing(steps()), [missed(1), refusal]) == ([True, False, False], refusal)
    assert requests(standing(steps()), [1, [2, refusal]]) == ([True] * 3, refusal)


def step_and_raise(error: Exception) -> Op[None]:
    yield from ask(step(1))
    raise error


def test_an_answer_that_a_repeat_gets_counts_once_it_is_confirmed(subtests: pytest.Subtests) -> None:
    for first in (1, missed(1)):
        for answer in (InvalidJob("exists"), JobNotFound("gone"), FlowConflict("another")):
            with subtests.test(first=first, answer=answer):
                _, error = requests(standing(step_and_raise(answer)), [first])
                is_awaited = first != 1 and not isinstance(answer, FlowConflict)
                assert (type(error), error.__cause__) == (
                    (NotConfirmed, answer) if is_awaited else (type(answer), None)
                )


def test_what_nobody_relies_on_waits_for_nothing() -> None:
    assert requests(unconfirmed(steps()), [1, [2, 3], 4]) == ([False] * 4, [1, 2, 3, 4])
    assert requests(standing(unconfirmed(steps())), [1, [2, 3], 4])[0] == [False] * 4


@pytest.mark.parametrize(
    ("wanted", "reply", "why"),
    [
        (Confirmation(True, 0), "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.",
         "set appendonly yes"),
        (Confirmation(True, 0), "ERR unknown command 'WAITAOF', with args beginning with:", "or Redis 7.2"),
    ],
)  # fmt: skip
def test_a_server_that_cannot_confirm_is_refused(
    scripted: Scripted, wanted: Confirmation, reply: str, why: str
) -> None:
    with pytest.raises(ConfigurationError, match=why):
        scripted(check_confirmation(wanted), [[error_from(reply)]])


def test_a_server_is_asked_only_about_what_is_wanted(scripted: Scripted) -> None:
    assert scripted(check_confirmation(None), []).value is None
    asked = scripted(check_confirmation(Confirmation(disk=False, replicas=2)), [[0]])
    assert asked.value is None
    replica = error_from("ERR WAIT cannot be used with replica instances.")
    assert scripted(check_confirmation(Confirmation(disk=False, replicas=2)), [[replica]]).value is None
