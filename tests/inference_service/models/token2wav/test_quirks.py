"""Tests of the published package's bugs: reproduced with the switch, fixed without it.

The golden tests set `reference_quirks`; nothing else does.
"""

import random

import pytest
import torch
from torch import Tensor

from inference_service.models.token2wav.flow import FlowState
from inference_service.models.token2wav.model import Token2Wav
from inference_service.models.token2wav.noise import SourceNoise, flow_noise
from tests.inference_service.models.token2wav import recorded
from tests.inference_service.models.token2wav.test_streams import begin, codes_of, say

PROMPT_FRAMES = 120
CHUNK_TOKENS = 25


def trimmed(model: Token2Wav) -> tuple[FlowState, FlowState]:
    """The caches before and after the first chunk that makes them too long."""
    state, draw = begin(model), random.Random(8)
    for _ in range(2):
        say(model, state, codes_of(draw))
    before = state.flow
    assert before.frames == PROMPT_FRAMES + 100
    say(model, state, codes_of(draw))
    return before, state.flow


@pytest.mark.parametrize("is_causal", [False, True])
def test_encoder_forgets_the_oldest_tokens_first(is_causal: bool) -> None:
    before, after = trimmed(recorded.model(is_causal=is_causal, reference_quirks=False))
    generated = PROMPT_FRAMES // 2
    assert torch.equal(after.encoder.first[..., :generated, :], before.encoder.first[..., :generated, :])
    kept = after.encoder.first[..., generated : generated + CHUNK_TOKENS, :]
    assert torch.equal(kept, before.encoder.first[..., generated + CHUNK_TOKENS :, :])
    assert not torch.equal(after.encoder.first, before.encoder.first)


@pytest.mark.parametrize("reference_quirks", [False, True])
def test_estimator_keeps_the_newest_frames_and_the_end_of_the_prompt(reference_quirks: bool) -> None:
    before, after = trimmed(recorded.model(reference_quirks=reference_quirks))
    fresh = 2 * CHUNK_TOKENS
    assert torch.equal(
        after.attention[..., fresh:PROMPT_FRAMES, :], before.attention[..., : PROMPT_FRAMES - fresh, :]
    )
    assert torch.equal(after.attention[..., PROMPT_FRAMES:, :], before.attention[..., -100:, :])


@pytest.mark.parametrize(("reference_quirks", "loudest"), [(False, 0.9), (True, 0.972)])
def test_seams_are_as_loud_as_the_rest(
    monkeypatch: pytest.MonkeyPatch, reference_quirks: bool, loudest: float
) -> None:
    model = recorded.model(reference_quirks=reference_quirks)
    monkeypatch.setattr(model.hift, "decode", lambda mel, _: torch.full((len(mel), 480 * mel.shape[2]), 0.9))
    state = begin(model)
    said = torch.cat([say(model, state, [1] * 25) for _ in range(3)])
    assert float(said.max()) == pytest.approx(loudest, abs=1e-4)
    assert float(said.min()) == pytest.approx(0.9)


def excitation(model: Token2Wav, chunks: list[Tensor]) -> Tensor:
    """Return the vocoder's excitation over all chunks, at a steady 200 Hz without noise, [samples]."""
    sources: list[Tensor] = []
    model.hift.f0_predictor.forward = lambda mel: mel.new_full((len(mel), mel.shape[2]), 200.0)  # type: ignore[method-assign]
    decode = model.hift.decode

    def watched(mel: Tensor, source: Tensor) -> Tensor:
        sources.append(source[0])
        return decode(mel, source)

    model.hift.decode = watched  # type: ignore[method-assign]
    model.source_noise.table = torch.zeros_like(model.source_noise.table)
    state = model.vocoder.initial_state()
    for i, chunk in enumerate(chunks):
        _, (state,) = model.vocoder.advance(chunk, [state], is_last=i == len(chunks) - 1)
    return torch.cat([sources[0], *(source[3840:] for source in sources[1:])])


@pytest.mark.parametrize(("reference_quirks", "is_one_wave"), [(False, True), (True, False)])
def test_phase_goes_on_from_chunk_to_chunk(reference_quirks: bool, is_one_wave: bool) -> None:
    mel = torch.zeros(1, 80, 33 * 3)
    chunks = list(mel.split(33, dim=2))
    pieces = excitation(recorded.model(reference_quirks=reference_quirks), chunks)
    whole = excitation(recorded.model(reference_quirks=reference_quirks), [mel])
    inner = slice(240, -240)  # the first and last half frames are held as published
    assert (float((pieces - whole)[inner].abs().max()) < 1e-4) == is_one_wave


def test_drawn_noise_is_the_same_each_time_and_normal_for_both_vocoders() -> None:
    """The causal package was trained with normal noise, and draws from [0, 1) when it speaks."""
    table = SourceNoise.drawn(8).table
    assert float(table.mean()) == pytest.approx(0, abs=0.01)
    assert float(table.std()) == pytest.approx(1, abs=0.01)
    assert table.shape[1] == 9
    assert torch.equal(SourceNoise.drawn(8).table, table)
    assert torch.equal(flow_noise(), flow_noise())
