"""The forms of the replies to plain commands, on which every decoder may rely."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

_LISTS: Final = (list, tuple)


def _is_text(reply: Any) -> bool:
    return isinstance(reply, str)


def _is_text_or_none(reply: Any) -> bool:
    return reply is None or isinstance(reply, str)


def _is_integer(reply: Any) -> bool:
    return isinstance(reply, int)


def _are_texts(reply: Any) -> bool:
    return isinstance(reply, _LISTS) and all(map(_is_text, reply))


def _are_pairs(reply: Any) -> bool:
    if isinstance(reply, dict):
        return _are_texts([*reply, *reply.values()])
    return _are_texts(reply) and len(reply) % 2 == 0


def _are_values(reply: Any) -> bool:
    return isinstance(reply, _LISTS) and all(map(_is_text_or_none, reply))


def _are_integers(reply: Any) -> bool:
    return isinstance(reply, _LISTS) and all(map(_is_integer, reply))


def _is_page(reply: Any) -> bool:
    return isinstance(reply, _LISTS) and len(reply) == 2 and _is_text(reply[0]) and _are_texts(reply[1])


def _are_entries(reply: Any) -> bool:
    return isinstance(reply, _LISTS) and all(
        isinstance(entry, _LISTS) and len(entry) == 2 and _is_text(entry[0]) and _are_pairs(entry[1] or [])
        for entry in reply
    )


def _are_streams(reply: Any) -> bool:
    if reply is None:
        return True
    streams = list(reply.items()) if isinstance(reply, dict) else reply
    return isinstance(streams, _LISTS) and all(
        isinstance(stream, _LISTS) and len(stream) == 2 and _is_text(stream[0]) and _are_entries(stream[1])
        for stream in streams
    )


_FORMS: Final[dict[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("GET", "HGET", "ZSCORE"), _is_text_or_none),
    **dict.fromkeys(("SMEMBERS", "LRANGE", "ZRANGE", "ZREVRANGE", "SRANDMEMBER", "HRANDFIELD"), _are_texts),
    **dict.fromkeys(("ZRANGEBYSCORE", "TIME"), _are_texts),
    **dict.fromkeys(("HMGET", "MGET"), _are_values),
    **{f"{kind}SCAN": _is_page for kind in ("", "H", "S")},
    **dict.fromkeys(("XRANGE", "XREVRANGE"), _are_entries),
    **dict.fromkeys(("XREAD", "XREADGROUP"), _are_streams),
    **dict.fromkeys(
        ("EXISTS", "HSETNX", "ZCOUNT", "ZCARD", "XLEN", "LLEN", "SCARD", "XACK", "XTRIM"), _is_integer
    ),
    "SMISMEMBER": _are_integers,
    "HGETALL": _are_pairs,
    "INFO": lambda reply: isinstance(reply, str | dict),
}
_KEYS: Final = {"HMGET": 2, "MGET": 1, "SMISMEMBER": 2}
"""The number of words before those that each yield one part of the reply."""


def has_form(words: Sequence[Any], reply: Any) -> bool:
    """Whether a reply has the form required of its command; True for a command without a rule."""
    name = words[0]
    form = _FORMS.get(name)
    if form is None:
        return True
    return form(reply) and (name not in _KEYS or len(reply) == len(words) - _KEYS[name])
