"""Find the interpreters of this machine that a release supports."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

MINORS: Final = (11, 12, 13)
"""Python 3.11 to 3.13, as the classifiers of pyproject.toml list them."""

_ANSWER_S: Final = 60.0


def interpreter(minor: int) -> Path | None:
    """Return a Python 3.`minor` that can make virtual environments, from PATH or pyenv; None without one."""
    if sys.version_info[:2] == (3, minor):
        return Path(sys.base_prefix, "bin", f"python3.{minor}")
    found = shutil.which(f"python3.{minor}")
    candidates = [Path(found)] if found else []
    candidates += sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3.{minor}"))
    return next((it for it in candidates if _makes_environments(it, minor)), None)


def _makes_environments(python: Path, minor: int) -> bool:
    """Whether it runs, is that version, and has venv and pip; the shims of pyenv often only look like one."""
    check = f"import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, {minor}))"
    try:
        done = subprocess.run([python, "-c", check], capture_output=True, timeout=_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
