"""Airflow provider for glidemq-orchestrate. Imports nothing: every Airflow process loads it."""

from __future__ import annotations

__version__ = "0.1.0"
