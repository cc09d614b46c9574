"""Fields that the config of the executor and the run launcher share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import dagster as dg

from dagster_glidemq.connection import GlideMQConnection

LEASE_SECONDS: Final = 30.0


def connection_fields(*, is_required: bool = False) -> dict[str, dg.Field]:
    """The fields of a connection; ``url`` is required only where nothing else can say it."""
    fields = dict(GlideMQConnection.to_fields_dict())
    url = fields["url"]
    fields["url"] = dg.Field(url.config_type, is_required=is_required, description=url.description)
    return fields


def connection_of(config: Mapping[str, Any]) -> GlideMQConnection:
    """The connection in a config that may hold more.

    Raises:
        ValidationError: A value is not usable.
    """
    names = GlideMQConnection.model_fields
    return GlideMQConnection(**{name: value for name, value in config.items() if name in names})
