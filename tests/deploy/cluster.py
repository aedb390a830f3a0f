"""An adapter, a worker and a Redis as processes, with the options, users and certificates of `deploy/`."""

import hashlib
import os
import secrets
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.deploy import objects, units
from tests.deploy.files import DEPLOY, ROOT
from tests.support.patience import START_S
from tests.support.redis_server import free_port
from tests.ws_adapter.support.keyfile import KeyFile

SCRIPT = DEPLOY / "tls/make-certificates.sh"
ANTIPHON = Path(sys.executable).with_name("antiphon")


def make_certificates(folder: Path, *redis_names: str) -> None:
    """Run the shipped script."""
    subprocess.run([SCRIPT, folder, *redis_names], check=True, capture_output=True)


def _role(process: str) -> str:
    """Return `adapter` for the next adapter too."""
    return process.removeprefix("next ")


@dataclass
class Cluster:
    """The three processes. Everything that stands in /etc/antiphon in operation is in `folder`."""

    folder: Path
    kind: str
    """`systemd`, with the system call filters of the units, or `kubernetes`."""
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    def prepare(self) -> None:
        """Write keys, passwords, users and certificates as the documentation says."""
        make_certificates(self.folder / "tls", "IP:127.0.0.1")
        worker_key = secrets.token_hex(32)
        text = (DEPLOY / "redis/users.acl").read_text()
        for role in ("adapter", "worker"):
            password, home = secrets.token_hex(32), self.folder / role
            home.mkdir()
            (home / "worker.key").write_text(worker_key)
            (home / "redis.password").write_text(password)
            (home / "tls").symlink_to(self.folder / "tls" / role)
            text = text.replace(
                f"#{role.upper()}_PASSWORD_SHA256", f"#{hashlib.sha256(password.encode()).hexdigest()}"
            )
        (self.folder / "adapter/client-secret.key").write_text(secrets.token_hex(32))
        keys = KeyFile(self.folder / "adapter/clients", "alice")
        (self.folder / "alice.key").write_text(keys.secrets["alice"])
        self.ports = {name: free_port() for name in ("redis", "worker", "adapter", "next adapter", "admin")}
        (self.folder / "redis").mkdir()
        (self.folder / "redis/tls").symlink_to(self.folder / "tls/redis")
        (self.folder / "redis/users.acl").write_text(text)
        config = self._place((DEPLOY / "redis/redis.conf").read_text())
        assert "tls-port 6379\n" in config
        config = config.replace("tls-port 6379\n", f"tls-port {self.ports['redis']}\nbind 127.0.0.1\n")
        (self.folder / "redis/redis.conf").write_text(config)

    def start(self) -> None:
        """Start all three and wait until a session could begin."""
        redis = shutil.which("redis-server")
        assert redis is not None
        self._start("redis", [redis, str(self.folder / "redis/redis.conf")], "Ready to accept connections")
        self._start("worker", self._command("worker"), "worker ready on")
        self._start("adapter", self._command("adapter"), "adapter ready on")

    def start_next_adapter(self) -> None:
        """Start a second adapter, at the port `next adapter`, and wait until it is ready."""
        self._start("next adapter", self._command("next adapter"), "adapter ready on")

    def stop(self) -> None:
        """End what runs."""
        for process in self.processes.values():
            process.kill()
            process.wait()

    def said(self, name: str) -> str:
        """Return what a process has written so far."""
        return (self.folder / f"{name}.log").read_text()

    def certificate(self, place: str) -> tuple[Path, Path]:
        """Return a certificate and its key."""
        return self.folder / f"tls/{place}/tls.crt", self.folder / f"tls/{place}/tls.key"

    def command(self, name: str, instance: str = "0") -> list[str]:
        """Return the words that start the adapter or the worker in operation."""
        if self.kind == "kubernetes":
            return objects.command_of(
                f"antiphon-{name}", {"POD_IP": "10.1.2.3", "TRUSTED_PROXIES": "127.0.0.1"}
            )
        variables = {
            "TRUSTED_PROXIES": "127.0.0.1",
            "CREDENTIALS_DIRECTORY": str(self.folder / "credentials" / name),
        }
        return units.command_of(units.unit_path(name), instance, variables)

    def _command(self, process: str) -> list[str]:
        """The same with the ports, device and folders of this machine."""
        ports, name = self.ports, _role(process)
        is_kubernetes = self.kind == "kubernetes"
        peers = f"127.0.0.1:{free_port()}" if is_kubernetes else f"unix:{self.folder / process}.sock"
        changed = {
            "--listen": f"127.0.0.1:{ports['worker']}",
            "--advertise": f"127.0.0.1:{ports['worker']}",
            "--device": "cpu",
            "--host": "127.0.0.1",
            "--port": str(ports[process]),
            "--admin-host": "127.0.0.1",
            "--admin-port": str(ports["admin"] if name == "worker" else 0),
            "--peer-listen": peers,
            "--peer-advertise": peers,
            "--dispatcher": f"rediss://antiphon-{name}@127.0.0.1:{ports['redis']}",
        }
        instance = "1" if process == "next adapter" else "0"
        words = [self._place(word) for word in self.command(name, instance)]
        assert Path(words[0]).name == "antiphon"
        words[0] = str(ANTIPHON)
        for option, value in changed.items():
            if option in words:
                words[words.index(option) + 1] = value
        if self.kind == "kubernetes":
            return words
        self._load_credentials(name)
        return [sys.executable, "-m", "tests.deploy.confined", str(units.unit_path(name)), *words]

    def _load_credentials(self, name: str) -> None:
        """As systemd does."""
        folder = self.folder / "credentials" / name
        folder.mkdir(parents=True, exist_ok=True)
        for given in units.directives(units.unit_path(name))["LoadCredential"]:
            credential, _, path = given.partition(":")
            shutil.copy(self._place(path), folder / credential)

    def _place(self, text: str) -> str:
        return text.replace("/etc/antiphon", str(self.folder))

    def _start(self, name: str, words: list[str], ready: str) -> None:
        variables = {"OMP_NUM_THREADS": "1"}
        if self.kind == "systemd" and name != "redis":
            variables["ANTIPHON_DISPATCHER"] = (
                f"rediss://antiphon-{_role(name)}@127.0.0.1:{self.ports['redis']}"
            )
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT, env=os.environ | variables
            )
        self.until_said(name, ready)

    def until_said(self, name: str, text: str) -> None:
        """Wait until a process has written `text`; fails if it ends or takes too long."""
        deadline = time.monotonic() + START_S
        while text not in self.said(name):
            assert time.monotonic() < deadline, self.said(name)
            with suppress(subprocess.TimeoutExpired):
                code = self.processes[name].wait(0.05)
                raise AssertionError(f"{name} ended with {code}: {self.said(name)}")
