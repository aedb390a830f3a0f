"""Audio encoder and vocoder of the shipped model: batched sessions against one session after another."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import torch

from benchmarks.kernels.timing import medians
from benchmarks.report import Goal, Report
from inference_service.checkpoints.folder import load_duplex
from inference_service.checkpoints.location import find
from inference_service.media.mel import BANDS
from inference_service.models.audio_encoder import AudioEncoder
from inference_service.models.vocoder import Vocoder

SESSIONS: Final = (1, 16, 64)
FRAMES: Final = 100
CODES: Final = 25
"""The number of codes of a second."""
COLUMNS: Final = ("part, sessions", "one after another, ms each", "together, ms each", "together / alone")

Second = Callable[[Sequence[int]], object]
"""A function that computes the next second of these sessions."""


@torch.inference_mode()
def measure(is_short: bool) -> Report:
    """Return the table of CPU-milliseconds per second of one session."""
    model, _, _ = load_duplex(find("antiphon-mini"), torch.device("cpu"))
    rows, ratios = [], {}
    for part, second in (("ear", hearing(model.apm)), ("vocoder", saying(model.vocoder))):
        for count in SESSIONS:
            calls = [partial(one_after_another, second, count), partial(second, range(count))]
            alone, together = (1000 * time / count for time in medians(calls, 2 if is_short else 9))
            name = f"{part}, {count}"
            ratios[name] = together / alone
            rows.append((name, alone, together, together / alone))
    return Report(
        "sound",
        "One second of audio in the encoder and the vocoder of `antiphon-mini`:"
        " `python -m benchmarks.kernels sound`",
        COLUMNS,
        rows,
        (
            Goal("16 ears in a batch over 16 in sequence", ratios["ear, 16"], 0.75),
            Goal("16 vocoders in a batch over 16 in sequence", ratios["vocoder, 16"], 1.0),
        ),
        where="processor time of one thread",
    )


def one_after_another(second: Second, count: int) -> None:
    """Compute the next second of `count` sessions, one after another."""
    for session in range(count):
        second([session])


def hearing(ear: AudioEncoder) -> Second:
    """Return the encoder's step: each session repeats its own random mel frames, [FRAMES, BANDS]."""
    heard = [torch.randn(FRAMES, BANDS, generator=_seeded(session)) for session in range(max(SESSIONS))]
    states = [ear.initial_state() for _ in heard]

    def second(crowd: Sequence[int]) -> None:
        _, after = ear.encode([heard[session] for session in crowd], [states[session] for session in crowd])
        for session, state in zip(crowd, after, strict=True):
            states[session] = state

    return second


def saying(vocoder: Vocoder) -> Second:
    """Return the vocoder's step: each session repeats its own `CODES` random codes."""
    said = [
        torch.randint(vocoder.config.codes, (CODES,), generator=_seeded(session)).tolist()
        for session in range(max(SESSIONS))
    ]
    states = [vocoder.initial_state(session) for session in range(len(said))]
    return lambda crowd: vocoder.decode([said[it] for it in crowd], [states[it] for it in crowd])


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
