"""The field names of glide-mq's job hash, defined here only."""

from __future__ import annotations

from typing import Final

FIELD_FLOW: Final = "gmo:flow"


FIELD_HOME: Final = "gmo:home"


FIELD_NODE: Final = "gmo:node"


# Named one by one: other fields of a job hash may hold bytes that are not text.
JOB_FIELDS_WITHOUT_PAYLOAD: Final = (
    *("id", "name", "opts", "timestamp", "attemptsMade", "state", "delay", "priority", "maxAttempts"),
    *("processedOn", "finishedOn", "failedReason", "parentId", "parentQueue", "orderingKey", "groupKey"),
    *("cost", "expireAt", "lifo", "progress", "revoked", "stalledCount", "schedulerName", "tpmTokens"),
    *("fallbackIndex", FIELD_FLOW, FIELD_HOME, FIELD_NODE),
)


JOB_FIELDS: Final = (*JOB_FIELDS_WITHOUT_PAYLOAD, "data", "returnvalue")
