"""What an ACL user needs: one copy for the README, ``glidemq doctor`` and the tests."""

from __future__ import annotations

from typing import Final

from glidemq_orchestrate.keys import DEFAULT_PREFIX

# The server checks the commands inside functions against the rights of the caller, too.
_COMMANDS: Final = """
fcall info scan get mget set incr incrby decr decrby exists del unlink expire pexpire hget hmget hgetall
hset hsetnx hdel hexists hincrby hincrbyfloat hkeys hlen hrandfield hscan llen lpop lpos lpush lrange
lrem rpop rpush sadd scard sismember smembers spop srandmember srem sscan zadd zcard zcount zpopmin
zrange zrangebyscore zrem zrevrange zrevrangebyscore zscore xack xadd xautoclaim xdel xgroup xinfo xlen
xpending xrange xread xreadgroup xrevrange xtrim
"""
COMMANDS: Final = tuple(_COMMANDS.split())
IN_A_CLUSTER: Final = ("asking", "cluster|slots")
TO_LOAD: Final = ("fcall", "info", "cluster|nodes", "function|list", "function|load")


def rule(prefix: str = DEFAULT_PREFIX) -> str:
    """The rule of a user who does everything but load the libraries."""
    return f"resetchannels ~{prefix}:* -@all {_allowed(COMMANDS)}"


def cluster_rule() -> str:
    """What is added to it in a cluster."""
    return _allowed(IN_A_CLUSTER)


def loader_rule() -> str:
    """The rule of a user who loads the libraries (``glidemq library load``)."""
    return f"resetchannels -@all {_allowed(TO_LOAD)}"


def _allowed(commands: tuple[str, ...]) -> str:
    return " ".join(f"+{command}" for command in commands)
