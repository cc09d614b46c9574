"""Raw commands for a server or a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from redis import Redis
from redis.cluster import RedisCluster

# To which servers these go; by default they need a key, or get the reply of each server.
WHERE: Final = {
    "ACL DELUSER": RedisCluster.PRIMARIES,
    "ACL SETUSER": RedisCluster.PRIMARIES,
    "ECHO": RedisCluster.DEFAULT_NODE,
    "FUNCTION LIST": RedisCluster.DEFAULT_NODE,
}


class EveryPrimary(RedisCluster):
    """A client for all primaries; what concerns one server goes to that of the queue ``etl``."""

    def keys(self, pattern: Any = "*", **_: Any) -> Any:
        return [key for keys in self._each(lambda one: one.keys(pattern)) for key in keys]

    def dbsize(self, **_: Any) -> Any:
        return sum(self._each(lambda one: one.dbsize()))

    def _each(self, ask: Callable[[Any], Any]) -> list[Any]:
        cluster: Any = self
        return [ask(cluster.get_redis_connection(one)) for one in cluster.get_primaries()]


def client_of(url: str, *, decode_responses: bool = True) -> Any:
    """A client for a server or a cluster."""
    scheme, _, hosts = url.partition("://")
    if not scheme.endswith("+cluster"):
        plain = url.replace("valkey://", "redis://")
        return Redis.from_url(plain, decode_responses=decode_responses, driver_info=None)
    host, _, port = hosts.partition(",")[0].partition(":")
    client: Any = EveryPrimary(host, int(port), decode_responses=decode_responses, driver_info=None)
    client.command_flags.update(WHERE)
    client.set_default_node(client.get_node_from_key("etl"))
    return client
