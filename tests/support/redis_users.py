"""The two users of `deploy/redis/users.acl`, on a real redis-server."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from tests.support.redis_server import RedisServer

ACL = Path(__file__).parents[2] / "deploy/redis/users.acl"
PASSWORDS = {"antiphon-adapter": "the adapter's own", "antiphon-worker": "the worker's own"}


def acl_text() -> str:
    """Return the shipped file with the digests of `PASSWORDS` in place of what an operator fills in."""
    text = ACL.read_text()
    for user, password in PASSWORDS.items():
        blank = f"#{user.removeprefix('antiphon-').upper()}_PASSWORD_SHA256"
        assert text.count(blank) == 1
        text = text.replace(blank, f"#{hashlib.sha256(password.encode()).hexdigest()}")
    return text


@dataclass(frozen=True)
class RedisUsers:
    """A server with both users, whose default user is the test's and may do everything."""

    server: RedisServer

    @classmethod
    def on(cls, folder: Path) -> "RedisUsers":
        acl = folder / "users.acl"
        acl.write_text(
            re.sub("^user default .*", "user default on nopass ~* &* +@all", acl_text(), flags=re.M)
        )
        server = RedisServer(folder, f"aclfile {acl}")
        server.start()
        return cls(server)

    @property
    def adapter(self) -> str:
        return self._url("antiphon-adapter")

    @property
    def worker(self) -> str:
        return self._url("antiphon-worker")

    def _url(self, user: str) -> str:
        password = PASSWORDS[user].replace(" ", "%20")
        return self.server.url.replace("unix://", f"unix://{user}:{password}@")
