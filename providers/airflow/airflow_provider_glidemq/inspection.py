"""The answer of the Test button of a connection: the relevant findings of the doctor, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from glidemq_orchestrate import ConnectionSettings
from glidemq_orchestrate.clients.servers import Finding, Verdict, examine

# A failure of any of these means that a task would fail.
_DECISIVE: Final = ("connection", "version", "role", "slots", "rights", "loading", "confirm")
_LIBRARY: Final = "library "


def inspect_server(settings: ConnectionSettings) -> tuple[bool, str]:
    """Look at the server, or at every primary of a cluster, and change nothing.

    Returns:
        Whether tasks can use it, and a text for people: one line for what holds everywhere, one for each
        server and for each advice.
    """
    found = examine(settings, look_only=True)
    wrong = [one for one in found if one.verdict is Verdict.FAILED and _is_decisive(one)]
    if wrong:
        return False, "\n".join(dict.fromkeys(_fault(one, settings) for one in wrong))
    servers = list(dict.fromkeys(finding.server for finding in found))
    lines = [_topology(settings, servers)]
    lines += [_server(server, [one for one in found if one.server == server]) for server in servers]
    notes = [one for one in found if one.verdict is not Verdict.OK and not one.check.startswith(_LIBRARY)]
    lines += dict.fromkeys(f"Note: {one.check}: {one.found}{_advice(one)}" for one in notes)
    return True, "\n".join(lines)


def _is_decisive(finding: Finding) -> bool:
    return finding.check in _DECISIVE or finding.check.startswith(_LIBRARY)


def _fault(finding: Finding, settings: ConnectionSettings) -> str:
    return f"{finding.server or settings.where}: {finding.check}: {finding.found}{_advice(finding)}"


def _advice(finding: Finding) -> str:
    return f" ({finding.advice})" if finding.advice else ""


def _topology(settings: ConnectionSettings, servers: Sequence[str]) -> str:
    rest = f"prefix {settings.prefix}, {'TLS' if settings.tls else 'no TLS'}"
    if settings.kind == "cluster":
        return f"A cluster of {len(servers)} primaries; {rest}."
    if settings.kind == "sentinel":
        return f"The primary of {settings.service}, by its sentinels; {rest}."
    return f"A single server; {rest}."


def _server(server: str, found: Sequence[Finding]) -> str:
    by_check = {finding.check: finding for finding in found}
    parts = [f"{by_check['connection'].found} to {by_check['version'].found}", by_check["role"].found]
    return (
        f"{server}: {', '.join(parts)}; {'; '.join(_libraries(found))}; rights: {by_check['rights'].found}."
    )


def _libraries(found: Sequence[Finding]) -> Iterator[str]:
    for finding in found:
        if not finding.check.startswith(_LIBRARY):
            continue
        if finding.verdict is Verdict.OK:
            yield f"{finding.check}: {finding.found}"
        else:  # loading it was found to be allowed
            yield f"{finding.check}: {finding.found}, the first use loads it"
