"""Tests mutants of the core modules: `python -m tests.mutation [--count N] [module ...]`.

Each module of `modules.toml` gets N mutants, chosen by a fixed seed. Changes of tuned constants are left out,
as are those that `equivalent.toml` lists. A mutant is killed if the tests that the table names for its module
fail, or do not end in time. The survivors are printed with their change.
"""

import argparse
import json
import queue
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tqdm import tqdm

from benchmarks.report import table
from tests.mutation.mutants import Mutant, sample
from tests.mutation.tree import ROOT, Tree

TABLE: Final = Path(__file__).with_name("modules.toml")
EQUIVALENT: Final = TABLE.with_name("equivalent.toml")
RESULTS: Final = ROOT / "build/mutation.json"
SEED: Final = 20_261_130
LEAST_KILLED: Final = 0.92
_PATIENCE_S: Final = 20.0
"""Time that mutants get beyond twice that of the unchanged code."""


@dataclass(frozen=True)
class Tested:
    """A mutant that was tested."""

    mutant: Mutant
    survived: bool


class Trees:
    """The copies, each used by one thread at a time."""

    def __init__(self, folder: Path, count: int) -> None:
        """Make `count` copies below `folder`."""
        self._free: queue.SimpleQueue[Tree] = queue.SimpleQueue()
        for number in range(count):
            self._free.put(Tree(folder / str(number)))

    def seconds(self, tests: list[str]) -> float:
        """Return how long the tests of unchanged code take. Raises `RuntimeError` if they fail."""
        tree = self._free.get()
        try:
            begin = time.monotonic()
            if not tree.passes(tests, 600):
                raise RuntimeError(f"the tests {tests} fail without a mutant")
            return time.monotonic() - begin
        finally:
            self._free.put(tree)

    def test(self, mutant: Mutant, tests: list[str], limit_s: float) -> Tested:
        """Test one mutant."""
        tree = self._free.get()
        try:
            return Tested(mutant, tree.survives(mutant, tests, limit_s))
        finally:
            self._free.put(tree)


def run(wanted: Sequence[str], count: int, processes: int) -> Iterator[Tested]:
    """Yield what became of the mutants of the modules."""
    patterns_of: dict[str, list[str]] = tomllib.loads(TABLE.read_text())["tests"]
    tests = {
        name: [str(path.relative_to(ROOT)) for pattern in patterns for path in sorted(ROOT.glob(pattern))]
        for name, patterns in patterns_of.items()
    }
    modules = [name for name in tests if not wanted or any(part in name for part in wanted)]
    chosen = [mutant for name in modules for mutant in _chosen(name, count)]
    with (
        tempfile.TemporaryDirectory(prefix="antiphon-mutants-") as folder,
        ThreadPoolExecutor(processes) as pool,
    ):
        trees = Trees(Path(folder), processes)
        limits = dict(zip(modules, pool.map(lambda name: _limit(trees, tests[name]), modules), strict=True))
        tasks = [pool.submit(trees.test, it, tests[it.module], limits[it.module]) for it in chosen]
        for task in tqdm(as_completed(tasks), total=len(tasks), unit="mutant"):
            yield task.result()


def _chosen(module: str, count: int) -> list[Mutant]:
    """Return the mutants of a module that a test can kill."""
    source = (ROOT / module).read_text()
    equivalent = tomllib.loads(EQUIVALENT.read_text()).get(module, {})
    return [
        mutant
        for mutant in sample(ROOT, module, count, SEED)
        if mutant.is_code(source)
        and not mutant.tunes_constant(source)
        and mutant.changed(source) not in equivalent
    ]


def _limit(trees: Trees, tests: list[str]) -> float:
    return 2 * trees.seconds(tests) + _PATIENCE_S


def main() -> int:
    """Print a table and the survivors; fail if fewer than `LEAST_KILLED` are killed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", help="parts of paths; all modules if none is given")
    parser.add_argument("--count", type=int, default=25, help="mutants of each module (25)")
    parser.add_argument("--processes", type=int, default=2, help="mutants at once (2)")
    given = parser.parse_args()
    found: list[Tested] = []
    try:
        for tested in run(given.modules, given.count, given.processes):
            found.append(tested)
            _write(found)
    except KeyboardInterrupt:
        print("Interrupted; the table holds the mutants tested so far.", file=sys.stderr)
    if not found:
        return 1
    modules = dict.fromkeys(it.mutant.module for it in found)
    rows = [_row(module, [it for it in found if it.mutant.module == module]) for module in modules]
    print(table(("module", "mutants", "killed", "share"), [*rows, _row("all", found)]))
    for mutant in sorted((it.mutant for it in found if it.survived), key=lambda it: (it.module, it.line)):
        print(f"\n{mutant.module}:{mutant.line} ({mutant.operator} {mutant.occurrence})")
        print(mutant.diff((ROOT / mutant.module).read_text()))
    return 0 if _share(found) >= LEAST_KILLED else 1


def _share(tested: Sequence[Tested]) -> float:
    """Return the kill rate."""
    return sum(not it.survived for it in tested) / len(tested)


def _row(name: str, tested: Sequence[Tested]) -> tuple[str, int, int, str]:
    killed = sum(not it.survived for it in tested)
    return name, len(tested), killed, f"{_share(tested):.2f}"


def _write(found: Sequence[Tested]) -> None:
    """Write the results so far, so that a run that is stopped loses nothing."""
    RESULTS.parent.mkdir(exist_ok=True)
    mutants = [{**vars(it.mutant), "survived": it.survived} for it in found]
    RESULTS.write_text(
        json.dumps({"seed": SEED, "share": _share(found), "mutants": mutants}, indent=1) + "\n"
    )


if __name__ == "__main__":
    threading.stack_size(16 * 2**20)  # cosmic-ray walks trees recursively
    sys.setrecursionlimit(10_000)
    sys.exit(main())
