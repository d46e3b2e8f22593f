"""A certificate authority of a test's own, and what it signs."""

from pathlib import Path

import trustme

from tests.support.pgbouncer import Certificate


class Authority:
    """Signs certificates for names and addresses, and keeps the files in a folder."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory / name
        self._directory.mkdir(mode=0o711)
        self._authority = trustme.CA()
        self.file = self._directory / "ca.pem"
        self._authority.cert_pem.write_to_path(str(self.file))

    def certificate(self, *names: str) -> Certificate:
        """A certificate for these names."""
        made = self._authority.issue_cert(*names)
        chain, key = self._directory / f"{names[0]}.pem", self._directory / f"{names[0]}.key"
        for blob in made.cert_chain_pems:
            blob.write_to_path(str(chain), append=True)
        made.private_key_pem.write_to_path(str(key))
        return Certificate(chain, key, self.file)
