"""How much the tests try: more with ``GLIDEMQ_TEST_PROFILE=long``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, TypeVar

T = TypeVar("T")

IS_LONG: Final = os.environ.get("GLIDEMQ_TEST_PROFILE") == "long"


def sampled(whole: Sequence[T], step: int = 6) -> Sequence[T]:
    """The first, each ``step``-th after it and the last; all in the long profile.

    For the places at which somebody dies: what one of them finds, its neighbours mostly find too.
    """
    return whole if IS_LONG else [*whole[:-1:step], whole[-1]]
