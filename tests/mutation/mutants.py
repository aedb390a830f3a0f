"""Mutants: small changes to a module, as cosmic-ray makes them."""

import difflib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

_LEFT_OUT = ("_BitOr_", "VariableInserter", "VariableReplacer", "NoOp")
"""Operators that are left out: most `|` of this code join types, and the others need names given to them."""


_CONSTANT = re.compile(r"[A-Z_][A-Z0-9_]* *(?::[^=]+)?= | +[a-z_]+: (?:float|int) = ")
"""A constant of a module, or the default of a limit. Its value is tuned, and tests refer to it by name."""


@dataclass(frozen=True)
class Mutant:
    """One change to a module."""

    module: str
    """Path of the module, from the root."""
    operator: str
    occurrence: int
    line: int
    column: int

    def code(self, source: str) -> str:
        """Return the changed text of the module. Raises `ValueError` if there is nothing to change."""
        changed = mutate_code(source, get_operator(self.operator)(), self.occurrence)
        if changed is None:
            raise ValueError(f"{self} changes nothing")
        return str(changed)

    def is_code(self, source: str) -> bool:
        """Return whether the changed module compiles; an operator may replace the `*` of a signature."""
        try:
            compile(self.code(source), self.module, "exec")
        except SyntaxError:
            return False
        return True

    def tunes_constant(self, source: str) -> bool:
        """Return whether the change is one to the value of a constant."""
        return _CONSTANT.match(source.splitlines()[self.line - 1]) is not None

    def changed(self, source: str) -> str:
        """Return the changed lines, as one; empty if lines are only missing."""
        lines = self.diff(source).splitlines()
        return " ".join(line[1:].strip() for line in lines if line.startswith("+"))

    def diff(self, source: str) -> str:
        """Return the lines that differ."""
        lines = difflib.unified_diff(source.splitlines(), self.code(source).splitlines(), lineterm="", n=0)
        return "\n".join(line for line in lines if line[:2] not in ("--", "++", "@@"))


def mutants(root: Path, module: str) -> Iterator[Mutant]:
    """Yield every mutant of a module."""
    tree = get_ast((root / module).read_text())
    for name in sorted(operator_names()):
        operator = get_operator(name)
        if any(part in name for part in _LEFT_OUT) or operator.arguments():
            continue
        found = (start for node in ast_nodes(tree) for start, _ in operator().mutation_positions(node))
        for occurrence, (line, column) in enumerate(found):
            yield Mutant(module, name, occurrence, line, column)


def sample(root: Path, module: str, count: int, seed: int) -> list[Mutant]:
    """Return mutants of a module at `count` places, the same ones for the same seed.

    Places are drawn first, then one mutant of each: an operator that has many replacements counts once.
    """
    places: dict[tuple[int, int], list[Mutant]] = {}
    for mutant in mutants(root, module):
        places.setdefault((mutant.line, mutant.column), []).append(mutant)
    draw = random.Random(f"{seed} {module}")
    return [draw.choice(places[place]) for place in draw.sample(sorted(places), min(count, len(places)))]
