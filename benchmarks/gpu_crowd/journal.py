"""A file of finished trials, one line of JSON each, so that a later run does not repeat them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gpu_crowd.phases import Phase
from benchmarks.gpu_crowd.search import SessionKind, Trial


class Journal:
    """The trials of one file with the same `settings`."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """Read the file at `path`; ignore truncated lines and lines with other settings."""
        self._path = path
        self._settings = dict(settings)
        self._trials: dict[tuple[str, int], Trial] = {}
        for line in path.read_text().splitlines() if path.is_file() else []:
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue
            if entry["settings"] == self._settings:
                trial = _trial(entry["trial"])
                self._trials[entry["sessions_are"], trial.sessions] = trial

    def __len__(self) -> int:
        return len(self._trials)

    def find(self, kind: SessionKind, sessions: int) -> Trial | None:
        """Return the finished trial with `sessions` sessions; None if there is none."""
        return self._trials.get((kind.name, sessions))

    def attempt(self, kind: SessionKind, sessions: int, make: Callable[[int], Trial]) -> Trial:
        """Return the finished trial with `sessions` sessions; otherwise call `make` and append its trial."""
        found = self.find(kind, sessions)
        if found is None:
            found = self._trials[kind.name, sessions] = make(sessions)
            self._keep(kind, found)
        return found

    def _keep(self, kind: SessionKind, trial: Trial) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        entry = {"settings": self._settings, "sessions_are": kind.name, "trial": asdict(trial)}
        is_cut_off = self._path.is_file() and not self._path.read_bytes().endswith(b"\n")
        with self._path.open("a") as file:
            file.write(("\n" if is_cut_off else "") + json.dumps(entry) + "\n")


def _trial(told: dict[str, Any]) -> Trial:
    return Trial(**told | {"phases": tuple(Phase(**it) for it in told["phases"])})
