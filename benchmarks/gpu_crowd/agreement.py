"""Comparison of a device with the CPU in float32: a small model with the same weights and input."""

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
"""The rows of three sessions in each of four forwards."""
_SECONDS: Final = 3
_CHUNK: Final = 28
"""The tokens of a second, and the look-ahead."""
_CPU: Final = torch.device("cpu")


@dataclass(frozen=True)
class Agreement:
    """The largest difference in the output of one part of the model, relative to the largest value there."""

    part: str
    difference: float
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether the difference is within the tolerance."""
        return self.difference <= self.tolerance


@torch.inference_mode()
def agreements(device: torch.device, dtype: torch.dtype) -> list[Agreement]:
    """Return the agreements of the language model, of the audio encoder and of the vocoder's flow.

    The language model runs with the sessions in one batch and one by one.
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
    """Return the final hidden states of all forwards, [rows, hidden], ordered by session."""
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
    """Return the embeddings [rows, hidden] of `_SECONDS` seconds of noise."""
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
    """Return the mel frames [rows, 80] of two seconds of two streams."""
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
