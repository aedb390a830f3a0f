"""A pytest plugin that imports the compiled kernels from the folder `SANITIZED_KERNELS` alone."""

import os
import sys
from pathlib import Path

import pytest

import inference_service.kernels as package

FOLDER = Path(os.environ["SANITIZED_KERNELS"])
NAMES = sorted(path.name.partition(".")[0] for path in FOLDER.glob("*.so"))

package.__path__.insert(0, str(FOLDER))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail unless all modules of the folder were used."""
    files = {name: getattr(sys.modules.get(f"{package.__name__}.{name}"), "__file__", None) for name in NAMES}
    if strays := {name: file for name, file in files.items() if file is None or Path(file).parent != FOLDER}:
        raise pytest.UsageError(f"not tested with sanitizers: {strays}")
