"""Builds the compiled modules of `pyproject.toml` with AddressSanitizer and UndefinedBehaviorSanitizer."""

import subprocess
import sysconfig
import tomllib
from pathlib import Path
from typing import Any, Final

REPOSITORY: Final = Path(__file__).parents[2]
SANITIZERS: Final = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-O1", "-g")
WARNINGS: Final = ("-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror")


def build(folder: Path, compiler: str, instructions: int) -> None:
    """Compile all modules into `folder`, for vectors of at most so many bits.

    Raises `subprocess.CalledProcessError` if the compiler refuses one; warnings are errors.
    """
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    for module in settings["tool"]["setuptools"]["ext-modules"]:
        subprocess.run(command(module, folder, compiler, instructions), cwd=REPOSITORY, check=True)


def command(module: dict[str, Any], folder: Path, compiler: str, instructions: int) -> list[str]:
    """Return the call of the compiler, with the module's own options but for its optimisation."""
    own = [it for it in module["extra-compile-args"] if not it.startswith("-O")]
    target = folder / f"{module['name'].rpartition('.')[2]}.abi3.so"
    return [
        compiler, "-shared", "-fPIC", *own, *WARNINGS, *SANITIZERS,
        f"-DINSTRUCTIONS={instructions}", f"-I{sysconfig.get_path('include')}", *module["sources"],
        "-o", str(target), *(f"-l{it}" for it in module.get("libraries", ())),
    ]  # fmt: skip
