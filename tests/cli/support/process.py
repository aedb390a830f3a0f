"""Runs of the commands as real processes, with their output and exit codes."""

import io
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from antiphon_command.command import main
from tests.support.forks.process import start
from tests.support.patience import START_S

ANTIPHON = [sys.executable, "-m", "antiphon_command"]


@dataclass(frozen=True)
class Outcome:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


def run_cli(
    *arguments: str | Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = START_S,
) -> Outcome:
    """Run `antiphon ARGUMENTS...` to its end, with empty standard input."""
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        process = start(
            "antiphon_command", *map(str, arguments), output=out, errors=err, environment=env, folder=cwd
        )
        process.stdin.close()
        try:
            code = process.wait(timeout_s)
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        return Outcome(code, out.read(), err.read())


def run_here(*arguments: str | Path) -> Outcome:
    """Run the command in this process, which has slow imports done already."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return Outcome(code, out.getvalue(), err.getvalue())


def run_without(module: str, *arguments: str) -> Outcome:
    """Run the command in a Python in which `module` is not installed."""
    code = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from antiphon_command.command import main\n"
        f"sys.exit(main({list(arguments)!r}))"
    )
    return run([sys.executable, "-c", code], None, None, START_S)


def run(command: list[str], env: Mapping[str, str] | None, cwd: Path | None, timeout_s: float) -> Outcome:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, env=env, cwd=cwd, check=False
    )
    return Outcome(done.returncode, done.stdout, done.stderr)
