"""The bare model loop: features, one prefill and the decode steps of a unit, without engine and service.

`python -m benchmarks.crowd.bare` prints `ready on nowhere`. Each line on its standard input is a position in
the cycle of workload W. The answer is the wall time of the unit at this position in microseconds, to the end
of its text or to the decision to listen.
"""

import sys
import time
from typing import Any

import torch

from benchmarks.crowd.conversations import seconds_of_speech
from benchmarks.crowd.scripted import tokens
from inference_service.checkpoints.location import find
from inference_service.device.rows import Rows
from inference_service.engine.batch.context import Context
from inference_service.families import table
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.families.warmup import warm_up


class Loop:
    """One conversation on a runtime, without an engine session."""

    def __init__(self, runtime: DuplexRuntime) -> None:
        self._runtime = runtime
        self._components = components = runtime.components
        self._hearing = components.senses.hearing()
        self._seconds = seconds_of_speech()
        self._ear: Any = components.ear.initial_state()
        self._special = components.tokenizer.special
        self._context = Context(runtime.language, 0, runtime.info.window, runtime.info.context_limit)
        self._think(Rows.of_ids(components.duplex_prompts.prompt("", hears_voice=False).before))
        self._context.end_prompt()
        self._unit = 0

    @torch.inference_mode()
    def run(self, place: int) -> int:
        """Run the unit at position `place` of the cycle; return its wall time in microseconds."""
        runtime, components, context = self._runtime, self._components, self._context
        self._unit += 1
        second = self._seconds[self._unit % len(self._seconds)]
        since = time.perf_counter()
        features = torch.from_numpy(self._hearing.feed(second))
        (heard,), (self._ear,) = components.ear.encode([features], [self._ear])
        carried = Rows.of_ids([*context.carry(), self._special.unit])
        last, step = self._think(Rows.join([carried, Rows.of(heard)])), 0
        while True:
            runtime.scores(last[None]).argmax()
            token = tokens(components.tokenizer, place, step)
            if token in self._special.terminators:
                break
            last, step = self._think(Rows.of_ids([token])), step + 1
        spent = time.perf_counter() - since
        context.end_unit([token, self._special.unit_end])
        if context.must_slide:
            runtime.settle([context])
            context.slide()
        return round(spent * 1e6)

    def _think(self, rows: Rows) -> torch.Tensor:
        (hidden,) = self._runtime.think([self._context.segment(rows)])
        assert hidden is not None
        self._context.advance(len(rows))
        return hidden


def main() -> None:
    """Answer each line of standard input."""
    torch.set_num_threads(1)
    build = table.load(find("antiphon-mini"), torch.device("cpu"))
    warm_up(build(1))
    runtime = build(1)
    assert isinstance(runtime, DuplexRuntime)
    with torch.inference_mode():
        loop = Loop(runtime)
    print("ready on nowhere", flush=True)
    for line in sys.stdin:
        print(loop.run(int(line)), flush=True)


if __name__ == "__main__":
    main()
