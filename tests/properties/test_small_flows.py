"""All small flows end as their rules and policies say, on both paths; some of them when time is short."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import pytest

from tests.properties.simulation.plan import QUEUES
from tests.properties.small_flows import (
    CHAIN,
    DIAMOND,
    FAN_IN,
    FAN_OUT,
    PAIR,
    TRIANGLE,
    WIDE_FAN_IN,
    Bulk,
    Shape,
    flows,
)

if TYPE_CHECKING:
    from tests.properties.simulation.plan import Path
    from tests.properties.simulation.store import Store

AT_ONCE = 90


# One of so many flows is run: when time is short, and when it is not.
@pytest.mark.parametrize(
    ("shape", "short", "long"),
    [
        pytest.param(PAIR, 3, 1, id="pair"),
        pytest.param(FAN_IN, 7, 1, id="fan-in"),
        pytest.param(FAN_OUT, 11, 1, id="fan-out"),
        pytest.param(CHAIN, 101, 1, id="chain"),
        pytest.param(TRIANGLE, 101, 1, id="triangle"),
        pytest.param(WIDE_FAN_IN, 211, 3, id="wide fan-in"),
        pytest.param(DIAMOND, 40_009, 201, id="diamond"),
    ],
)
@pytest.mark.parametrize("path", ["staged", "portable"])
@pytest.mark.timeout(7_200)
def test_a_flow_of_this_shape_ends_as_its_rules_say(
    store: Store, path: Path, shape: Shape, short: int, long: int, *, is_long: bool
) -> None:
    every = long if is_long else short if path == "staged" else 5 * short
    chosen = flows(shape, QUEUES[path], every=every, edges=shape is PAIR)
    ran = 0
    while some := list(islice(chosen, AT_ONCE)):
        assert list(Bulk(store, path).problems(some)) == []
        ran += len(some)
    assert ran > 10
