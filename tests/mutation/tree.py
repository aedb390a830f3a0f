"""Copies of the repository in which mutants are tested, so that nobody works on changed code."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.mutation.mutants import Mutant

ROOT: Final = Path(__file__).parents[2]
_COPIED: Final = (
    *("antiphon_service", "antiphon_training", "clients", "docs", "inference_service", "protos"),
    *("tests", "ws_adapter", "benchmarks", "pyproject.toml"),
)
_FAILED: Final = 1
"""Exit code of pytest if tests failed."""
_NOT_LOADED: Final = 2
"""... if a test file or a fixture could not be loaded."""
PYTEST: Final = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-n0", "-m", "not long")


class Tree:
    """One copy, for one mutant at a time."""

    def __init__(self, folder: Path) -> None:
        """Copy what tests need into `folder`."""
        self._root = folder
        for name in _COPIED:
            source = ROOT / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("node_modules", "__pycache__", "build", "dist")
                shutil.copytree(source, folder / name, symlinks=True, ignore=ignored)
            else:
                shutil.copy(source, folder / name)

    def passes(self, tests: list[str], limit_s: float) -> bool:
        """Return whether tests pass within a time. Raises `RuntimeError` if pytest itself fails."""
        path = os.pathsep.join((str(self._root), str(self._root / "clients/python")))
        process = subprocess.Popen(
            (sys.executable, *PYTEST, *tests),
            cwd=self._root,
            env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return False
        finally:
            _end(process)
        if process.returncode not in (0, _FAILED, _NOT_LOADED):
            raise RuntimeError(f"pytest ended with {process.returncode}:\n{output[-2000:]}")
        return process.returncode == 0

    def survives(self, mutant: Mutant, tests: list[str], limit_s: float) -> bool:
        """Return whether the tests pass although the code is changed."""
        file = self._root / mutant.module
        source = file.read_text()
        file.write_text(mutant.code(source))
        try:
            return self.passes(tests, limit_s)
        finally:
            file.write_text(source)


def _end(process: "subprocess.Popen[str]") -> None:
    """End a process and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
