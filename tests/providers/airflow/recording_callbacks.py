"""Callbacks that note what they are told."""

from __future__ import annotations

import asyncio
import sys
import threading
import time

from airflow_provider_glidemq.callbacks import FlowEvent, GlideMQFlowCallback

events: list[tuple[str, FlowEvent]] = []
threads: set[int] = set()


class Noting(GlideMQFlowCallback):
    @staticmethod
    def on_submitted(event: FlowEvent) -> None:
        events.append(("submitted", event))

    @staticmethod
    def on_progress(event: FlowEvent) -> None:
        threads.add(threading.get_ident())
        events.append(("progress", event))

    @staticmethod
    def on_end(event: FlowEvent) -> None:
        events.append(("end", event))


class Async(GlideMQFlowCallback):
    @staticmethod
    async def on_progress(event: FlowEvent) -> None:
        await asyncio.sleep(0)
        events.append(("async progress", event))

    @staticmethod
    async def on_end(event: FlowEvent) -> None:
        await asyncio.sleep(0)
        events.append(("async end", event))


class Raising(GlideMQFlowCallback):
    @staticmethod
    def on_submitted(event: FlowEvent) -> None:
        raise KeyError("not my day")

    @staticmethod
    async def on_progress(event: FlowEvent) -> None:
        raise KeyError("not my day")

    on_end = on_submitted


class Slow(GlideMQFlowCallback):
    @staticmethod
    async def on_progress(event: FlowEvent) -> None:
        events.append(("slow", event))
        await asyncio.sleep(600)


class Blocking(GlideMQFlowCallback):
    @staticmethod
    def on_progress(event: FlowEvent) -> None:
        time.sleep(1)


def function(event: FlowEvent) -> None:
    pass


let_go = threading.Event()


class Exiting(GlideMQFlowCallback):
    @staticmethod
    def on_progress(event: FlowEvent) -> None:
        sys.exit(3)

    on_submitted = on_end = on_progress


class ExitingAsync(GlideMQFlowCallback):
    @staticmethod
    async def on_progress(event: FlowEvent) -> None:
        sys.exit(3)


class Hanging(GlideMQFlowCallback):
    @staticmethod
    def on_progress(event: FlowEvent) -> None:
        let_go.wait()


class HangingInTask(GlideMQFlowCallback):
    @staticmethod
    def on_submitted(event: FlowEvent) -> None:
        let_go.wait(20)

    @staticmethod
    async def on_end(event: FlowEvent) -> None:
        let_go.wait(20)


class Stubborn(GlideMQFlowCallback):
    @staticmethod
    async def on_progress(event: FlowEvent) -> None:
        while not let_go.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue
