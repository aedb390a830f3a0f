"""A certificate for this machine, as files."""

from pathlib import Path

import trustme


def issue(folder: Path) -> tuple[Path, Path]:
    """Writes `cert.pem` and `key.pem`, whose paths it returns, and `ca.pem`, which trusts them."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    cert, key = folder / "cert.pem", folder / "key.pem"
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return cert, key
