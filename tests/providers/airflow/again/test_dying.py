"""A worker dies before or after any of its requests to the server; the next try goes on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from airflow_provider_glidemq.exceptions import (
    GlideMQFlowFailed,
)
from airflow_provider_glidemq.operators.glidemq import flow_id_for

from glidemq_orchestrate import FlowProducer
from glidemq_orchestrate.io.sync import SyncDriver
from tests.providers.airflow.again.generations import generations
from tests.providers.airflow.builders import (
    CLEARED,
    RETRIED,
    Contexts,
    Valkey,
    blocking,
    load,
)


class _Died(BaseException):
    """The process ends here, by a kill -9."""


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let the process die at its n-th request: an odd one is sent, an even one is not."""
    reply_to, left = SyncDriver._reply_to, [10**9]

    def request(self: SyncDriver, *args: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise _Died
        reply = reply_to(self, *args)
        left[0] -= 1
        if left[0] == 0:
            raise _Died
        return reply

    def at(steps: int) -> None:
        left[0] = steps + 1

    monkeypatch.setattr(SyncDriver, "_reply_to", request)
    return at


@pytest.mark.long
@pytest.mark.parametrize("kind", ["clear", "mended", "first"])
def test_a_try_continues_one_that_died_at_any_request(
    flows: FlowProducer,
    valkey: Valkey,
    context: Contexts,
    dying: Callable[[int], None],
    kind: str,
) -> None:
    deaths = 0
    for steps in range(200):
        run_id = f"{kind}{steps}"
        now = {"clear": CLEARED, "mended": RETRIED, "first": {}}[kind]
        mended = load("echo", 5) if kind == "mended" else load()
        if kind != "first":
            with suppress(GlideMQFlowFailed):
                blocking(load("fail") if kind == "mended" else load()).execute(context(run_id=run_id))
        ran = len(valkey.ran)
        dying(steps)
        try:
            blocking(mended).execute(context(run_id=run_id, **now))
        except _Died:
            deaths += 1
            dying(10**9)
            again = {**now, "try_number": now.get("try_number", 1) + 1}
            results = blocking(mended).execute(context(run_id=run_id, **again))
            fresh = {"extract": ran + 1, "load": ran + 2}
            assert results == ({"extract": ran, "load": 5} if kind == "mended" else fresh), steps
        else:
            dying(10**9)
            break
        ends = generations(flows, flow_id_for("d", "t", run_id))
        assert ends == [*{"clear": ["completed"], "mended": ["failed"]}.get(kind, []), "completed"], steps
    assert 10 < deaths < 199
