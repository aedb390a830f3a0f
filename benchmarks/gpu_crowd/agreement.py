"""Agreement of a device with the CPU in float32: the same small weights, the same input."""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from benchmarks.gpu_crowd import model
from inference_service.device.rows import Rows
from inference_service.engine.batch.decoder import PackedDecoder, Segment
from inference_service.models.minicpmo.mel import StreamingMel
from inference_service.models.minicpmo.model import MiniCPMO
from inference_service.models.token2wav.model import Token2Wav

TOLERANCE: Final = {torch.float32: 2e-3, torch.bfloat16: 0.08, torch.float16: 0.02}
"""The tolerance as a share of the largest value: the rounding error of a dtype through all layers."""

_CAPACITY: Final = 128
_STEPS: Final = ((40, 7, 1), (1, 1, 9), (5, 1, 1), (1, 30, 1))
"""Rows of each of three sessions in each forward."""
_SECONDS: Final = 3
_CHUNK: Final = 28
"""Tokens of a second, and those that are looked ahead at."""
_CPU: Final = torch.device("cpu")


@dataclass(frozen=True)
class Agreement:
    """The largest difference of one part, as a part of its largest value."""

    part: str
    difference: float
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether rounding explains the difference."""
        return self.difference <= self.tolerance


@torch.inference_mode()
def agreements(device: torch.device, dtype: torch.dtype) -> list[Agreement]:
    """Return the agreements of the language model, of the ear and of the vocoder's flow.

    The language model runs batched with others and alone.
    """
    size = model.small()
    plain = model.weights(size, torch.device("cpu"), torch.float32)
    state = {name: tensor.to(device, dtype) for name, tensor in plain.state_dict().items()}
    ours = model.filled(MiniCPMO.hollow(size.config, speech=True), state)
    thought, heard = _hidden(plain, alone=True), _heard(plain)
    apart = {
        "language model, packed": _apart(thought, _hidden(ours, alone=False)),
        "language model, alone": _apart(thought, _hidden(ours, alone=True)),
        "ear": _apart(heard, _heard(ours)),
        "flow of the vocoder": _apart(_flowed(size, _CPU, torch.float32), _flowed(size, device, dtype)),
    }
    return [Agreement(part, difference, TOLERANCE[dtype]) for part, difference in apart.items()]


def _hidden(made: MiniCPMO, *, alone: bool) -> Tensor:
    """Final hidden states [rows, hidden] of a few forwards of a few sessions, session by session."""
    parameter = next(made.llm.parameters())
    width, generator = made.config.language.hidden_size, torch.Generator().manual_seed(0)
    sessions = len(_STEPS[0])
    decoder = PackedDecoder(made.llm.model, sessions, _CAPACITY)
    rows: list[list[Tensor]] = [[] for _ in range(sessions)]
    lengths = [0] * sessions
    for counts in _STEPS:
        segments = []
        for slot, count in enumerate(counts):
            embeds = torch.randn(count, width, generator=generator).to(parameter)
            segments.append(Segment(slot, lengths[slot], lengths[slot], Rows.of(embeds)))
            lengths[slot] += count
        groups = [[segment] for segment in segments] if alone else [segments]
        hidden = [each for group in groups for each in decoder.forward(group)]
        for slot, each in enumerate(hidden):
            rows[slot].append(each.float().cpu())
    return torch.cat([each for session in rows for each in session])


def _heard(made: MiniCPMO) -> Tensor:
    """Return embeddings [rows, hidden] of a few seconds of noise."""
    parameter = next(made.apm.parameters())
    hearing, generator = StreamingMel(made.config.audio.bands), torch.Generator().manual_seed(1)
    states, heard = [made.ear.initial_state()], []
    for _ in range(_SECONDS):
        second = 0.1 * torch.randn(16_000, generator=generator)
        features = torch.from_numpy(hearing.feed(second.numpy())).to(parameter)
        (rows,), states = made.ear.encode([features], states)
        heard.append(rows.float().cpu())
    return torch.cat(heard)


def _flowed(size: model.Size, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Mel frames [rows, 80] of two seconds of two streams."""
    torch.manual_seed(2)
    made = Token2Wav(size.vocoder, dtype=dtype).eval().requires_grad_(False).to(device)
    tokens = torch.arange(2 * _CHUNK).view(2, _CHUNK).to(device)
    states, frames = [made.flow.begin(model.voice())] * 2, []
    for _ in range(2):
        mel, states = made.flow.advance(tokens, states, is_last=False)
        frames.append(mel.flatten(0, 1).float().cpu())
    return torch.cat(frames)


def _apart(wanted: Tensor, found: Tensor) -> float:
    return float((wanted - found).abs().max() / wanted.abs().max())
