"""Pipes: a job or a flow runs the code of an asset or op, and its reports become Dagster events."""

from __future__ import annotations

from dagster_glidemq.pipes.client import PipesGlideMQClient

__all__ = ["PipesGlideMQClient"]
