"""What Airflow shows and registers of this distribution. Imports nothing: every Airflow process calls it."""

from __future__ import annotations

from typing import Any, Final

INTEGRATION: Final = "glide-mq"


def get_provider_info() -> dict[str, Any]:
    """Describe the provider in the form of Airflow's ``provider_info.schema.json``."""
    return {
        "package-name": "airflow-provider-glidemq",
        "name": "glide-mq",
        "description": "Runs a DAG of small steps as one flow of jobs on Valkey, behind one deferrable task.",
        "integrations": [
            {
                "integration-name": INTEGRATION,
                "tags": ["service"],
            }
        ],
        "hooks": _modules("hooks"),
        "operators": _modules("operators"),
        "sensors": _modules("sensors"),
        "triggers": _modules("triggers"),
        "connection-types": [
            {
                "connection-type": "glidemq",
                "hook-class-name": "airflow_provider_glidemq.hooks.glidemq.GlideMQHook",
                "hook-name": "glide-mq (Valkey)",
                "ui-field-behaviour": {
                    "hidden-fields": ["schema"],
                    "relabeling": {"login": "ACL user"},
                    "placeholders": {"host": "valkey.internal", "port": "6379"},
                },
                "conn-fields": _fields(),
            }
        ],
    }


def _modules(kind: str) -> list[dict[str, Any]]:
    return [{"integration-name": INTEGRATION, "python-modules": [f"airflow_provider_glidemq.{kind}.glidemq"]}]


def _fields() -> dict[str, Any]:
    return {
        "prefix": {
            "label": "Key prefix",
            "description": "First part of every key; the same as the workers'.",
            "schema": {"type": ["string", "null"], "default": "glide"},
        },
        "db": {"label": "Database", "schema": {"type": ["integer", "null"], "default": 0, "minimum": 0}},
        "tls": {"label": "TLS", "schema": {"type": ["boolean", "null"], "default": False}},
        "tls_ca_file": {
            "label": "CA certificate file",
            "description": "Path on workers and triggerers; the system's certificates when empty.",
            "schema": {"type": ["string", "null"]},
        },
    }
