"""The provider info that Airflow shows and registers. Imports nothing: every Airflow process calls it."""

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
        "triggers": _modules("triggers", "glidemq", "messages", "node", "queue"),
        "queues": ["airflow_provider_glidemq.queues.glidemq.GlideMQMessageQueueProvider"],
        "notifications": ["airflow_provider_glidemq.notifications.glidemq.GlideMQNotifier"],
        "plugins": [
            {"name": "glidemq", "plugin-class": "airflow_provider_glidemq.plugins.glidemq.GlideMQPlugin"}
        ],
        "config": {
            "glidemq": {
                "description": "The console of glide-mq in Airflow's pages.",
                "options": {
                    "console_conn_id": {
                        "description": "The connection whose server it shows.",
                        "type": "string",
                        "version_added": "0.1.0",
                        "example": None,
                        "default": "glidemq_default",
                    },
                    "console_conn_ids": {
                        "description": "Other connections whose servers it shows too, separated by commas.",
                        "type": "string",
                        "version_added": "0.1.0",
                        "example": "glidemq_reports, glidemq_spark",
                        "default": "",
                    },
                },
            }
        },
        "extra-links": ["airflow_provider_glidemq.links.glidemq.GlideMQLink"],
        "asset-uris": [
            {
                "schemes": ["glidemq"],
                "handler": "airflow_provider_glidemq.assets.glidemq.sanitize_uri",
                "to_openlineage_converter": "airflow_provider_glidemq.assets.glidemq.to_openlineage",
            }
        ],
        "task-decorators": [
            {"name": name, "class-name": f"airflow_provider_glidemq.decorators.glidemq.{name}_task"}
            for name in ("glidemq", "glidemq_spark")
        ],
        "connection-types": [
            {
                "connection-type": "glidemq",
                "hook-class-name": "airflow_provider_glidemq.hooks.glidemq.GlideMQHook",
                "hook-name": "glide-mq (Valkey)",
                "ui-field-behaviour": {
                    "hidden-fields": ["schema"],
                    "relabeling": {"host": "Host, several hosts, or a URL", "login": "ACL user"},
                    "placeholders": {
                        "host": "valkey.internal or a:7000,b:7000 or valkeys+cluster://a:7000,b:7000",
                        "port": "6379",
                    },
                },
                "conn-fields": _fields(),
            }
        ],
    }


def _modules(kind: str, *names: str) -> list[dict[str, Any]]:
    modules = [f"airflow_provider_glidemq.{kind}.{name}" for name in names or ("glidemq",)]
    return [{"integration-name": INTEGRATION, "python-modules": modules}]


def _fields() -> dict[str, Any]:
    """The extras in the form, in order; ``extras`` reads their values."""
    found = {}
    for name, kind, label, description in FORM_FIELDS:
        schema = {"type": [kind, "null"], **_MORE.get(name, {})}
        found[name] = {"label": label, "description": description, "schema": schema}
    return found


FORM_FIELDS: Final = (
    (
        "prefix",
        "string",
        "Key prefix",
        "First part of every key, as set for the workers; glide if empty.",
    ),
    ("kind", "string", "Kind", "single if empty. With sentinel, the hosts are those of the sentinels."),
    ("service", "string", "Service", "The name that the sentinels have for the primary."),
    ("db", "integer", "Database", "0 if empty; a cluster has only 0."),
    ("tls", "boolean", "TLS", "Encrypt the connections."),
    ("ca", "string", "CA certificate file", "The certificates to trust; those of the system if empty."),
    ("cert", "string", "Client certificate file", "Path on workers and triggerers, like every file here."),
    ("key", "string", "Client key file", "When the key is not in the file of the certificate."),
    ("verify", "boolean", "Verify the server's certificate", "Off accepts any certificate: for tests only."),
    ("sentinel_user", "string", "Sentinels: ACL user", "Login and password above are those of the server."),
    ("sentinel_password", "string", "Sentinels: password", "Of the user at the sentinels."),
    (
        "connect_timeout",
        "string",
        "Connect timeout",
        "How long to wait for a connection: seconds, or 1m; 5 if empty.",
    ),
    (
        "socket_timeout",
        "string",
        "Reply timeout",
        "How long to wait for a reply: seconds, or 1m; 30 if empty.",
    ),
    (
        "confirm",
        "string",
        "Confirm writes",
        "Wait for disk, replicas:N or disk,replicas:N; not at all if empty.",
    ),
    (
        "confirm_timeout",
        "string",
        "Confirm timeout",
        "How long to wait for it: seconds, or 1m; 5 if empty.",
    ),
    (
        "dashboard_url",
        "string",
        "Dashboard URL",
        "The target of task links: https://mq.example.com/flows/{flow_id}; also {queue} and {job_id}.",
    ),
)
# No default where a URL in the host may say otherwise: the form would store it beside the URL.
_MORE: Final[dict[str, dict[str, Any]]] = {
    "kind": {"enum": ["single", "cluster", "sentinel", None]},
    "db": {"minimum": 0},
    "verify": {"default": True},
    "sentinel_password": {"format": "password"},
}
