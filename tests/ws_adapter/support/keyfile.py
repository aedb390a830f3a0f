"""A file of keys that a test can change."""

import base64
from dataclasses import replace
from pathlib import Path

from ws_adapter.access.keys import Key, make_key


class KeyFile:
    """A file of keys and the secrets that open them."""

    def __init__(self, path: Path, *names: str) -> None:
        self.path = path
        self.secrets: dict[str, str] = {}
        self.keys: dict[str, Key] = {}
        for name in names:
            self.add(name)

    def add(self, name: str, **fields: str) -> None:
        self.secrets[name], self.keys[name] = make_key(
            name, fields, is_admin=name == "admin", is_trusted=name == "trusted"
        )
        self._write()

    def change(self, name: str, **fields: str) -> None:
        """Gives a key other fields, and the secret that it has."""
        secret, before = self.secrets[name], self.keys[name]
        self.add(name, **fields)
        self.secrets[name], self.keys[name] = secret, replace(self.keys[name], hash=before.hash)
        self._write()

    def remove(self, name: str) -> None:
        del self.keys[name]
        self._write()

    @property
    def text(self) -> str:
        """The content of the key file."""
        return self.path.read_text()

    def _write(self) -> None:
        self.path.write_text("# keys\n\n" + "".join(f"{key.line}\n" for key in self.keys.values()))

    def bearer(self, name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.secrets[name]}"}

    def basic(self, name: str, user: str = "") -> dict[str, str]:
        """As a browser sends it that was told `user` and the key as the password."""
        pair = base64.b64encode(f"{user}:{self.secrets[name]}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}
