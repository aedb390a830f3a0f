"""Time of each part of a tick, on the host and on the device."""

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import torch

from inference_service.device import transfer
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.engine import Ticked

NAMES: Final = ("hear", "see", "prefill", "decode", "choose", "speech", "vocoder", "transfers")
"""The parts of a tick: a forward with one row per session is `decode`, any other is `prefill`."""


@dataclass(frozen=True)
class Phase:
    """The time of one part of a tick, as means over all ticks."""

    name: str
    calls: float
    """The average number of calls in a tick."""
    host_ms: float
    """The host time per tick in milliseconds, including waits for the device.

    Transfers are also part of other phases.
    """
    device_ms: float
    """The device time per tick in milliseconds, from the first kernel of a call to its last; 0 on the CPU."""


class Phases:
    """A meter of the parts of a runtime's ticks and of the process's transfers. Call `close` at the end."""

    def __init__(self, runtime: DuplexRuntime) -> None:
        speech = runtime.components.speech
        assert speech is not None
        self._device = runtime.device
        self._calls: dict[str, int] = defaultdict(int)
        self._host_s: dict[str, float] = defaultdict(float)
        self._marks: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = defaultdict(list)
        self._undo = ExitStack()
        self.ticks = 0
        for name in ("hear", "see", "choose"):
            self._watch(runtime, name, name)
        self._watch(runtime, "think", _kind)
        self._watch(runtime.speaker, "forward", "speech")
        mouth: Any = speech.mouth
        self._watch(mouth._model, "step", "vocoder")  # inside it, the vocoder's own CUDA stream is current
        for name in ("upload", "download"):
            copy = getattr(transfer, name)
            for module in list(sys.modules.values()):
                if getattr(module, name, None) is copy:
                    self._watch(module, name, "transfers")

    def close(self) -> None:
        """Restore the watched methods."""
        self._undo.close()

    def take(self, ticks: Sequence[Ticked]) -> None:
        """Accept the ticks of `Engine.watch`."""
        self.ticks += len(ticks)

    def reset(self) -> None:
        """Discard all measurements."""
        self.ticks = 0
        for kept in (self._calls, self._host_s, self._marks):
            kept.clear()

    def means(self) -> list[Phase]:
        """Wait until the device is idle, and return all phases."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        ticks = max(1, self.ticks)
        return [
            Phase(
                name,
                self._calls[name] / ticks,
                1000 * self._host_s[name] / ticks,
                sum(begin.elapsed_time(end) for begin, end in self._marks[name]) / ticks,
            )
            for name in NAMES
        ]

    def _watch(self, owner: Any, name: str, phase: str | Callable[[Any], str]) -> None:
        """Time a method; `phase` is its phase, or a function of the first argument that returns it."""
        call, is_own = getattr(owner, name), name in vars(owner)

        def timed(*given: Any) -> Any:
            which = phase if isinstance(phase, str) else phase(given[0])
            begun, since = self._mark(), time.perf_counter()
            try:
                return call(*given)
            finally:
                self._host_s[which] += time.perf_counter() - since
                self._calls[which] += 1
                if begun is not None and (ended := self._mark()) is not None:
                    self._marks[which].append((begun, ended))

        setattr(owner, name, timed)
        if is_own:
            self._undo.callback(setattr, owner, name, call)
        else:
            self._undo.callback(delattr, owner, name)

    def _mark(self) -> torch.cuda.Event | None:
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _kind(segments: Sequence[Any]) -> str:
    return "decode" if all(len(it.rows) == 1 for it in segments) else "prefill"
