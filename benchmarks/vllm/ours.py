"""Antiphon's engine as a process: `python -m benchmarks.vllm.ours FOLDER DTYPE`."""

import queue
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.vllm.scene import HEARD, LIMIT, SAID, STREAMS, ids, serve
from inference_service.engine.engine import LiveEngine
from inference_service.families import table
from inference_service.interface.engine import (
    Closed,
    Done,
    Event,
    Finalized,
    Piece,
    SessionFailed,
)
from inference_service.interface.setups import (
    NO_OVERRIDES,
    Sampling,
    StreamInput,
    TokensSetup,
)


class AntiphonEngine:
    """Antiphon's engine with token streams of the model in `folder`."""

    def __init__(self, folder: Path, dtype: str) -> None:
        torch.set_num_threads(1)
        build = table.load(folder, torch.device("cpu"), LIMIT, dtype)
        self._told: queue.Queue[tuple[int, Event]] = queue.Queue()
        self._engine = LiveEngine(build(STREAMS), STREAMS, _deliver, lambda reason: sys.exit(reason))
        self.chats([ids(8, 1)], 4)

    def chats(self, prompts: Sequence[list[int]], most: int) -> list[list[int]]:
        sessions = [self._open(slot, most) for slot in range(len(prompts))]
        for session, prompt in zip(sessions, prompts, strict=True):
            _say(session, 1, prompt)
        said: list[list[int]] = [[] for _ in prompts]
        left = len(prompts)
        while left:
            slot, event = self._next()
            if isinstance(event, Piece):
                said[slot] += event.token_ids
            left -= isinstance(event, Finalized)
        self._close(sessions)
        return said

    def streams(self, seconds: int) -> list[float]:
        sessions = [self._open(slot, SAID) for slot in range(STREAMS)]
        begin, latencies = time.monotonic() + 0.1, []
        left = STREAMS * seconds
        for number in range(left):
            due = begin + number / STREAMS
            while (wait := due - time.monotonic()) > 0:
                latencies += self._done(begin, wait)
            slot, second = number % STREAMS, number // STREAMS
            _say(sessions[slot], second + 1, ids(HEARD, number))
        while len(latencies) < left:
            latencies += self._done(begin, 60.0)
        self._close(sessions)
        return latencies

    def _done(self, begin: float, wait: float) -> list[float]:
        """Wait for the next event, at most `wait` seconds; return the latency of its chunk if it ends one."""
        try:
            slot, event = self._next(wait)
        except queue.Empty:
            return []
        if not isinstance(event, Done):
            return []
        return [time.monotonic() - (begin + slot / STREAMS + event.unit - 1)]

    def _open(self, slot: int, most: int) -> Any:
        sampling = Sampling(max_new_tokens=most, temperature=0.0, ignore_eos=True)
        setup = TokensSetup(sampling, seed=1)

        def tell(events: Sequence[Event]) -> None:
            for event in events:
                self._told.put((slot, event))

        return self._engine.open(f"s-{slot}", slot, setup, tell)

    def _close(self, sessions: list[Any]) -> None:
        for session in sessions:
            session.close()
        left = len(sessions)
        while left:
            left -= isinstance(self._next()[1], Closed)

    def _next(self, wait: float = 60.0) -> tuple[int, Event]:
        slot, event = self._told.get(timeout=wait)
        if isinstance(event, SessionFailed):
            raise SystemExit(f"A session failed: {event.message}")
        return slot, event


def _say(session: Any, unit: int, chunk: list[int]) -> None:
    session.prefill(unit, StreamInput(tuple(chunk)))
    session.generate(unit, False, NO_OVERRIDES)
    session.finalize(unit)


def _deliver(told: list[tuple[Any, Any]]) -> None:
    for sink, event in told:
        sink(event)


if __name__ == "__main__":
    serve(AntiphonEngine(Path(sys.argv[1]), sys.argv[2]))
