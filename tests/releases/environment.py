"""A virtual environment with nothing of this checkout in it."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

INSTALL_S: Final = 1800.0
"""PyTorch is downloaded and unpacked."""

_ROOT: Final = Path(__file__).parents[2]


class Environment:
    """An empty environment of one interpreter, with an empty folder in which its commands run."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.home = folder / "empty"
        self.home.mkdir(parents=True)
        self._bin = folder / "venv" / "bin"
        self._run([python, "-m", "venv", folder / "venv"], INSTALL_S).check_returncode()

    def install(self, distribution: Path, extra: str = "", *, dependencies: bool = True) -> None:
        """Install a wheel or an sdist, in place of another one; fails the test if pip does."""
        how = ["--force-reinstall", "--no-deps"] if not dependencies else []
        done = self._run(self._pip("install", *how, self._asked(distribution, extra)), INSTALL_S)
        assert done.returncode == 0, done.stdout + done.stderr

    def would_install(self, distribution: Path, extra: str) -> list[str]:
        """Return the names of the packages that an installation would add, as pip resolves them."""
        command = self._pip("install", "--dry-run", "--report", "-", self._asked(distribution, extra))
        done = self._run(command, INSTALL_S)
        assert done.returncode == 0, done.stdout + done.stderr
        return [str(it["metadata"]["name"]) for it in json.loads(done.stdout)["install"]]

    def antiphon(self, *arguments: str | Path, timeout_s: float) -> "subprocess.CompletedProcess[str]":
        """Run the command of the installed distribution."""
        return self._run([self._bin / "antiphon", *arguments], timeout_s)

    def python(self, code: str, timeout_s: float) -> str:
        """Run code and return what it prints; fails the test if it raises."""
        done = self._run([self._bin / "python", "-c", code], timeout_s)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _pip(self, *arguments: str) -> list[str | Path]:
        index = os.environ.get("TORCH_INDEX")
        known = ["-c", str(_ROOT / "constraints.txt"), *(["--extra-index-url", index] if index else [])]
        action, *rest = arguments
        return [self._bin / "python", "-m", "pip", action, "--quiet", *known, *rest]

    def _asked(self, distribution: Path, extra: str) -> str:
        return f"{distribution}[{extra}]" if extra else str(distribution)

    def _run(self, command: list[str | Path], timeout_s: float) -> "subprocess.CompletedProcess[str]":
        env: Mapping[str, str] = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("ANTIPHON_") and name not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
        }
        return subprocess.run(
            list(map(str, command)),
            cwd=self.home,
            env=env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
