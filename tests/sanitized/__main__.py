"""Runs the kernels' tests with AddressSanitizer and UBSan: `python -m tests.sanitized [pytest's arguments]`.

The kernels are built into a temporary folder, once for each width of vectors that this processor has. What
they read or write outside a tensor, and undefined arithmetic, ends pytest with a report. Needs gcc, its
libasan and Python's headers.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.sanitized.build import REPOSITORY, build

TESTS: Final = (
    "tests/inference_service/kernels",
    "tests/inference_service/media/test_mel.py",
    "tests/inference_service/engine/batch/test_sampler.py",
)
COMPILER: Final = "gcc"
LIBRARIES: Final = ("libasan.so", "libstdc++.so")
"""Loaded before Python: ASan has to see the first allocation, and the functions of C++ that it replaces."""
WIDTHS: Final = {128: "", 256: "avx2", 512: "avx512bw"}
"""Bits of a vector, and a flag of processors that have such vectors."""


def main() -> int:
    """Return the first exit code that is not 0, or 2 if something is missing."""
    description = "Runs the kernels' tests with AddressSanitizer and UBSan."
    parser = argparse.ArgumentParser(prog="python -m tests.sanitized", description=description)
    parser.add_argument("--width", type=int, choices=WIDTHS, help="bits of vectors (default: each)")
    arguments, others = parser.parse_known_args()
    try:
        libraries = [library(name) for name in LIBRARIES]
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"{error}: apt-get install gcc g++ python3-dev", file=sys.stderr)
        return 2
    for width in [arguments.width] if arguments.width else available():
        with tempfile.TemporaryDirectory(prefix="antiphon-sanitized-") as folder:
            print(f"building for vectors of {width} bits", flush=True)
            build(Path(folder), COMPILER, width)
            if code := run(Path(folder), libraries, others or TESTS):
                return code
    return 0


def run(folder: Path, libraries: list[str], arguments: list[str] | tuple[str, ...]) -> int:
    """Return pytest's exit code against the modules in `folder`."""
    # Captured by file descriptor, the report of a process that ends with it would be lost.
    options = ["-n", "0", "-q", "--capture=sys", "-p", "tests.sanitized.plugin"]
    command = [sys.executable, "-m", "pytest", *options, *arguments]
    variables = {
        "SANITIZED_KERNELS": str(folder),
        "LD_PRELOAD": ":".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=1",  # Python keeps what it has until it ends
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(command, cwd=REPOSITORY, env=os.environ | variables, check=False).returncode


def library(name: str) -> str:
    """Return the path of a library of the compiler. Raises `OSError` if it has none."""
    asked = [COMPILER, f"-print-file-name={name}"]
    path = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(path).is_absolute():
        raise FileNotFoundError(f"{COMPILER} has no {name}")
    return path


def available() -> list[int]:
    """Return the widths of vectors that this processor has."""
    flags = Path("/proc/cpuinfo").read_text().split()
    return [width for width, flag in WIDTHS.items() if not flag or flag in flags]


if __name__ == "__main__":
    sys.exit(main())
