"""What is sent to a Redis 8.6 or newer, and to every other server."""

from __future__ import annotations

from typing import Any

import pytest

from glidemq_orchestrate.chasquimq.adding import ChasquiJob, Producer
from glidemq_orchestrate.chasquimq.keys import ChasquiKeys
from glidemq_orchestrate.chasquimq.profile import Profile, server_profile
from glidemq_orchestrate.errors import ConfigurationError, ServerTooOld
from tests.unit.conftest import Scripted

PRODUCER = Producer(ChasquiKeys("emails"), "p-1", 1_000_000, 60_000)


def words(profile: Profile, **options: Any) -> tuple[Any, ...]:
    (call,) = PRODUCER.calls(PRODUCER.pack([ChasquiJob(**options)], 1_700_000_000_000), profile)
    return call.words


def test_the_command_of_an_add_is_that_of_chasquimq() -> None:
    *head, envelope, n, name = words(Profile.FULL, name="welcome", job_id="a")
    assert head == [
        "XADD", "{chasqui:emails}:stream", "IDMP", "p-1", "a", "MAXLEN", "~", 1_000_000, "*", "d",
    ]  # fmt: skip
    assert (n, name) == ("n", "welcome")
    assert words(Profile.FULL, name="", job_id="a")[-2:] == ("d", envelope)


def test_other_servers_get_a_script_with_a_marker_of_ours() -> None:
    found = words(Profile.OWN, name="welcome", job_id="a")
    assert found[0] == "EVAL"
    assert found[2:5] == (2, "{chasqui:emails}:gmo:added:p-1:a", "{chasqui:emails}:stream")
    assert "IDMP" not in found


SERVERS = {
    "redis_version:8.6.0": Profile.FULL,
    "redis_version:8.10.2": Profile.FULL,
    "redis_version:9.0.0": Profile.FULL,
    "redis_version:8.4.9": Profile.OWN,
    "redis_version:7.0.15": Profile.OWN,
    "redis_version:7.2.4\r\nvalkey_version:9.1.2": Profile.OWN,
    "redis_version:8.6.0\r\nvalkey_version:10.0.0": Profile.OWN,
}


@pytest.mark.parametrize("info", SERVERS)
def test_the_server_decides_the_profile(info: str, scripted: Scripted) -> None:
    assert scripted(server_profile(require_chasquimq=False), [info]).value is SERVERS[info]
    if SERVERS[info] is Profile.OWN:
        with pytest.raises(ConfigurationError, match="Fix: "):
            scripted(server_profile(require_chasquimq=True), [info])


def test_an_older_server_is_refused(scripted: Scripted) -> None:
    with pytest.raises(ServerTooOld):
        scripted(server_profile(require_chasquimq=False), ["redis_version:6.2.0"])
