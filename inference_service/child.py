"""Child processes of the worker that run one of its modules, such as the video decoder."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_ROOT: Final = str(Path(__file__).parents[1])
_VARIABLES: Final = ("LD_LIBRARY_PATH", "PYTHONPATH")


def command(module: str, *arguments: str) -> list[str]:
    """Return the command line that calls `main` of a module with these arguments."""
    program = f"import sys; sys.path.insert(0, {_ROOT!r}); from {module} import main; main()"
    return [sys.executable, "-c", program, *arguments]


def environment() -> Mapping[str, str]:
    """Return the environment of a child process, without the worker's variables that may hold keys."""
    return {name: os.environ[name] for name in _VARIABLES if name in os.environ}
