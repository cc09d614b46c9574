"""What a server holds, as plain values, and what a call changed. Entry ids and times to live are left out."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

Dump = dict[str, Any]

_READ = {
    "string": ("GET",),
    "list": ("LRANGE", 0, -1),
    "set": ("SMEMBERS",),
    "zset": ("ZRANGE", 0, -1, "WITHSCORES"),
    "hash": ("HGETALL",),
    "stream": ("XRANGE", "-", "+"),
    "bitmap": ("BITCOUNT",),  # its bytes are no text
}


def dump(client: Any) -> Dump:
    """Every key with its value; a stream as its entries and, by group, the jobs that are pending."""
    keys = sorted(client.keys("*"))
    pipe = client.pipeline(transaction=False)
    for key in keys:
        pipe.type(key)
    types = zip(keys, pipe.execute(), strict=True)
    kinds = ["bitmap" if kind == "string" and key.endswith(":done") else kind for key, kind in types]
    for key, kind in zip(keys, kinds, strict=True):
        command, *rest = _READ[kind]
        pipe.execute_command(command, key, *rest)
    values = pipe.execute()
    return {
        key: _plain(client, key, kind, value) for key, kind, value in zip(keys, kinds, values, strict=True)
    }


def changes(before: Dump, after: Dump) -> Dump:
    """What differs: of hashes and sorted sets the fields, of event streams the new entries; None = gone."""
    return {
        key: _difference(key, before.get(key), after.get(key))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    }


def _plain(client: Any, key: str, kind: str, value: Any) -> Any:
    if kind == "zset":
        return dict(value)
    if kind != "stream":
        return value
    jobs = {entry_id: fields.get("jobId", "") for entry_id, fields in value}
    entries = [tuple(text for pair in fields.items() for text in pair) for _, fields in value]
    if key.endswith(":events"):
        return entries
    pending = {
        group["name"]: [
            jobs.get(entry["message_id"], "gone")
            for entry in client.xpending_range(key, group["name"], "-", "+", 1000)
        ]
        for group in client.xinfo_groups(key)
    }
    return {"entries": entries, "pending": pending}


def _difference(key: str, before: Any, after: Any) -> Any:
    if isinstance(after, dict) and "pending" not in after:
        before = before or {}
        fields = before.keys() | after.keys()
        return {name: after.get(name) for name in fields if before.get(name) != after.get(name)}
    if key.endswith(":events"):
        old = before or []
        assert [x for x, _ in zip_longest(after, old)][: len(old)] == old, "events were taken back"
        return after[len(old) :]
    return after
