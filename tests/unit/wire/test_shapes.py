"""A reply without the form of replies to its command is refused, whatever its decoder makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from glidemq_orchestrate.attempts.exchange import Request, finish_and_fetch
from glidemq_orchestrate.errors import ProtocolError
from glidemq_orchestrate.flows.home import expire_due
from glidemq_orchestrate.flows.node_table import flow_nodes
from glidemq_orchestrate.jobs.changes import remove_jobs, retry_jobs, revoke_job
from glidemq_orchestrate.queues.limits import limit_group
from glidemq_orchestrate.registry import consumers
from glidemq_orchestrate.server.calls import server_time_us
from glidemq_orchestrate.wire import replies
from glidemq_orchestrate.wire.call import command
from glidemq_orchestrate.wire.keys import QueueKeys

KEYS = QueueKeys("glide", "etl")
ENTRY = ["1-1", ["a", "b"]]

REPLIES: list[tuple[tuple[Any, ...], list[Any], list[Any]]] = [
    (("GET", "k"), [None, "x"], [1, ["x"]]),
    (("HMGET", "k", "a", "b"), [["x", None]], [[], ["x"], ["x", 1], None, "xy", ["a", "b", "c"]]),
    (("MGET", "k"), [[None]], [[], [1]]),
    (("SMISMEMBER", "k", "a"), [[1]], [[], ["1"]]),
    (("ZRANGE", "k", 0, 1), [[], ["a"]], ["ab", [1], [["a"]], None]),
    (("HGETALL", "k"), [[], ["a", "b"], {"a": "b"}], [["a"], ["a", None], {"a": 1}, "ab"]),
    (("HSCAN", "k", "0"), [["0", []]], [["0"], [0, []], ["0", [1]], "ab"]),
    (("XRANGE", "k", "-", "+"), [[], [ENTRY], [["1-1", None]]], [[["1-1"]], [[1, []]], ENTRY, None]),
    (
        ("XREAD", "STREAMS", "k", "0"),
        [None, [["k", [ENTRY]]], {"k": [ENTRY]}],
        [[["k"]], ["k"], [["k", [1]]]],
    ),
    (("EXISTS", "k"), [1], ["1", None, [1]]),
]

REPLIES_OF_FUNCTIONS: list[tuple[Any, Any]] = [
    (retry_jobs(KEYS, ["1"], 0), []),
    (retry_jobs(KEYS, ["1"], 0), [1]),
    (revoke_job(KEYS, "1", 0), ["revoked", None]),
    (expire_due(KEYS, 0), [[], []]),
    (consumers(KEYS), [["pending", 1, "idle", 1]]),
    (remove_jobs(KEYS, [("1", ""), ("2", "")], "removed", 0), [["removed"], []]),
    (remove_jobs(KEYS, [("1", "")], "removed", 0), [["removed"], ["m", ["ref"]]]),
    (remove_jobs(KEYS, [("1", "")], "removed", 0), [["removed"], ["m"]]),
    (flow_nodes(KEYS, "f", "0"), ["0", ["a"], *[""] * 8]),
    (flow_nodes(KEYS, "f", "0"), [["0"]]),
    (limit_group(KEYS, "k", 1, 0, extend=True), 10**17),
    (limit_group(KEYS, "k", 1, 0, extend=True), -1),
    (server_time_us(), [str(10**17), "0"]),
    (finish_and_fetch(KEYS, "w", Request([], 1, "t"), 0), [["ok"], [], [], "", "", 0, [], []]),
]


def test_the_form_of_a_reply(subtests: pytest.Subtests) -> None:
    for words, good, bad in REPLIES:
        with subtests.test(words=words):
            call = command(*words, decode=replies.anything)
            for reply in good:
                assert call.read(reply) is None
            for reply in bad:
                with pytest.raises(ProtocolError, match=f"{words[0]}.* does not have the form"):
                    call.read(reply)


def test_the_form_of_the_reply_of_a_function(subtests: pytest.Subtests) -> None:
    for call, reply in REPLIES_OF_FUNCTIONS:
        with subtests.test(call=call), pytest.raises(ProtocolError):
            call.read(reply)
