"""The documented ACL rule has every command that is sent or called by a function, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from glidemq_orchestrate._lua import GLIDEMQ, ORCHESTRATE, library
from glidemq_orchestrate.server.findings import COMMANDS, TO_CONFIRM, __file__

KNOWN = {command.upper() for command in COMMANDS}
# About the server and not about keys: by other rules, or by none but an administrator's.
OTHERS = {"ACL", "CLUSTER", "CONFIG", "FUNCTION", "PING", "TIME"}
OTHERS |= {command.upper() for command in TO_CONFIRM}
# The first speaks to sentinels; the keys of the second have a rule of their own (tests/server/chasquimq).
OTHER_ROOMS = {"io", "chasquimq"}


def called() -> set[str]:
    """What functions call."""
    sources = [library(name).source for name in (GLIDEMQ, ORCHESTRATE)]
    calls = [call for source in sources for call in re.findall(r"redis\.p?call\(\s*(\S+)", source)]
    names = [re.match(r"'([A-Z]+)'", call) for call in calls]
    assert all(names), "a command that is computed cannot be seen here"
    return {name[1] for name in names if name}


def sent() -> tuple[set[str], set[str]]:
    """The first words of calls as far as they stand there; and every word that may be one."""
    text = "\n".join(
        path.read_text(encoding="utf-8")
        for path in Path(__file__).parents[1].rglob("*.py")
        if path != Path(__file__) and path.parent.name not in OTHER_ROOMS
    )
    first = re.findall(r'(?:\bcommand\(|words = \(|Call\(\s*\()\s*"([A-Z]+)"', text)
    return set(first) - {"MAXLEN"}, set(re.findall(r'"([A-Z]{3,})"', text))


def test_the_rule_allows_what_functions_call_and_clients_send() -> None:
    assert called() - KNOWN == set()
    assert sent()[0] - KNOWN - OTHERS == set()


def test_the_rule_allows_nothing_else() -> None:
    assert KNOWN - called() - sent()[1] == set()
