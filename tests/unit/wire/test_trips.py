"""Trips: how many calls each takes, and that nothing is taken before it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import Call, command
from glidemq_orchestrate.wire.trips import Leading, Trips

if TYPE_CHECKING:
    from collections.abc import Iterator


def echoes(count: int, taken: list[int]) -> Iterator[Call[str]]:
    for number in range(count):
        taken.append(number)
        yield command("ECHO", number, decode=replies.text)


def numbers(trip: list[Call[str]]) -> list[object]:
    return [call.words[1] for call in trip]


def test_trips_grow_and_have_each_call_once_and_in_order() -> None:
    trips = Trips(echoes(150, []))
    found = []
    while trip := trips.take():
        found.append(numbers(trip))
        assert trips.is_over == (len(found) == 8)
    assert [len(trip) for trip in found] == [1, 4, 16, 32, 32, 32, 32, 1]
    assert [number for trip in found for number in trip] == list(range(150))
    assert trips.take() == []


@pytest.mark.parametrize("looks", [0, 1, 3])
def test_the_first_call_of_a_trip_knows_the_next_trip(looks: int) -> None:
    taken: list[int] = []
    trips = Trips(echoes(5, taken))
    first, *_ = trips.take()
    assert len(taken) == 2
    assert isinstance(first, Leading)
    for _ in range(looks):
        assert numbers(list(first.following())) == [1, 2, 3, 4]
    assert not trips.is_over
    assert numbers(trips.take()) == [1, 2, 3, 4]
    assert trips.is_over


@pytest.mark.parametrize("count", [0, 1])
def test_a_single_trip_leads_to_nothing(count: int) -> None:
    trips = Trips(echoes(count, []))
    trip = trips.take()
    assert numbers(trip) == list(range(count))
    assert trips.is_over
    assert not any(isinstance(call, Leading) for call in trip)


def test_an_error_of_the_iterator_is_raised_each_time() -> None:
    def some() -> Iterator[Call[str]]:
        yield from echoes(3, [])
        raise MemoryError

    trips = Trips(some())
    first, *_ = trips.take()
    assert isinstance(first, Leading)
    for _ in range(2):
        with pytest.raises(MemoryError):
            first.following()
    assert not trips.is_over
    for _ in range(2):
        with pytest.raises(MemoryError):
            trips.take()
