"""Certificates for the tests of TLS: a CA of our own, whom it signed, and who is not to be trusted."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Certificates:
    """Files in PEM: those of servers and of the client hold the key too."""

    ca: str
    server: str
    expired: str
    not_yet: str
    client: str
    stranger: str

    @classmethod
    def in_directory(cls, directory: Path) -> Certificates:
        ca, now = trustme.CA(), datetime.now(UTC)
        day = timedelta(days=1)
        names = ("localhost", "127.0.0.1")
        issued = {
            "server": ca.issue_cert(*names),
            "expired": ca.issue_cert(*names, not_before=now - 2 * day, not_after=now - day),
            "not_yet": ca.issue_cert(*names, not_before=now + day, not_after=now + 2 * day),
            "client": ca.issue_cert("worker@example.org"),
            "stranger": trustme.CA().issue_cert("worker@example.org"),
        }
        files = {"ca": str(directory / "ca.pem")}
        ca.cert_pem.write_to_path(files["ca"])
        for name, leaf in issued.items():
            files[name] = str(directory / f"{name}.pem")
            leaf.private_key_and_cert_chain_pem.write_to_path(files[name])
        return cls(**files)

    def options(self, server: str | None = None, *, clients: bool = False) -> list[str]:
        """Options of a server with this certificate, that may want certificates of its clients."""
        own = server or self.server
        options = ["--tls-cert-file", own, "--tls-key-file", own, "--tls-ca-cert-file", self.ca]
        return [*options, "--tls-auth-clients", "yes" if clients else "no"]
