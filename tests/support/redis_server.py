"""A real redis-server for tests, in a temporary folder, on a Unix socket and a loopback port."""

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from contextlib import closing, suppress
from pathlib import Path

INSTALLED = shutil.which("redis-server")
MISSING = (
    "redis-server is not installed: apt install redis-server (7 or later), or valkey-server under that name"
)
_DEADLINE_S = 30.0


class RedisServer:
    """One server. It may be killed, paused and started again; its data is kept by default."""

    def __init__(self, folder: Path, *options: str, tls: bool = False, sentinel: bool = False) -> None:
        """`options` are lines of its configuration, like `requirepass x`; with `tls` the port speaks that."""
        self._folder = folder
        self._options = options
        self._has_tls = tls
        self._is_sentinel = sentinel
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.socket = folder / "redis.sock"

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def tcp_url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        assert not self.is_running
        self.port = self.port or free_port()
        lines = [
            *([f"tls-port {self.port}", "port 0"] if self._has_tls else [f"port {self.port}"]),
            "bind 127.0.0.1",
            f"unixsocket {self.socket}",
            f"dir {self._folder}",
            *([] if self._is_sentinel else ["appendonly yes", "appendfsync no", 'save ""']),
            *self._options,
        ]
        config = self._folder / "redis.conf"
        config.write_text("\n".join(lines) + "\n")
        self.socket.unlink(missing_ok=True)
        log = (self._folder / "redis.log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [INSTALLED or "redis-server", str(config), *(["--sentinel"] if self._is_sentinel else [])],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + _DEADLINE_S
        while not self._answers():
            assert self.is_running, (self._folder / "redis.log").read_text()
            assert time.monotonic() < deadline, "redis-server did not start"
            time.sleep(0.01)

    def stop(self, *, keep_data: bool = True) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if not keep_data:
            shutil.rmtree(self._folder / "appendonlydir", ignore_errors=True)

    def restart(self, *, keep_data: bool = True) -> None:
        """Kills it and starts it again; without its data it is as new."""
        self.stop(keep_data=keep_data)
        self.start()

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def command(self, *words: str | bytes) -> bytes:
        """Raw answer to one command, as a test's look from outside: `+OK`, `:1`, `-NOAUTH ...`."""
        with closing(socket.socket(socket.AF_UNIX)) as connection:
            connection.settimeout(_DEADLINE_S)
            connection.connect(str(self.socket))
            encoded = [word.encode() if isinstance(word, str) else word for word in words]
            connection.sendall(
                b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)
            )
            return connection.recv(65_536).strip()

    def empty(self) -> None:
        self.command("FLUSHALL")
        self.command("FUNCTION", "FLUSH")

    def _answers(self) -> bool:
        try:
            answer = self.command("PING")
        except OSError:
            return False
        return answer.startswith((b"+PONG", b"-NOAUTH", b"-NOPERM"))


def free_port() -> int:
    """Below those that the system gives out, so that nobody gets it while the server is down."""
    for _ in range(1000):
        port = random.randrange(20_000, 32_000)
        with closing(socket.socket()) as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")
