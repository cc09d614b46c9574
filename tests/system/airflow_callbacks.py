"""Callbacks of flows that write down what they are told."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from airflow_provider_glidemq.callbacks import FlowEvent, GlideMQFlowCallback


def _note(kind: str, event: FlowEvent) -> None:
    told = {
        "kind": kind,
        "task": event.task_id,
        "flow_id": event.flow_id,
        "state": event.state,
        "completed": event.completed,
        "failed": list(event.failed),
        "try": event.try_number,
    }
    with Path(os.environ["TOLD_FILE"]).open("a") as file:
        file.write(f"{json.dumps(told)}\n")


class Noting(GlideMQFlowCallback):
    @staticmethod
    def on_submitted(event: FlowEvent) -> None:
        _note("submitted", event)

    @staticmethod
    def on_progress(event: FlowEvent) -> None:
        _note("progress", event)

    @staticmethod
    def on_end(event: FlowEvent) -> None:
        _note("end", event)


class Exiting(Noting):
    """What it does in a triggerer ends no triggerer."""

    @staticmethod
    def on_progress(event: FlowEvent) -> None:
        _note("exiting", event)
        sys.exit(3)
