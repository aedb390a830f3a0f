"""Common parts of the trained stages: a progress bar, and atomic writes of files."""

import os
import shutil
from pathlib import Path
from typing import Any, Final

import torch
from tqdm import tqdm

_FORMAT: Final = "{desc}: {percentage:3.0f}%|{bar}| {n:.0f}/{total:.0f} s{postfix}"


class Bar:
    """The progress bar of a stage with a fixed wall time; without a terminal, log lines."""

    def __init__(self, name: str, seconds: float) -> None:
        self._name = name
        self._bar = tqdm(total=seconds, desc=name, bar_format=_FORMAT, disable=None)

    def move(self, elapsed: float) -> None:
        """Show the elapsed seconds."""
        self._bar.update(min(elapsed, self._bar.total or 0) - self._bar.n)

    def note(self, step: int, elapsed: float, text: str) -> None:
        """Show the step, the elapsed seconds and `text`; without a terminal, print them as a line."""
        self.move(elapsed)
        if self._bar.disable:
            print(f"{self._name} {step:6d} {elapsed:6.0f} s  {text}", flush=True)
        else:
            self._bar.set_postfix_str(f"step {step}, {text}")

    def close(self) -> None:
        """Stop the bar; it stays on the terminal."""
        self._bar.close()


def save(state: Any, path: Path) -> None:
    """Write a state dict to `path` atomically."""
    part = path.with_name(path.name + ".new")
    torch.save(state, part)
    os.replace(part, path)


def copy(source: Path, path: Path) -> None:
    """Copy a file to `path` atomically."""
    part = path.with_name(path.name + ".new")
    shutil.copy(source, part)
    os.replace(part, path)
