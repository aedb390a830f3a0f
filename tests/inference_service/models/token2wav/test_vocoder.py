"""Mel frames to sound, as recorded from both published vocoders."""

import random

import pytest
import torch
from torch import Tensor

from inference_service.models.token2wav.causal_vocoder import CausalState
from inference_service.models.token2wav.faded_vocoder import FadedState
from tests.inference_service.models.token2wav import recorded
from tests.inference_service.models.token2wav.recorded import (
    FROM_MEL_LIMIT,
    FROM_SOURCE_LIMIT,
    STREAMS,
)
from tests.inference_service.models.token2wav.test_flow import far, watch

SILENCE = 3840
"""Zeros that the later packages put in front of the first chunk."""


@pytest.mark.parametrize("name", STREAMS)
def test_stream_from_recorded_mel(name: str) -> None:
    stored, vocoder = recorded.tensors(name), recorded.model().vocoder
    state = vocoder.initial_state()
    compared = set()

    for i, call in enumerate(recorded.stream(name)["calls"]):
        wave, (state,) = vocoder.advance(stored[f"call{i}.mel"], [state], is_last=call["last_chunk"])

        assert isinstance(state, FadedState)
        assert wave.shape[1] == call["wav_samples"]
        assert far(wave, stored[f"call{i}.wav"]) < FROM_MEL_LIMIT
        kept = {"mel": state.mel[None], "source": state.source[None, None], "speech": state.speech[None]}
        for part, ours in kept.items():
            if (key := f"call{i}.after.hift.{part}") in stored:
                assert far(ours, stored[key]) < FROM_MEL_LIMIT, key
                compared.add(key)
    assert compared == {key for key in stored if ".after.hift." in key}


def test_pitch_and_harmonics_as_recorded() -> None:
    """The phase adds up the pitch of the whole chunk, last bits included: hence the wide limit."""
    taps, stored = recorded.tensors("stream_a_call1_taps"), recorded.tensors("stream_a")
    model = recorded.model()
    silent = model.vocoder.initial_state()
    _, (state,) = model.vocoder.advance(stored["call0.mel"], [silent], is_last=False)
    seen: dict[str, list[Tensor]] = {}
    watch(model.hift.f0_predictor, "hift.f0", seen, lambda _, out: out)
    watch(model.hift.m_source.l_linear, "hift.sine_waves", seen, lambda given, _: given[0][:, :2400])
    model.vocoder.advance(stored["call1.mel"], [state], is_last=False)
    assert seen.keys() == taps.keys() & {"hift.f0", "hift.sine_waves"}
    for name, (ours,) in seen.items():
        assert far(ours, taps[name]) < FROM_MEL_LIMIT, name


def test_every_intermediate_from_recorded_source() -> None:
    """An excitation of our own would differ by what the processor rounds in its phase."""
    taps, stored = recorded.tensors("stream_a_call1_taps"), recorded.tensors("stream_a")
    hift = recorded.model().hift
    seen: dict[str, list[Tensor]] = {}
    for name in ("conv_pre", "ups.0", "ups.1", "ups.2", "resblocks.2", "resblocks.5", "conv_post"):
        watch(hift.get_submodule(name), f"hift.{name}.out", seen, lambda _, out: out)
    for i in range(3):
        watch(hift.source_resblocks[i], f"hift.source_resblocks.{i}.out", seen, lambda _, out: out)
    mel = torch.cat([stored["call0.after.hift.mel"], stored["call1.mel"]], dim=2)

    speech = hift.decode(mel, taps["hift.source"][:, 0])

    assert far(speech, taps["hift.speech_before_fade"]) < FROM_SOURCE_LIMIT
    for name, (ours,) in seen.items():
        theirs = taps[name]
        assert far(ours[..., : theirs.shape[-1]], theirs) < FROM_SOURCE_LIMIT, name
    elsewhere = {"hift.source", "hift.f0", "hift.sine_waves", "hift.speech_before_fade"}
    assert seen.keys() | elsewhere == {name for name in taps if name.startswith("hift.")}


def test_causal_stream_from_recorded_mel() -> None:
    stored, vocoder = recorded.tensors("causal_stream_b"), recorded.model(is_causal=True).vocoder
    state = vocoder.initial_state()

    for i, call in enumerate(recorded.stream("causal_stream_b")["calls"]):
        wave, (state,) = vocoder.advance(stored[f"call{i}.mel"], [state], is_last=call["last_chunk"])

        theirs = stored[f"call{i}.wav"][:, SILENCE if i == 0 else 0 :]
        assert far(wave, theirs) < FROM_MEL_LIMIT
        assert isinstance(state, CausalState)
        cache = call["hift_cache"]
        assert (state.start, state.start + state.sourced) == (cache["mel_offset"], cache["source_end"])
        assert 480 * (state.start + state.said) == cache["speech_offset"]
        assert list(state.mel.shape) == cache["mel"]["shape"][1:]
        if f"call{i}.after.hift.phase" in stored:
            assert far(state.cycles.float(), stored[f"call{i}.after.hift.phase"][0, 0]) < FROM_MEL_LIMIT
            assert far(state.mel[None], stored[f"call{i}.after.hift.mel"]) < FROM_MEL_LIMIT


@pytest.mark.parametrize("seed", range(3))
def test_causal_stream_is_the_same_however_it_is_cut(seed: int) -> None:
    stored, vocoder = recorded.tensors("causal_stream_b"), recorded.model(is_causal=True).vocoder
    mel = torch.cat([stored[f"call{i}.mel"] for i in range(5)], dim=2)
    whole, _ = vocoder.advance(mel, [vocoder.initial_state()], is_last=True)
    draw = random.Random(seed)
    cuts = sorted(draw.sample(range(1, mel.shape[2]), 9))
    state, waves = vocoder.initial_state(), []
    for begin, end in zip([0, *cuts], [*cuts, mel.shape[2]], strict=True):
        wave, (state,) = vocoder.advance(mel[:, :, begin:end], [state], is_last=end == mel.shape[2])
        waves.append(wave)
    assert far(torch.cat(waves, dim=1), whole) < 1e-4
