"""Containers of the shipped images, started by docker, podman or buildah, whichever works on this machine."""

import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from tests.support.patience import PATIENCE_S, START_S

COMMAND_S = 600.0
"""For a command of a tool: with the driver vfs it copies whole images."""

Volumes = Mapping[str, Path]
"""Path in the container -> folder of this machine."""


def private_storage(folder: Path) -> dict[str, str]:
    """Return variables that keep all images and containers of podman and buildah in `folder`."""
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{folder / "root"}"\nrunroot = "{folder / "run"}"\n'
    )
    # The defaults ask for more than a machine without CAP_SYS_RESOURCE grants.
    files, processes = (
        resource.getrlimit(kind)[1] for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)
    )
    lines = [
        "[containers]",
        f'default_ulimits = ["nofile={_bounded(files)}", "nproc={_bounded(processes)}"]',
        "[engine]",
        'cgroup_manager = "cgroupfs"',
        'events_logger = "file"',
        *(['runtime = "runc"'] if shutil.which("runc") else []),
    ]
    (folder / "containers.conf").write_text("\n".join(lines) + "\n")
    return {
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "BUILDAH_ISOLATION": "chroot",
        "BUILDAH_LAYERS": "false",  # each layer would be a copy of the whole image
    }


def _bounded(hard: int) -> str:
    most = 4096 if hard == resource.RLIM_INFINITY else min(hard, 4096)
    return f"{most}:{most}"


@dataclass
class Container:
    """A running image. Its root is read-only for docker and podman; for buildah its files are compared."""

    tool: str
    name: str
    process: "subprocess.Popen[bytes]"
    log: TextIO
    variables: Mapping[str, str]
    root: Path | None = None
    before: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    @property
    def said(self) -> str:
        """Everything it has written so far."""
        self.log.seek(0)
        return self.log.read()

    def until_said(self, text: str) -> None:
        """Wait until it has written `text`; fails if it ends or takes too long."""
        deadline = time.monotonic() + START_S
        while text not in self.said:
            assert time.monotonic() < deadline, self.said
            assert self.process.poll() is None, self.said
            time.sleep(0.05)

    def execute(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a command in it, as its user."""
        verb = ["run", self.name, "--"] if self.tool == "buildah" else ["exec", self.name]
        return _call([self.tool, *verb, *words], self.variables)

    def terminate(self) -> int:
        """Send its main process SIGTERM; return its exit code."""
        if self.tool == "buildah":
            os.kill(self._main(), signal.SIGTERM)
        else:
            _call([self.tool, "kill", "--signal", "TERM", self.name], self.variables, check=True)
        return self.process.wait(PATIENCE_S)

    def written(self) -> list[str]:
        """Return the files that are new or different since the start, outside volumes."""
        if self.root is None:
            return []
        now = files_below(self.root)
        return sorted(
            path for path in now.keys() | self.before.keys() if now.get(path) != self.before.get(path)
        )

    def remove(self) -> None:
        """End what still runs, and delete the container."""
        try:
            if self.process.poll() is None:
                if self.tool == "buildah":
                    for pid in _descendants(self.process.pid):
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                else:
                    _call([self.tool, "kill", self.name], self.variables)
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()
            force = [] if self.tool == "buildah" else ["--force"]  # it may have started after the kill
            _call([self.tool, "rm", *force, self.name], self.variables)

    def _main(self) -> int:
        """Return the pid of the process that the image's entry point became."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for pid in _descendants(self.process.pid):
                with suppress(FileNotFoundError, ProcessLookupError):
                    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                    # buildah's own process above it names the same program, and would kill it.
                    if words[:2] == [b"/opt/antiphon/bin/python", b"/opt/antiphon/bin/antiphon"]:
                        return pid
            time.sleep(0.05)
        raise AssertionError(f"{self.name} has no process: {self.said}")


def run(
    tool: str,
    name: str,
    image: str,
    log: TextIO,
    *,
    settings: Mapping[str, str],
    volumes: Volumes,
    variables: Mapping[str, str],
) -> Container:
    """Start an image with `settings` in its environment, in the network of this machine."""
    mounted = [word for path, folder in volumes.items() for word in ("--volume", f"{folder}:{path}")]
    if tool == "buildah":
        return _run_buildah(name, image, log, settings, mounted, variables)
    words = [tool, "create", "--name", name, "--network", "host", "--read-only", "--read-only-tmpfs=false"]
    if tool == "docker":  # has no tmpfs unless asked for
        words.remove("--read-only-tmpfs=false")
    words += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", *mounted]
    words += [word for key, value in settings.items() for word in ("--env", f"{key}={value}")]
    # Apart from the start: the driver vfs first copies the image, which takes minutes on a busy machine.
    _call([*words, image], variables, check=True)
    return Container(tool, name, _start([tool, "start", "--attach", name], log, variables), log, variables)


def _run_buildah(
    name: str,
    image: str,
    log: TextIO,
    settings: Mapping[str, str],
    mounted: list[str],
    variables: Mapping[str, str],
) -> Container:
    _call(["buildah", "from", "--pull-never", "--name", name, image], variables, check=True)
    given = [word for key, value in settings.items() for word in ("--env", f"{key}={value}")]
    _call(["buildah", "config", *given, name], variables, check=True)
    root = Path(_call(["buildah", "mount", name], variables, check=True).stdout.strip())
    # It makes the places of volumes at the first start.
    _call(["buildah", "run", *mounted, name, "--", "true"], variables, check=True)
    inspected = json.loads(_call(["buildah", "inspect", name], variables, check=True).stdout)
    entry = inspected["Docker"]["config"]["Entrypoint"]
    before = files_below(root)
    process = _start(["buildah", "run", *mounted, name, "--", *entry], log, variables)
    return Container("buildah", name, process, log, variables, root, before)


def files_below(root: Path) -> dict[str, tuple[int, int, int]]:
    """Return what a folder holds: path -> mode, size, time of the last change in nanoseconds."""
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            if not stat.S_ISSOCK(status.st_mode):
                found[os.path.relpath(path, root)] = (status.st_mode, status.st_size, status.st_mtime_ns)
    return found


def _start(words: list[str], log: TextIO, variables: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | dict(variables)
    )


def _call(
    words: list[str], variables: Mapping[str, str], *, check: bool = False
) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=COMMAND_S, env=os.environ | dict(variables)
    )
    assert done.returncode == 0 or not check, (words, done.stderr)
    return done


def _descendants(pid: int) -> list[int]:
    """Return the processes below `pid`, the deepest last."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(") ")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents.setdefault(int(fields[1]), []).append(int(folder.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        children = parents.get(waiting.pop(0), [])
        found += children
        waiting += children
    return found


def works(tool: str, variables: Mapping[str, str]) -> bool:
    """Whether a tool is installed and its service, if it has one, answers."""
    if shutil.which(tool) is None or (tool == "buildah" and os.geteuid() != 0):
        return False
    return _call([tool, "info"], variables).returncode == 0
