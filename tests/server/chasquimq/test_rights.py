"""A user with the documented rights and no others can use a queue of ChasquiMQ."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from glidemq_orchestrate.chasquimq import ChasquiQueue, ChasquiWorker, scripts
from glidemq_orchestrate.errors import ConfigurationError
from tests.server.chasquimq.conftest import Raw

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "chasquimq.md"
ROOM = Path(scripts.__file__).parent
SECRET = "hunter2"


def rule() -> list[str]:
    _, _, text = PAGE.read_text("utf-8").partition("ACL SETUSER images on >SECRET\n")
    return text.partition("```")[0].split()


def test_the_rule_has_every_command_and_no_other() -> None:
    allowed = {word[1:].upper() for word in rule() if word.startswith("+")}
    text = "\n".join(path.read_text("utf-8") for path in ROOM.glob("*.py"))
    sent = set(re.findall(r'(?:command\(|words = \(|Call\(\()\s*"([A-Z]+)"', text))
    sent |= set(re.findall(r"redis\.p?call\('([A-Z]+)'", text)) | {"INFO", "TIME", "HMGET"}
    assert allowed == sent


def test_a_user_with_these_rights_may_do_everything(raw: Raw, url: str) -> None:
    raw.client.execute_command(
        "ACL", "SETUSER", "images", "reset", "on", f">{SECRET}", *rule(), "+select"
    )  # the test has a database of its own
    try:
        raw.client.acl_log_reset()
        with ChasquiQueue("images", url.replace("://", f"://images:{SECRET}@")) as queue:
            use(queue, raw)
            run(queue, url.replace("://", f"://images:{SECRET}@"))
        assert raw.client.acl_log() == []
        with (
            ChasquiQueue("other", url.replace("://", f"://images:{SECRET}@")) as queue,
            pytest.raises(ConfigurationError, match="lacks a permission"),
        ):
            queue.add("x")
        raw.client.execute_command("ACL", "SETUSER", "images", "-eval")
        with (
            ChasquiQueue("images", url.replace("://", f"://images:{SECRET}@")) as queue,
            pytest.raises(ConfigurationError, match="lacks a permission"),
        ):
            queue.cancel("a")
    finally:
        raw.client.execute_command("ACL", "DELUSER", "images")


def use(queue: ChasquiQueue, raw: Raw) -> None:
    queue.add("x", job_id="a")
    queue.add("x", job_id="b", delay=60)
    queue.add("x", delay=60)
    assert queue.cancel("b")
    assert queue.result("a") is None
    assert queue.counts().waiting == 1
    raw.add({"d": b"\x94\xa1a\xc4\x01\xc0\x05\x00", "reason": "unrecoverable"}, "dlq")
    broken = raw.add({"d": b"?"}, "dlq")
    assert queue.replay_dead_letters() == 1
    queue.remove_dead_letter(broken)
    assert queue.remove_schedule(queue.upsert_schedule("tick", every=60))
    queue.upsert_schedule("tick", every=60)
    assert len(queue.get_schedules()) == 1
    assert list(queue.events(idle_timeout=0.01)) == []


def run(queue: ChasquiQueue, url: str) -> None:
    worker = ChasquiWorker("images", url, lease=1)
    worker.handler("x")(lambda _: 1)
    queue.add("x", job_id="run", delay=0.01)
    queue.upsert_schedule("x", every=0.1, limit=1)
    queue.add("none", attempts=1)
    with worker.running():
        end = time.monotonic() + 20
        while queue.result("run") != 1 or queue.counts().dead < 1:
            assert time.monotonic() < end
            time.sleep(0.02)
        time.sleep(1.2)  # renewals and take-overs
