"""Runs tests on a processor that is not at hand, in Bochs: by default those of the kernels, with AVX-512.

    python -m tests.emulated [--processor avx512] [tests/inference_service/kernels]

About 15 minutes and 6 GiB of a temporary folder; needs a Debian and some of its packages. Whatever the
tests take is copied: this Python, its packages, the libraries they load, the repository's files and the
kernels that were built for it.
"""

import argparse
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import inference_service.kernels
from tests.emulated.machine import PACKAGES, PROCESSORS, Machine, NoEnd

REPOSITORY: Final = Path(__file__).parents[2]
TOOLS: Final = ("bochs-bin", "xorriso", "mke2fs", "cpio", "busybox", "dpkg-deb", "apt-get")
PATIENCE_S: Final = 5400.0
_UNUSED: Final = ("test", "idlelib", "lib2to3", "turtledemo", "ensurepip", "config-*", "site-packages", "*.a")
"""Of Python itself."""
_NOT_COPIED: Final = ("pip", "mypy", "*__mypyc*", "include", "__editable__*")
"""Of the packages: large, and nothing that a test of ours imports."""


def main() -> int:
    """Returns pytest's exit code; 1 if it never ended."""
    parser = argparse.ArgumentParser(prog="python -m tests.emulated", description=__doc__.splitlines()[0])
    parser.add_argument("--processor", choices=PROCESSORS, default="avx512", help="what it has (avx512)")
    parser.add_argument("tests", nargs="*", default=["tests/inference_service/kernels"], help="for pytest")
    arguments = parser.parse_args()
    if missing := [
        tool for tool in TOOLS if shutil.which(tool, path="/usr/bin:/bin:/usr/sbin:/sbin") is None
    ]:
        print(f"{', '.join(missing)} not found: apt-get install {PACKAGES}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="antiphon-emulated-") as name:
        folder = Path(name)
        machine = Machine(folder, arguments.processor)
        print("copying what the tests take", flush=True)
        copy_all(folder / "root")
        print("making a disk of it", flush=True)
        machine.build(folder / "root", command_of(arguments.tests))
        print("booting: some minutes until the first test", flush=True)
        try:
            return machine.run(PATIENCE_S)
        except NoEnd as error:
            print(f"the machine did not come to an end: {error}", file=sys.stderr)
            return 1


def command_of(tests: Iterable[str]) -> list[str]:
    """What the shell of the machine runs."""
    packages = sysconfig.get_path("purelib")
    return [
        "export HOME=/run TMPDIR=/run OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1",
        f"export PYTHONPATH={REPOSITORY}:{REPOSITORY}/clients/python:{packages}",
        f"cd {REPOSITORY}",
        "grep -m 1 -o 'model name.*' /proc/cpuinfo; grep -m 1 ^flags /proc/cpuinfo",
        f"{interpreter()} -m pytest -v --color=no -p no:cacheprovider -o timeout=0 {' '.join(tests)}",
    ]


def interpreter() -> Path:
    """Python itself, not that of an environment."""
    return Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"


def copy_all(root: Path) -> None:
    """Puts into `root` whatever the tests take, each file where it is here."""
    packages = Path(sysconfig.get_path("purelib"))
    python = Path(sysconfig.get_path("stdlib"))
    copy(packages, root, _NOT_COPIED)
    copy(python, root, _UNUSED)
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, check=True, capture_output=True, text=True
    )
    for name in filter(None, tracked.stdout.split("\0")):
        copy(REPOSITORY / name, root)
    for kernel in Path(inference_service.kernels.__file__).parent.glob("*.so"):
        copy(kernel, root)
    copy(interpreter(), root)
    binaries = [interpreter(), *python.glob("lib-dynload/*.so"), *packages.rglob("*.so*")]
    for library in libraries(binaries):
        copy(library, root)


def copy(path: Path, root: Path, ignored: Iterable[str] = ()) -> None:
    """A file, what a link points to, or a folder but for what has an ignored name."""
    to = root / path.relative_to("/")
    to.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.copytree(path, to, symlinks=True, ignore=shutil.ignore_patterns(*ignored))
    elif not to.exists():
        shutil.copy2(path, to)


def libraries(binaries: Iterable[Path]) -> set[Path]:
    """The shared libraries that these load."""
    # Not checked: some are no programs.
    told = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=False)
    return {Path(name) for name in re.findall(r"(/\S+\.so\S*) \(0x", told.stdout)}


if __name__ == "__main__":
    sys.exit(main())
