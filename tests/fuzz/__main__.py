"""Fuzzes one target, or all in turn, guided by coverage: `python -m tests.fuzz [--target T] [--seconds S]`.

Needs atheris (`make fuzz` installs it). New inputs that reach new code are kept in `var/fuzz/<target>`; one
that breaks something is written there too, and belongs into `tests/fuzz/corpus/<target>`.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from tests.fuzz.seeds import FOLDER

WORK = Path("var/fuzz")
LONGEST_INPUT = 65_536


def fuzz(target: str, seconds: int) -> int:
    """Runs libFuzzer on one target in this process; it ends the process by itself."""
    import atheris

    with atheris.instrument_imports(include=["ws_adapter", "inference_service", "tests.fuzz.targets"]):
        from tests.fuzz.targets import TARGETS
    found = WORK / target
    found.mkdir(parents=True, exist_ok=True)
    arguments = [
        sys.argv[0],
        str(found),
        str(FOLDER / target),
        f"-max_total_time={seconds}",
        f"-max_len={LONGEST_INPUT}",
        f"-artifact_prefix={found}/",
        "-print_final_stats=1",
    ]
    atheris.Setup(arguments, TARGETS[target])
    atheris.Fuzz()
    return 0


def main() -> int:
    targets = sorted(folder.name for folder in FOLDER.iterdir())
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--target", choices=targets, help="default: all, one after another")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default 60)")
    given = parser.parse_args()
    if given.target:
        return fuzz(given.target, given.seconds)
    broken = []
    for target in targets:
        print(f"== {target}", flush=True)
        command = [sys.executable, "-m", "tests.fuzz", "--target", target, "--seconds", str(given.seconds)]
        if subprocess.run(command).returncode:
            broken.append(target)
    print(f"broken: {', '.join(broken)}" if broken else f"{len(targets)} targets held")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
