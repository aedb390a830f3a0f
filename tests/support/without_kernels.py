"""A pytest plugin that switches the compiled kernels off: `pytest -p tests.support.without_kernels ...`.

Torch and NumPy compute everything in the process of pytest, as in a worker with `--kernels off`. The run
fails if a compiled module was loaded nevertheless.
"""

from pathlib import Path

import pytest

from inference_service.kernels import selection

selection.select("off")


def pytest_sessionfinish(session: pytest.Session) -> None:
    maps = Path("/proc/self/maps").read_text().splitlines()
    if loaded := {line.split()[-1] for line in maps if "inference_service/kernels/" in line}:
        raise pytest.UsageError(f"kernels are off, and these are loaded: {sorted(loaded)}")
