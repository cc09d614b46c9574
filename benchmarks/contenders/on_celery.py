"""Celery with Redis as broker and result backend."""

from __future__ import annotations

import time
from typing import Any, Final

import celery
from celery import Celery, chord, group

from benchmarks.contenders import handlers, talk
from benchmarks.contenders.handlers import DATA, LOOK_SECONDS
from benchmarks.contenders.shapes import WIDTH

PATIENCE: Final = 300.0
app: Any = Celery("bench")
app.conf.update(
    task_ignore_result=False,
    task_store_errors_even_if_ignored=False,
    worker_prefetch_multiplier=16,
    worker_send_task_events=False,
    task_send_sent_event=False,
    worker_enable_remote_control=False,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)
noop: Any = app.task(name="noop", ignore_result=True)(handlers.noop)
step: Any = app.task(name="step")(handlers.noop)
gate: Any = app.task(name="gate", ignore_result=True)(handlers.gate)


@app.task(name="join")  # type: ignore[untyped-decorator]
def join(results: list[Any]) -> int:
    """A task that waits for many."""
    return len(results)


class Producer:
    """``apply_async`` and the canvas."""

    def __init__(self, url: str) -> None:
        _connect(url)
        self._client = app.backend.client
        self._flow: Any = None

    def add_one_by_one(self, count: int) -> None:
        """See ``talk.Producer``."""
        for _ in range(count):
            noop.apply_async((DATA,))

    def add_in_bulk(self, count: int) -> None:
        """See ``talk.Producer``. Celery has no bulk call: one connection is kept for all."""
        with app.producer_or_acquire() as producer:
            for _ in range(count):
                noop.apply_async((DATA,), producer=producer)

    def add_gates(self, count: int, folder: str) -> None:
        """See ``talk.Producer``."""
        for _ in range(count):
            gate.apply_async((folder,))

    def left(self) -> int:
        """See ``talk.Producer``. A message counts as done when it is acknowledged: before it runs."""
        return int(self._client.llen("celery") + self._client.hlen("unacked"))

    def run_one(self) -> None:
        """See ``talk.Producer``."""
        step.apply_async((DATA,)).get(timeout=PATIENCE)

    def submit(self, shape: str, size: int) -> bool:
        """See ``talk.Producer``."""
        canvas = _canvas(shape, size)
        self._flow = canvas and canvas.apply_async()
        return canvas is not None

    def wait(self) -> None:
        """See ``talk.Producer``. By polling: ``get`` may miss the message about a wide chord."""
        while not self._flow.ready():
            time.sleep(LOOK_SECONDS)


def _canvas(shape: str, size: int) -> Any:
    match shape:
        case "fan-in":
            return chord([step.si(DATA) for _ in range(size - 1)], join.s())
        case "chain":
            return celery.chain(*[step.si(DATA) for _ in range(size)])
        case "columns":
            tall = (size - 1) // WIDTH
            return chord([celery.chain(*[step.si(DATA)] * tall) for _ in range(WIDTH)], join.s())
        case "layers":
            parts: list[Any] = []
            for _ in range(size // WIDTH):
                parts += (group([step.si(DATA) for _ in range(WIDTH - 1)]), join.s())
            return celery.chain(*parts)
        case _:
            return None


def _connect(url: str) -> None:
    app.conf.update(broker_url=url, result_backend=url)


def work(url: str, concurrency: int) -> None:
    """Run jobs until stopped by a signal."""
    _connect(url)
    options = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "WARNING", "-O", "fair"]
    app.worker_main(["worker", "-P", "prefork", "-c", str(concurrency), *options])


if __name__ == "__main__":
    talk.run(Producer, work)
