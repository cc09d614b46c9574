"""A server of its own: its library has dice that the scheduler seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.profile import IS_LONG
from tests.properties.simulation.store import opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.properties.simulation.store import Store


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with opened() as made:
        yield made


@pytest.fixture(scope="session")
def is_long() -> bool:
    """Whether there is time for much more: ``GLIDEMQ_TEST_PROFILE=long``."""
    return IS_LONG
