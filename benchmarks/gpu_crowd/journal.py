"""Finished trials, one a line of JSON, which a later run with the same settings need not repeat."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gpu_crowd.phases import Phase
from benchmarks.gpu_crowd.search import Trial, Way


class Journal:
    """The trials of one file that were made with these settings."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """Read the file; truncated lines and lines of other settings are ignored."""
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

    def find(self, way: Way, sessions: int) -> Trial | None:
        """Return the finished trial of so many sessions; None if there is none."""
        return self._trials.get((way.name, sessions))

    def attempt(self, way: Way, sessions: int, make: Callable[[int], Trial]) -> Trial:
        """Return the finished trial of so many sessions; if there is none, make and keep it."""
        found = self.find(way, sessions)
        if found is None:
            found = self._trials[way.name, sessions] = make(sessions)
            self._keep(way, found)
        return found

    def _keep(self, way: Way, trial: Trial) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        entry = {"settings": self._settings, "sessions_are": way.name, "trial": asdict(trial)}
        is_cut_off = self._path.is_file() and not self._path.read_bytes().endswith(b"\n")
        with self._path.open("a") as file:
            file.write(("\n" if is_cut_off else "") + json.dumps(entry) + "\n")


def _trial(told: dict[str, Any]) -> Trial:
    return Trial(**told | {"phases": tuple(Phase(**it) for it in told["phases"])})
