"""A clip of the model's own voice, which the adapter serves as its default reference voice.

`python -m antiphon_training.stages.clip ws_adapter/sounds/antiphon-mini.wav`
"""

import queue
import sys
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.signal import resample_poly

from inference_service.families.loading import load_engine
from inference_service.interface.engine import (
    Done,
    Event,
    Finish,
    Piece,
    Sink,
)
from inference_service.interface.setups import (
    ChatMessage,
    ChatSetup,
    Sampling,
    TurnInput,
    UnitOverrides,
)
from inference_service.options import WorkerOptions

QUESTION: Final = "What can you do?"
RATE_HZ: Final = 16_000
SEED: Final = 0
_EVENT_TIMEOUT_S: Final = 60.0


def speak() -> tuple[str, NDArray[np.float32]]:
    """Return the shipped model's answer to `QUESTION`: its text, and its speech as float32 mono at 16 kHz."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def put(told: Sequence[Event]) -> None:
        for event in told:
            events.put(event)

    engine = load_engine(WorkerOptions(slots=1), _deliver, _fail)
    try:
        session = engine.open("clip", 0, ChatSetup(Sampling(temperature=0.0), SEED), put)
        session.prefill(1, TurnInput((ChatMessage("user", (QUESTION,)),), speaks=True))
        session.generate(1, False, UnitOverrides())
        words, sounds = [], []
        while not isinstance(event := events.get(timeout=_EVENT_TIMEOUT_S), Done):
            if isinstance(event, Piece):
                words.append(event.text)
                sounds += [event.audio] if event.audio is not None else []
    finally:
        engine.stop()
    if event.finish is not Finish.EOS or not sounds:
        raise RuntimeError(f"the model did not speak to the end: {event}")
    speech = resample_poly(np.concatenate(sounds), RATE_HZ, engine.info.output_sample_rate_hz)
    return " ".join("".join(words).split()), speech.astype(np.float32)


def _deliver(batch: list[tuple[Sink, Sequence[Event]]]) -> None:
    for sink, events in batch:
        sink(events)


def _fail(message: str) -> None:
    raise RuntimeError(message)


def main() -> None:
    """Write the clip to the file that the command line names: 16 kHz, mono, 16 bit."""
    text, speech = speak()
    with wave.open(str(Path(sys.argv[1])), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE_HZ)
        file.writeframes((speech.clip(-1, 1) * 32767).astype("<i2").tobytes())
    print(f'"{text}", {len(speech) / RATE_HZ:.2f} s')


if __name__ == "__main__":
    main()
