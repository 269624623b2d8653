"""Certificate authorities and certificates for tests, made when they are needed."""

import datetime as dt
from pathlib import Path

import trustme

from kvmesh.certificates import CertificateFiles

HOSTS = ("localhost", "127.0.0.1")


class Authority:
    """Signs certificates, and keeps all files in `directory`."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._ca = trustme.CA()
        self._directory = directory
        self.path = directory / f"{name}.pem"
        self._ca.cert_pem.write_to_path(self.path)

    def issue(self, name: str, *, days: float = 1, prefix: str = "tls_") -> CertificateFiles:
        """Files of a certificate for this host with the common name `name`, which ends in `days`.

        The same name again replaces the files.
        """
        now = dt.datetime.now(dt.UTC)
        end = now + dt.timedelta(days=days)
        start = min(now, end) - dt.timedelta(days=1)
        made = self._ca.issue_cert(*HOSTS, common_name=name, not_before=start, not_after=end)
        cert, key = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        cert.write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
        key.write_bytes(made.private_key_pem.bytes())
        return CertificateFiles(cert, key, self.path, prefix)
